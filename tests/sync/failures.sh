#!/usr/bin/env bash
# A rank that fails must end a job of 3 ranks within the deadline and 5 s (a stalled one
# within 10 s), over both transports, with a line that names it; like
# tests/jobs/failures.rs, for the MPI of $MPI (MPI=mpich uses the build for MPICH). Prints
# one line per kind of failure.
set -uo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. scripts/mpi.sh

mpirun=$(mpi_command mpirun) || exit 1
# Overrides the value of make, which is for its own MPI.
export CARGO_TARGET_DIR=target$([ "$MPI" = openmpi ] || echo "-$MPI")
scripts/cargo.sh build --quiet --release --workspace --example fail_on_one_rank || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 RUST_BACKTRACE=0
options=()
[ "$MPI" != openmpi ] || options=(--oversubscribe)

deadline=3
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fails() { # fails HOW BACKEND CODE TEXT: CODE 0 accepts any non-zero code
  local how=$1 backend=$2 code=$3 line=$4 grace=5 status started=$SECONDS took
  # Here a guard ends the job: MPICH's mpirun waits for it, and is ended some seconds
  # after the guard's message.
  case $how in sleep | return) grace=10 ;; esac
  # mpirun in the background, so that the shell prints no line for a killed job.
  timeout 60 "$mpirun" -n 3 "${options[@]}" "$CARGO_TARGET_DIR/release/examples/fail_on_one_rank" \
    "$how" "$backend" $deadline >"$log" 2>&1 &
  wait $! 2>/dev/null
  status=$?
  took=$((SECONDS - started))
  if [ $status -ne 0 ] && { [ "$code" -eq 0 ] || [ $status -eq "$code" ]; } && grep -q "$line" "$log" &&
    ! grep -q 'is done' "$log" && [ $took -le $((deadline + grace)) ]; then
    echo "ok - $mpi_name, $backend, $how: exit code $status after $took s"
  else
    cat "$log"
    echo "not ok - $mpi_name, $backend, $how: exit code $status after $took s"
    failed=1
  fi
}

for backend in mpi gloo; do
  fails error $backend 1 'rank 1 on .*exit code 1'
  fails run-error $backend 1 'fail_on_one_rank: rank 1 on .*shard1.bin: cannot be read'
  fails run-panic $backend 101 'rank 1 on .* panicked'
  fails exit $backend 7 'rank 1 on .*exit code 7'
  fails return $backend 0 'rank 1 on .* has left the job'
  fails sleep $backend 0 'exceeded the deadline of 3 s (Transport::timeout).*missing: rank 1 on '
done
exit $failed
