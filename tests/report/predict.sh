#!/usr/bin/env bash
# Compares predicted with measured times: two ranks on two nodes, at a rate at which
# computation dominates and at one at which communication does. Needs root, a release build
# and a data set: make data
# Functions are called by name, through `check`.
# shellcheck disable=SC2317
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.." || exit 1
# shellcheck source-path=SCRIPTDIR source=common.sh
. tests/report/common.sh
[ -x "$bin" ] || die "no $bin; run make build"
trap 'tests/cluster/down.sh >/dev/null 2>&1; rm -rf "$work"' EXIT

# A waiting rank yields its core, and other load takes it for a time slice, which is longer
# than a step. Real-time priority prevents this.
first=()
chrt --rr 1 true 2>/dev/null && first=(chrt --rr 1)

# An odd number.
turns=7

on() { timeout 300 "${first[@]}" tests/cluster/mpirun.sh "$@"; }

train() { # train TOPOLOGY NAME
  on "$1" "$bin" -q train --data-root "${DATA:-data/digits}" --epochs 1 --train-samples 38400 --test-samples 500 \
    --out "$work/$2"
}

# One rank alone gives the computing time, and `bench link` the link. Every turn measures both,
# and the step that they predict: a slow phase of the machine then affects all three, and a
# disturbed turn is an outlier that the median of the turns ignores. The link is measured with
# the pauses of computation, after which its shaper forwards a burst without delay, for messages
# of up to four times the gradients' 17 kB.
measure() { # measure RATE
  RATE=$1 tests/cluster/up.sh || return
  train 1x1 "$1-pause" || return
  local pause turn
  pause=$(awk -F'[:,]' '/"ms_per_step"/ { print 1000 * $2 }' "$work/$1-pause/run.json")
  for turn in $(seq $turns); do
    on 2x1 "$bin" bench link --pause-us "$pause" --sizes 4..64KiB --iterations 100 --csv "$work/$1-$turn.csv" &&
      train 1x1 "$1-1x1-$turn" && train 2x1 "$1-2x1-$turn" &&
      "$bin" report --predict "$work/$1"-*x1-"$turn" --link "$work/$1-$turn.csv" --format csv \
        >"$work/$1-prediction-$turn.csv" || return
  done
}

# The line in the middle of those of all turns, which are sorted by their first number.
middle() { sort -n | sed -n "$(((turns + 1) / 2))p"; }

# Error in percent, predicted and measured step of each turn.
errors() { # errors RATE ALGORITHM
  awk -F, -v predicted="ms_per_step_$2" '
    FNR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    $column["ranks"] == 2 && $column["measured_on"] == "2x1 mpi" && $column["ms_per_step_measured"] > 0 {
      p = $column[predicted]; m = $column["ms_per_step_measured"]
      printf "%.1f %.3f %.3f\n", 100 * (p / m - 1), p, m
    }' "$work/$1"-prediction-*.csv
}

within_15_percent() { # within_15_percent RATE ALGORITHM
  errors "$1" "$2" | tee "$work/errors"
  [ "$(wc -l <"$work/errors")" -eq $turns ] || { echo "not one prediction for each of $turns turns"; return 1; }
  note=$(middle <"$work/errors" | awk -v turns=$turns '{
    printf "predicted %.3f ms, measured %.3f ms, %+.1f%%, median of %d turns", $2, $3, $1, turns
    exit !($1 > -15 && $1 < 15) }')
}

# Otherwise both rates would test only the computing time.
the_slow_link_decides() {
  local slow fast
  fast=$(errors 1gbit ring | cut -d' ' -f2 | middle)
  slow=$(errors 20mbit ring | cut -d' ' -f2 | middle)
  note="a step of $fast ms at 1gbit, $slow ms at 20mbit"
  awk -v slow="$slow" -v fast="$fast" 'BEGIN { exit !(fast + 0 > 0 && slow > 1.5 * fast) }'
}

for rate in 1gbit 20mbit; do
  check "two nodes measured at $rate" measure $rate
  for algorithm in ring recursive_doubling; do
    check "a step at $rate is predicted within 15% ($algorithm)" within_15_percent $rate $algorithm
  done
done
check "communication dominates at the lower rate" the_slow_link_decides
exit $failed
