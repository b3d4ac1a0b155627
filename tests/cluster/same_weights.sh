#!/usr/bin/env bash
# Checks that weights do not depend on the transport and the topology: with ordered sums, trainings at 2x2
# (two nodes) over mpi and over gloo must have the same bits as one at 1x4 (one node).
#
#   tests/cluster/same_weights.sh [mpi|gloo]...
set -euo pipefail
cd "$(dirname "$0")/../.."

bin=target/release/mpiburn
mkdir -p target
[ $# -gt 0 ] || set -- mpi gloo
# shellcheck source-path=SCRIPTDIR source=../waiting.sh
. tests/waiting.sh
work=$(mktemp -d target/same-weights.XXXXXX)
trap 'tests/cluster/down.sh >/dev/null 2>&1 || true; rm -rf "$work"' EXIT

weights() { sed -n 's/.*"weights_sha256": "\(.*\)".*/\1/p' "$1/run.json"; }
options=(-q train --data-root "$work/digits" --epochs 1 --bucket-mb 0.004 --reduce ordered)

$bin -q data digits --out "$work/digits" --train 1600 --test 200
as_root=$([ "$(id -u)" -eq 0 ] && echo --allow-run-as-root || true)
# shellcheck disable=SC2086 # no word or one
timeout "$limit" mpirun $as_root -n 4 --oversubscribe --bind-to core:overload-allowed \
  $bin "${options[@]}" --out "$work/1x4" >/dev/null
expected=$(weights "$work/1x4")
[ -n "$expected" ]

RATE=1gbit tests/cluster/up.sh
for backend in "$@"; do
  timeout "$limit" tests/cluster/mpirun.sh 2x2 $bin "${options[@]}" --backend "$backend" --out "$work/2x2-$backend" >/dev/null
  found=$(weights "$work/2x2-$backend")
  if [ "$found" != "$expected" ]; then
    echo "2x2 over $backend has weights $found, 1x4 has $expected" >&2
    exit 1
  fi
  grep -q '"topology": "2x2"' "$work/2x2-$backend/run.json"
  echo "2x2 over $backend: same weights as 1x4, ${found:0:16}…"
done
