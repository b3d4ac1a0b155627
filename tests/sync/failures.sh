#!/usr/bin/env bash
# Checks that a rank that fails ends a job of 3 ranks, over both transports, with a line that names the rank,
# and before any deadline. A rank that sleeps for an hour must end the job by the deadline. The same as
# tests/jobs/failures.rs, for the MPI of $MPI (MPI=mpich uses the build for MPICH). Prints one line per kind
# of failure.
set -uo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. scripts/mpi.sh
# shellcheck source-path=SCRIPTDIR source=../waiting.sh
. tests/waiting.sh

mpirun=$(mpi_command mpirun) || exit 1
# The Makefile sets CARGO_TARGET_DIR for its own MPI, so it is set again for $MPI.
export CARGO_TARGET_DIR=target$([ "$MPI" = openmpi ] || echo "-$MPI")
scripts/cargo.sh build --quiet --release --workspace --example fail_on_one_rank || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 RUST_BACKTRACE=0
options=()
[ "$MPI" != openmpi ] || options=(--oversubscribe)

# `never` is a deadline that no job reaches. `deadline` is one that ends a job; even on a busy machine, the
# steps before the failure take less.
never=$((2 * limit))
deadline=$((limit / 8))
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fails() { # fails HOW BACKEND CODE TEXT: CODE 0 accepts any non-zero code
  local how=$1 backend=$2 code=$3 line=$4 timeout=$never status
  [ "$how" != sleep ] || timeout=$deadline
  # mpirun runs in the background, so that the shell prints no line for a killed job.
  timeout "$limit" "$mpirun" -n 3 "${options[@]}" "$CARGO_TARGET_DIR/release/examples/fail_on_one_rank" \
    "$how" "$backend" "$timeout" >"$log" 2>&1 &
  wait $! 2>/dev/null
  status=$?
  if [ $status -ne 0 ] && [ $status -ne 124 ] && { [ "$code" -eq 0 ] || [ $status -eq "$code" ]; } && grep -q "$line" "$log" &&
    ! grep -q 'is done' "$log"; then
    echo "ok - $mpi_name, $backend, $how: exit code $status"
  else
    cat "$log"
    echo "not ok - $mpi_name, $backend, $how: exit code $status"
    failed=1
  fi
}

for backend in mpi gloo; do
  fails error $backend 1 'rank 1 on .*exit code 1'
  fails run-error $backend 1 'fail_on_one_rank: rank 1 on .*shard1.bin: cannot be read'
  fails run-panic $backend 101 'rank 1 on .* panicked'
  fails exit $backend 7 'rank 1 on .*exit code 7'
  fails return $backend 0 'rank 1 on .* has left the job'
  fails sleep $backend 0 "exceeded the deadline of $deadline s (Transport::timeout).*missing: rank 1 on "
done
exit $failed
