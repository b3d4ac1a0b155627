#!/usr/bin/env bash
# Compares the step time that `mpiburn report` predicts with the measured one, for two ranks on two emulated
# nodes: of an all-reduce at two rates, and of all algorithms at 100 Mbit/s. At 1 Gbit/s, computation takes
# most of the step; at the other rates, communication does. A benchmark, not a test. Needs root, a release
# build and a data set: make data
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit 1
# shellcheck source-path=SCRIPTDIR source=../tests/report/common.sh
. tests/report/common.sh
[ -x "$bin" ] || die "no $bin; run make build"
trap 'tests/cluster/down.sh >/dev/null 2>&1; rm -rf "$work"' EXIT

# A waiting rank yields its core. Another program may then take the core for a time slice, which is longer
# than a step. Real-time priority prevents this.
first=()
chrt --rr 1 true 2>/dev/null && first=(chrt --rr 1)

# An odd number, so that the median is one of the turns.
turns=7

on() { "${first[@]}" tests/cluster/mpirun.sh "$@"; }

# The algorithms at 100 Mbit/s: name, topology of the run that the prediction is from, options. One rank
# compresses and gathers nothing.
algorithms=(
  'all_reduce 1x1'
  'local 1x1 --sync-every 8'
  'streaming 1x1 --sync-every 8 --fragments 2 --sync-delay 2'
  'powersgd 1x2 --compress powersgd --compress-rank 4'
  'sharded 1x2 --shard-optimizer'
)

train() { # train TOPOLOGY NAME OPTIONS...
  on "$1" "$bin" -q train --data-root "${DATA:-data/digits}" --epochs 1 --train-samples 38400 --test-samples 500 \
    --out "$work/$2" "${@:3}" >/dev/null
}

# Every turn measures the computing time (one rank alone), the link (`bench link`) and the step that they
# predict. A slow phase of the machine then affects all three, and the median of the turns ignores an outlier.
#
# `bench link` pauses before each message as long as a step computes, because the emulated link forwards a
# burst without delay after a pause. It measures messages of up to four times the gradients' 17 kB.
begin() { # begin RATE OPTIONS...: starts the nodes, and sets `pause`
  RATE=$1 tests/cluster/up.sh >/dev/null
  train 1x1 "$1-pause" "${@:2}"
  pause=$(awk -F'[:,]' '/"ms_per_step"/ { print 1000 * $2 }' "$work/$1-pause/run.json")
}

link() { # link FILE SIZES ITERATIONS
  on 2x1 "$bin" bench link --pause-us "$pause" --sizes "$2" --iterations "$3" --csv "$1" >/dev/null
}

measure() { # measure RATE
  local turn
  begin "$1"
  for turn in $(seq $turns); do
    link "$work/$1-$turn.csv" 4..64KiB 100
    train 1x1 "$1-1x1-$turn"
    train 2x1 "$1-2x1-$turn"
    "$bin" report --scaling "$work/$1"-*x1-"$turn" --link "$work/$1-$turn.csv" --format csv \
      >"$work/$1-prediction-$turn.csv"
  done
}

# The network has 102 kB of gradients: 8 ms at 100 Mbit/s.
measure_algorithms() {
  local turn name from options network=(--model mlp --hidden 32 --train-samples 25600)
  begin 100mbit "${network[@]}"
  for turn in $(seq $turns); do
    link "$work/100mbit-$turn.csv" 4..256KiB 40
    for algorithm in "${algorithms[@]}"; do
      read -r name from options <<<"$algorithm"
      for topology in "$from" 2x1; do
        # shellcheck disable=SC2086 # several options
        train "$topology" "$name-$topology-$turn" "${network[@]}" $options
      done
      "$bin" report --scaling "$work/$name-$from-$turn" "$work/$name-2x1-$turn" --link "$work/100mbit-$turn.csv" \
        --format csv >"$work/$name-prediction-$turn.csv"
    done
  done
}

# Prints the predicted step, the measured step, and their difference in percent, for each turn.
errors() { # errors RATE|NAME MODEL
  awk -F, -v predicted="ms_per_step_$2" '
    FNR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
    $column["ranks"] == 2 && $column["measured_on"] == "2x1 mpi" && $column["ms_per_step_measured"] > 0 {
      p = $column[predicted]; m = $column["ms_per_step_measured"]
      printf "%.3f %.3f %+.1f\n", p, m, 100 * (p / m - 1)
    }' "$work/$1"-prediction-*.csv
}

for rate in 1gbit 20mbit; do measure $rate; done
measure_algorithms

echo '| algorithm | model | | predicted, ms | measured, ms | difference |'
echo '| --- | --- | --- | ---: | ---: | ---: |'
row() { sed "s/\(.*\) \(.*\) \(.*\)/| ${name//_/-} | ${model//_/ } | $1 | \1 | \2 | \3% |/"; } # row TURN
for name in 1gbit 20mbit "${algorithms[@]%% *}"; do
  for model in ring recursive_doubling; do
    errors "$name" $model >"$work/errors"
    row turn <"$work/errors"
    # The turn whose difference is the median.
    sort -g -k 3 "$work/errors" | sed -n "$(((turns + 1) / 2))p" | row median
  done
done
