#!/usr/bin/env bash
# A program outside the workspace that depends on burn-mpi and Burn alone: it builds,
# and its averaged gradients at 1, 2 and 3 ranks are those of one process on all
# samples. Also checks what a user of burn-mpi compiles, and that both libraries are
# packages. A user's features are not the workspace's, so Burn is compiled once more:
# without optimization, which takes half the time, and once for all of this.
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
export CARGO_PROFILE_DEV_DEBUG=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

builds() {
  local began=$SECONDS
  scripts/cargo.sh build --locked --manifest-path tests/outside/Cargo.toml 2>&1 | tee "$work/build" &&
    note="$(grep -c '^ *Compiling' "$work/build") crates in $((SECONDS - began)) s"
}

trains() { # trains RANKS
  local options=()
  if [ "$MPI" = openmpi ]; then
    options=(--bind-to core)
    [ "$1" -le "$(nproc)" ] || options=(--bind-to core:overload-allowed --oversubscribe)
  fi
  timeout 120 "$mpirun" -n "$1" "${options[@]}" "$CARGO_TARGET_DIR/debug/outside" >"$work/out" 2>&1
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

packages() {
  scripts/cargo.sh package --locked --allow-dirty --package "$1" --target-dir "$CARGO_TARGET_DIR" 2>&1 | tee "$work/package" &&
    ! grep -A 3 '^warning' "$work/package" && note=$(sed -n 's/^ *Packaged //p' "$work/package") || return 1
  local files
  files=$(tar -tzf "$CARGO_TARGET_DIR/package/$1"-*.crate) || return 1
  for file in LICENSE-MIT LICENSE-APACHE README.md; do
    grep -q "^$1-[0-9.]*/$file\$" <<<"$files" || { echo "$file is not in the package" && return 1; }
  done
}

check "burn-mpi depends on nothing for terminals, tables or pictures" depends_on_little
check "a program outside the workspace builds" builds
for ranks in 1 2 3; do
  check "its gradients at $ranks ranks are those of one process, $mpi_name" trains $ranks
done
for library in burn-mpi burn-fused; do
  check "$library is a package" packages $library
done
exit $failed
