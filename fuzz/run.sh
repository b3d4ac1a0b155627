#!/usr/bin/env bash
# Fuzzes each target of fuzz/fuzz_targets with libFuzzer: fuzz/run.sh SECONDS [TARGET]...
#
# Each target runs for SECONDS; as many targets run at a time as there are cores. If an input makes the reader panic, or
# needs more memory than fuzz/targets.rs allows, fuzzing writes the input to fuzz/artifacts/TARGET. Then copy
# it to fuzz/seeds/TARGET under a name that says what it is, and fix the reader. `make test` reads all seeds.
#
# AddressSanitizer is off (-s none): the readers are in safe Rust, and without it a stable toolchain is
# enough. tests/sanitize checks the crates with unsafe code.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

time=${1:-}
if ! [[ $time =~ ^[1-9][0-9]*$ ]]; then
  echo "fuzz: SECONDS is '$time', and must be a whole number above 0: make fuzz SECONDS=600" >&2
  exit 2
fi
shift
if ! cargo fuzz --version >/dev/null 2>&1; then
  echo "fuzz: no cargo-fuzz; run cargo install cargo-fuzz --locked" >&2
  exit 1
fi
known=$(basename -s .rs -a fuzz/fuzz_targets/*.rs)
targets=${*:-$known}
for target in $targets; do
  grep -qx "$target" <<<"$known" || { echo "fuzz: unknown target $target: choose from" $known >&2; exit 2; }
done

export CARGO_TARGET_DIR=$PWD/target-fuzz
cargo fuzz build -s none
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

fuzz() { # fuzz TARGET
  local target=$1 status=0 folder=fuzz/artifacts/$1
  mkdir -p "fuzz/corpus/$target" "$folder"
  "$CARGO_TARGET_DIR/x86_64-unknown-linux-gnu/release/$target" -artifact_prefix="$folder/" \
    -max_total_time="$time" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    "fuzz/corpus/$target" "fuzz/seeds/$target" >"$logs/$target" 2>&1 || status=$?
  local runs
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$logs/$target")
  if [ $status -eq 0 ] && [ "${runs:-0}" -gt 0 ]; then
    echo "ok - $target: $runs inputs, $(find "fuzz/corpus/$target" -type f | wc -l) of them new paths"
  else
    grep -E 'panicked|^[a-z_]+: |ERROR|Test unit written' "$logs/$target" || tail -n 20 "$logs/$target"
    echo "not ok - $target"
    return 1
  fi
}
export -f fuzz
export logs time
# shellcheck disable=SC2086 # one word for each target
printf '%s\n' $targets | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
