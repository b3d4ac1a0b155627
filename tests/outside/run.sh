#!/usr/bin/env bash
# A program outside the workspace that depends on burn-mpi and Burn alone: it builds,
# and its averaged gradients at 1, 2 and 3 ranks are those of one process on all
# samples. Also checks what a user of burn-mpi compiles.
set -uo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=../../scripts/mpi.sh
. scripts/mpi.sh
# shellcheck source-path=SCRIPTDIR source=../checking.sh
. tests/checking.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpirun=$(mpi_command mpirun) || exit 1
# The folder of the workspace: what both compile in the same way is compiled once.
export CARGO_TARGET_DIR=$PWD/target$([ "$MPI" = openmpi ] || echo "-$MPI")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

builds() {
  local began=$SECONDS
  scripts/cargo.sh build --locked --release --manifest-path tests/outside/Cargo.toml 2>&1 | tee "$work/build" &&
    note="$(grep -c '^ *Compiling' "$work/build") crates in $((SECONDS - began)) s"
}

trains() { # trains RANKS
  local options=()
  if [ "$MPI" = openmpi ]; then
    options=(--bind-to core)
    [ "$1" -le "$(nproc)" ] || options=(--bind-to core:overload-allowed --oversubscribe)
  fi
  timeout 120 "$mpirun" -n "$1" "${options[@]}" "$CARGO_TARGET_DIR/release/outside" >"$work/out" 2>&1
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && [ "$(grep -c "^rank . of $1: gradients within" "$work/out")" -eq "$1" ] &&
    note=$(head -n 1 "$work/out")
}

# For terminals, tables, pictures and command lines: the program's, not the library's.
depends_on_little() {
  local tree found
  tree=$(scripts/cargo.sh tree --locked --package burn-mpi --edges normal --prefix none --features gloo) || return 1
  grep -q '^burn v' <<<"$tree" || return 1
  found=$(grep -E '^(clap|indicatif|comfy-table|plotters|maud|csv|env_logger|mimalloc)( |_)' <<<"$tree")
  [ -z "$found" ] || { echo "$found" && return 1; }
  note="$(sort -u <<<"${tree// (\*)/}" | wc -l) crates"
}

check "burn-mpi depends on nothing for terminals, tables or pictures" depends_on_little
check "a program outside the workspace builds" builds
for ranks in 1 2 3; do
  check "its gradients at $ranks ranks are those of one process, $mpi_name" trains $ranks
done
exit $failed
