#!/usr/bin/env bash
# Counts instructions under valgrind's callgrind, at the AVX2 level: of one training step of each network and
# of burn-mpi's example char_gpt, and of one inference of the int8 convnet, plain and profiled. Compares the
# counts with counts.csv in this folder:
#
#   tests/icount/run.sh             fails if a count is missing or more than 3% above the file's
#   tests/icount/run.sh --update    writes the counts to the file
#
# A count does not depend on the load or the speed of the machine. Only instructions inside the measured
# function, or the instructions of additional steps, are counted, and valgrind presents the same processor
# with AVX2 on every machine. Needs a release build and valgrind, and builds the example: make icount
#
# `check` calls functions by name, so shellcheck believes that they are not called.
# shellcheck disable=SC2317
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.." || exit 1
# shellcheck source-path=SCRIPTDIR source=../checking.sh
. tests/checking.sh

# For each count: name, batch size, function whose calls are counted, number of these calls or inferences, and
# the command after mpiburn. valgrind emulates fused multiply-adds one by one, which is slow, so vgg has one
# step of one image. bench int8 infers 6 times at each of the batch sizes 1, 32 and 128.
step=measured_step
runs=(
  "vgg 1 $step 1 bench step --model vgg --train-batch-size 1 --warm-up 1 --steps 1 --products 0 --simd avx2"
  "convnet 32 $step 20 bench step --model convnet --train-batch-size 32 --warm-up 3 --steps 20 --products 0 --simd avx2"
  "mlp 32 $step 50 bench step --model mlp --train-batch-size 32 --warm-up 3 --steps 50 --products 0 --simd avx2"
  "int8 161 Quantized5infer 6 bench int8 --model convnet --iterations 5"
  "int8-profiled 32 infer_watched 6 profile --int8 --model convnet --batches 6 --batch 32"
)
# The steps of the example char_gpt are not one function. Two trainings of different length are counted
# instead, and the difference is divided by the difference of steps. The first steps differ, because they
# determine the buckets.
gpt="--width 64 --layers 2 --batch 4 --tokens 16 --steps"
gpt_steps=(3 9)
rows=("${runs[@]}" "gpt 4")
simd=avx2
limit=3 # percent
counts=tests/icount/counts.csv
bin=${BIN:-target/release/mpiburn}
example=$(dirname "$bin")/examples/char_gpt

die() {
  echo "icount: $*" >&2
  exit 2
}
case ${1-} in
  '' | --update) ;;
  *) die "unknown option $1: choose --update or none" ;;
esac
[ -x "$bin" ] || die "no $bin; run make build"
# With --workspace, most crates are taken from the release build; crates that Burn's data sets change are
# compiled again.
CARGO_TARGET_DIR=$(dirname "$(dirname "$bin")") scripts/cargo.sh build --quiet --release --workspace \
  --features examples --example char_gpt || die "no $example"
command -v valgrind >/dev/null || die "no valgrind; run scripts/setup.sh --all"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints the number of instructions of a command. --demangle=no, because the demangled names depend on
# valgrind's version, and the pattern of a function would have to match them.
instructions() { # instructions NAME ARGUMENTS OF VALGRIND...
  local out=$work/$1.callgrind
  valgrind --tool=callgrind --callgrind-out-file="$out" --demangle=no "${@:2}" >>"$work/$1.log" 2>&1 || return
  awk '$1 == "totals:" && $2 > 0 { print $2; found = 1 } END { exit !found }' "$out"
}

# Counts the instructions of one call, and writes the number to $work/NAME.
count() { # count NAME BATCH FUNCTION CALLS COMMAND...
  local all
  all=$(instructions "$1" --toggle-collect="*$3*" "$bin" "${@:5}") || return
  awk -v all="$all" -v calls="$4" 'BEGIN { printf "%.0f\n", all / calls }' >"$work/$1"
}

# Counts the instructions of one step of the example char_gpt, and writes the number to $work/gpt.
count_gpt() {
  local all=() steps
  for steps in "${gpt_steps[@]}"; do
    # shellcheck disable=SC2086 # words
    all+=("$(RAYON_NUM_THREADS=1 instructions gpt "$example" $gpt $steps)") || return
  done
  echo $(((all[1] - all[0]) / (gpt_steps[1] - gpt_steps[0]))) >"$work/gpt"
}

# Compares a count with the one in the file. Fails if the file has none.
compare() { # compare NAME BATCH
  local here before
  [ -s "$work/$1" ] || { cat "$work/$1.log"; echo "no instructions counted"; return 1; }
  here=$(cat "$work/$1")
  before=$(awk -F, -v key="$1,$2,$simd" '$1 "," $2 "," $3 == key { print $4 }' $counts)
  note="$here instructions"
  [ -n "$before" ] || { note+=", and no count in $counts; write it: make icount ARGS=--update"; return 1; }
  note+=$(awk -v here="$here" -v before="$before" -v limit=$limit 'BEGIN {
    change = 100 * (here / before - 1)
    printf ", %+.2f%% against %s in the file", change, before
    if (change < -limit) printf "; write the new counts: make icount ARGS=--update"
  }')
  awk -v here="$here" -v before="$before" -v limit=$limit 'BEGIN { exit !(here <= before * (1 + limit / 100)) }'
}

for run in "${runs[@]}"; do
  # shellcheck disable=SC2086 # words
  count $run &
done
count_gpt &
wait

if [ "${1-}" = --update ]; then
  echo "network,batch,simd,instructions" >"$work/counts"
  for run in "${rows[@]}"; do
    read -r network batch _ <<<"$run"
    [ -s "$work/$network" ] || { cat "$work/$network.log" >&2; die "no count of $network"; }
    echo "$network,$batch,$simd,$(cat "$work/$network")" >>"$work/counts"
  done
  mv "$work/counts" $counts
  cat $counts
  exit
fi
for run in "${rows[@]}"; do
  read -r network batch _ <<<"$run"
  check "instructions of $network at batch $batch, $simd" compare "$network" "$batch"
done
exit $failed
