#!/usr/bin/env bash
# A benchmark, not a test: predicted and measured times of a step of two ranks on two nodes,
# at a rate at which computation dominates and at one at which communication does. Needs root,
# a release build and a data set: make data
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit 1
# shellcheck source-path=SCRIPTDIR source=../tests/report/common.sh
. tests/report/common.sh
[ -x "$bin" ] || die "no $bin; run make build"
trap 'tests/cluster/down.sh >/dev/null 2>&1; rm -rf "$work"' EXIT

# A waiting rank yields its core, and other load takes it for a time slice, which is longer
# than a step. Real-time priority prevents this.
first=()
chrt --rr 1 true 2>/dev/null && first=(chrt --rr 1)

# An odd number.
turns=7

on() { "${first[@]}" tests/cluster/mpirun.sh "$@"; }

train() { # train TOPOLOGY NAME
  on "$1" "$bin" -q train --data-root "${DATA:-data/digits}" --epochs 1 --train-samples 38400 --test-samples 500 \
    --out "$work/$2" >/dev/null
}

# One rank alone gives the computing time, and `bench link` the link. Every turn measures both,
# and the step that they predict: a slow phase of the machine then affects all three, and a
# disturbed turn is an outlier that the median of the turns ignores. The link is measured with
# the pauses of computation, after which its shaper forwards a burst without delay, for messages
# of up to four times the gradients' 17 kB.
measure() { # measure RATE
  local pause turn
  RATE=$1 tests/cluster/up.sh >/dev/null
  train 1x1 "$1-pause"
  pause=$(awk -F'[:,]' '/"ms_per_step"/ { print 1000 * $2 }' "$work/$1-pause/run.json")
  for turn in $(seq $turns); do
    on 2x1 "$bin" bench link --pause-us "$pause" --sizes 4..64KiB --iterations 100 --csv "$work/$1-$turn.csv" >/dev/null
    train 1x1 "$1-1x1-$turn"
    train 2x1 "$1-2x1-$turn"
    "$bin" report --scaling "$work/$1"-*x1-"$turn" --link "$work/$1-$turn.csv" --format csv \
      >"$work/$1-prediction-$turn.csv"
  done
}

# Predicted and measured step of each turn, and their difference in percent.
errors() { # errors RATE ALGORITHM
  awk -F, -v predicted="ms_per_step_$2" '
    FNR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    $column["ranks"] == 2 && $column["measured_on"] == "2x1 mpi" && $column["ms_per_step_measured"] > 0 {
      p = $column[predicted]; m = $column["ms_per_step_measured"]
      printf "%.3f %.3f %+.1f\n", p, m, 100 * (p / m - 1)
    }' "$work/$1"-prediction-*.csv
}

for rate in 1gbit 20mbit; do measure $rate; done

echo '| rate | algorithm | | predicted, ms | measured, ms | difference |'
echo '| --- | --- | --- | ---: | ---: | ---: |'
row() { sed "s/\(.*\) \(.*\) \(.*\)/| $rate | ${algorithm//_/ } | $1 | \1 | \2 | \3% |/"; } # row NAME
for rate in 1gbit 20mbit; do
  for algorithm in ring recursive_doubling; do
    errors $rate $algorithm >"$work/errors"
    row turn <"$work/errors"
    # By the difference.
    sort -g -k 3 "$work/errors" | sed -n "$(((turns + 1) / 2))p" | row median
  done
done
