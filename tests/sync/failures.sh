#!/usr/bin/env bash
# A rank that fails ends a 3-rank job inside the deadline and 5 s (a stalled one
# inside 10 s), over both transports, with a line that names it; as tests/jobs/failures.rs, for the MPI of
# $MPI (MPI=mpich takes the build for MPICH). Prints a line for each way to fail.
set -uo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. scripts/mpi.sh

mpirun=$(mpi_command mpirun) || exit 1
# Whatever make has set: that is the folder of its own MPI.
export CARGO_TARGET_DIR=target$([ "$MPI" = openmpi ] || echo "-$MPI")
scripts/cargo.sh build --quiet --release --workspace --example fail_on_one_rank || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 RUST_BACKTRACE=0
options=()
[ "$MPI" != openmpi ] || options=(--oversubscribe)

deadline=3
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

fails() { # fails HOW BACKEND CODE TEXT: CODE 0 stands for any but 0
  local how=$1 backend=$2 code=$3 line=$4 grace=5 status started=$SECONDS took
  # Here a guard ends the job: MPICH's mpirun waits for it, and is ended some seconds
  # after the guard has spoken.
  case $how in sleep | return) grace=10 ;; esac
  # mpirun in the background: a job that is killed is no line of this shell.
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
  fails sleep $backend 0 'exceeded the deadline of 3 s.*missing: rank 1 on '
done
exit $failed
