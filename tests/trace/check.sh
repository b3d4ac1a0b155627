#!/usr/bin/env bash
# Writes time lines of trainings and profiles on 2 and 3 ranks, and checks them with check.py.
#
#   tests/trace/check.sh [BINARY]
set -euo pipefail
cd "$(dirname "$0")/../.."

# shellcheck source-path=SCRIPTDIR source=../waiting.sh
. tests/waiting.sh
bin=${1:-target/release/mpiburn}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
as_root=$([ "$(id -u)" -eq 0 ] && echo --allow-run-as-root)

$bin -q data digits --out "$work/digits" --train 1600 --test 100
# --bucket-mb makes buckets of one or two parameters, which are reduced during backward.
train() { # train RANKS FILE OPTIONS...
  local ranks=$1 file=$2
  shift 2
  # shellcheck disable=SC2086 # empty, or one option
  timeout "$limit" mpirun $as_root -n "$ranks" --oversubscribe --bind-to core:overload-allowed "$bin" -q train \
    --data-root "$work/digits" --epochs 1 --bucket-mb 0.004 --overwrite --out "$work/run" \
    --trace "$work/$file" "$@" >/dev/null
}
# check.py needs only Python's standard library.
read_back() { python3 tests/trace/check.py "$work/$1" "${@:2}"; }

train 2 two.json --trace-steps 1..20
read_back two.json --ranks 2 --steps 1..20
train 2 gloo.json.gz --backend gloo --trace-steps 3..12
read_back gloo.json.gz --ranks 2 --steps 3..12
train 3 three.json.gz
read_back three.json.gz --ranks 3 --steps 1..17
train 3 gloo3.json --backend gloo --accumulate 2 --trace-steps 5..8
read_back gloo3.json --ranks 3 --steps 5..8
# shellcheck disable=SC2086
timeout "$limit" mpirun $as_root -n 2 --oversubscribe --bind-to core:overload-allowed "$bin" profile --train --model mlp \
  --batches 30 --trace "$work/profile.json" >/dev/null 2>&1
read_back profile.json --ranks 2 --steps 10..30
