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

on() { timeout 300 "${first[@]}" tests/cluster/mpirun.sh "$@"; }

train() { # train TOPOLOGY NAME
  on "$1" "$bin" -q train --data-root "${DATA:-data/digits}" --epochs 1 --train-samples 6400 --test-samples 500 \
    --out "$work/$2"
}

# One rank alone gives the computing time, and `bench link` the link; trainings are repeated
# five times in turn, and the medians are compared. The link is measured with the pauses of
# computation, after which its shaper forwards a burst without delay.
measure() { # measure RATE
  RATE=$1 tests/cluster/up.sh || return
  train 1x1 "$1-pause" || return
  local pause turn
  pause=$(awk -F'[:,]' '/"ms_per_step"/ { print 1000 * $2 }' "$work/$1-pause/run.json")
  on 2x1 "$bin" bench link --pause-us "$pause" --csv "$work/$1.csv" || return
  for turn in 1 2 3 4 5; do
    train 1x1 "$1-1x1-$turn" && train 2x1 "$1-2x1-$turn" || return
  done
}

within_15_percent() { # within_15_percent RATE ALGORITHM
  "$bin" report --predict "$work/$1"-*x1-? --link "$work/$1.csv" --format csv >"$work/$1-prediction.csv" || return
  cat "$work/$1-prediction.csv"
  note=$(awk -F, -v predicted="ms_per_step_$2" '
    NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    $column["ranks"] == 2 && $column["measured_on"] == "2x1 mpi" {
      p = $column[predicted]; m = $column["ms_per_step_measured"]
      printf "predicted %.3f ms, measured %.3f ms, %+.1f%%", p, m, 100 * (p / m - 1)
      found = m > 0 && p > 0.85 * m && p < 1.15 * m
    }
    END { exit !found }' "$work/$1-prediction.csv")
}

# Otherwise both rates would test only the computing time.
the_slow_link_decides() {
  local slow fast
  fast=$(awk -F, '$1 == 2 { print $3; exit }' "$work/1gbit-prediction.csv")
  slow=$(awk -F, '$1 == 2 { print $3; exit }' "$work/20mbit-prediction.csv")
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
