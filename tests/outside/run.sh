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
  ranks "$1" outside
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && [ "$(grep -c "^rank . of $1: gradients within" "$work/out")" -eq "$1" ] &&
    note=$(head -n 1 "$work/out")
}

ranks() { # ranks N PROGRAM OPTION...
  local options=()
  if [ "$MPI" = openmpi ]; then
    options=(--bind-to core)
    [ "$1" -le "$(nproc)" ] || options=(--bind-to core:overload-allowed --oversubscribe)
  fi
  timeout 120 "$mpirun" -n "$1" "${options[@]}" "$CARGO_TARGET_DIR/debug/$2" "${@:3}" >"$work/out" 2>&1
}

# burn-train over MPI holds what the check is named after, on every rank.
learns() { # learns RANKS CHECK
  rm -rf "$work/learner"
  ranks "$1" learner "$2" "$work/learner"
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] && [ "$(grep -c "^rank . of $1: $2 holds" "$work/out")" -eq "$1" ]
}

# One line names the rank and the reason, and the job ends.
refuses() { # refuses RANKS CHECK LINE
  ranks "$1" learner "$2" "$work/learner"
  local status=$?
  cat "$work/out"
  [ $status -ne 0 ] && [ $status -ne 124 ] && [ "$(grep -cE "^learner: $3" "$work/out")" -eq 1 ]
}

# The guide of Burn's book; its accuracy is read from burn-train's summary.
guide_learns() {
  target/release/mpiburn -q data digits --out "$work/digits" --train 601 --test 101 &&
    ranks 2 learner_mnist "$work/digits" 2
  local status=$?
  cat "$work/out"
  [ $status -eq 0 ] || return
  note=$(sed -n 's/^| Valid *| Accuracy *|.*| *\([0-9.]*\) *| [0-9]* *|$/\1/p' "$work/out" | tail -n 1)
  [ -s "$work/digits/guide/model.bpk" ] && awk -v found="${note:-0}" 'BEGIN { exit found < 60 }'
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
check "burn-train over one rank is burn-train's own, bit by bit" learns 1 alone
for ranks in 1 2 3; do
  for what in one-step uneven resume early; do
    check "burn-train over $ranks ranks: $what" learns $ranks $what
  done
done
for ranks in 2 3; do
  last=$((ranks - 1))
  check "a loader that fails, $ranks ranks" refuses $ranks fail "rank $last on [^ ]*: the data loader fails: sample 52"
  check "a panic, $ranks ranks" refuses $ranks panic "rank $last on [^ ]* panicked"
  check "fewer samples than ranks, $ranks ranks" refuses $ranks few "rank $last on [^ ]*: no training sample"
  check "another model on a rank, $ranks ranks" refuses $ranks other "parameter 0 of the module differs between ranks: rank 1"
done
check "the guide of Burn's book at 2 ranks" guide_learns
for library in burn-mpi burn-fused; do
  check "$library is a package" packages $library
done
exit $failed
