#!/usr/bin/env bash
# Compares averaged gradients of random modules with plain Burn's gradients, in jobs of 1 to 5 ranks: all.sh
# [CASES] [SEED], by default 5000 cases of seed 1. MPI=mpich uses the build for MPICH. If a case fails, a line
# has the options that repeat it.
set -uo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. scripts/mpi.sh

cases=${1:-5000}
seed=${2:-1}
worlds=5
mpirun=$(mpi_command mpirun) || exit 1
# The Makefile sets CARGO_TARGET_DIR for its own MPI, so it is set again for $MPI.
export CARGO_TARGET_DIR=target$([ "$MPI" = openmpi ] || echo "-$MPI")
scripts/cargo.sh build --quiet --release --workspace --example check_sync || exit 1

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cores=$(nproc)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

failed=0
first=0
for ((ranks = 1; ranks <= worlds; ranks++)); do
  # If the cases do not divide evenly, the jobs with few ranks get one more.
  count=$(((cases + worlds - ranks) / worlds))
  bind=()
  if [ "$MPI" = openmpi ]; then
    bind=(--bind-to core)
    [ "$ranks" -le "$cores" ] || bind=(--bind-to core:overload-allowed --oversubscribe)
  fi
  name="$count cases of seed $seed at $ranks ranks, $mpi_name"
  if "$mpirun" -n "$ranks" "${bind[@]}" "$CARGO_TARGET_DIR/release/examples/check_sync" \
    --seed "$seed" --first-case "$first" --cases "$count" >"$log" 2>&1 &&
    grep -q "^ok - $count cases of seed $seed at $ranks ranks" "$log"; then
    echo "ok - $name"
  else
    cat "$log"
    echo "not ok - $name"
    failed=1
  fi
  first=$((first + count))
done
exit $failed
