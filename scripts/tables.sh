#!/usr/bin/env bash
# Runs all sweeps of jobs/sweeps, the benchmarks of the transports and of the fused operator, and profiles of
# operators. Then writes the page results/report/report.html.
#
#   scripts/tables.sh [SCALE [OPTIONS]]
#
# SCALE is full or quick. OPTIONS are passed to `mpiburn sweep` and `launch`, such as --mpirun-by SCRIPT. The
# variables DATA, OBJECTS and VECTORS are the folders of the digits, the objects and the feature vectors;
# `make tables` generates missing data sets. BIN is the binary.
#
# Completed runs are kept, so the same command continues after Ctrl-C. Runs that are
# impossible here (no Slurm, no second machine) are skipped: the exit code is 0, and the report
# says what is missing and how to get it.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit 1

scale=${1:-full}
[ $# -eq 0 ] || shift
bin=${BIN:-target/release/mpiburn}
data=${DATA:-data/digits} objects=${OBJECTS:-data/objects} vectors=${VECTORS:-data/features}
failed=0

# Prints the folder of the data set that a sweep file uses.
root_of() { # root_of FILE
  case $(sed -n 's|^data-root *= *"data/\(.*\)"$|\1|p' "$1") in
    digits) echo "$data" ;;
    objects) echo "$objects" ;;
    features) echo "$vectors" ;;
    *) echo "tables: $1: data-root is not a data set of this project: data/digits, data/objects or data/features" >&2; return 1 ;;
  esac
}

suffix=; short=()
[ "$scale" = full ] || { suffix=-$scale; short=(--iterations 200); }
sweeps=(jobs/sweeps/*.toml)
# Measured on two idle cores.
case $scale in
  full) need="days (each run of the vgg takes hours) and 1 GB" ;;
  quick) need="three quarters of an hour and 300 MB" ;;
  *) need="an unknown time and unknown disk space" ;;
esac
say() { echo "tables: $*" >&2; }
say "${#sweeps[@]} sweeps at scale $scale, then benchmarks and profiles; on two idle cores: $need in results/." \
  "After Ctrl-C the same command continues."
begin=$SECONDS
results=()
for sweep in "${sweeps[@]}"; do
  results+=("results/$(basename "$sweep" .toml)$suffix")
  say "sweep ${#results[@]} of ${#sweeps[@]}, after $(((SECONDS - begin) / 60)) min: $sweep"
  root=$(root_of "$sweep") || exit 1
  "$bin" sweep "$sweep" --scale "$scale" "$@" -- --data-root "$root"
  case $? in
    0) ;;
    75) exit 75 ;; # stopped by a signal: the same command continues
    *) failed=1 ;;
  esac
done
say "benchmarks and profiles, after $(((SECONDS - begin) / 60)) min"
# Succeeds if this host knows the machines in the host file of 2x1. The machines in a fresh checkout are
# examples.
two_machines() {
  local host file=hostfiles/local/2x1
  [ -e $file ] || file=hostfiles/2x1
  [ -e $file ] || return 1
  for host in $(sed 's/[#:].*//' $file | awk 'NF { sub(/.*@/, "", $1); print $1 }'); do
    getent hosts "$host" >/dev/null || return 1
  done
}

# Without --mpirun-by, a run on two machines needs a host file that names them.
skipped=()
topologies=(1x2 2x1)
[[ " $* " == *" --mpirun-by"* ]] || two_machines || { topologies=(1x2); skipped+=("the benchmarks on 2x1: its host file does not name two machines that are known here; write it with make hosts HOSTS=\"alpha beta\", or emulate two machines with make slurm-up and CLUSTER=lab"); }
for topology in "${topologies[@]}"; do
  "$bin" launch "$topology" "$@" -- bench allreduce --sizes 4..1MiB "${short[@]}" \
    --csv "results/topologies$suffix/allreduce-$topology.csv" || failed=1
  "$bin" launch "$topology" "$@" -- bench collectives \
    --csv "results/topologies$suffix/collectives-$topology.csv" || failed=1
done
[ "$scale" = full ] && samples=() || samples=(--train-samples 3200)
"$bin" bench fused --data-root "$data" --csv "results/fused$suffix.csv" "${samples[@]}" || failed=1
# A profile takes seconds, so both scales profile with the same options.
profiles=results/profiles$suffix
mkdir -p "$profiles" || exit 1
profile() { # profile NAME OPTIONS...
  local name=$1
  shift
  "$bin" profile "$@" --batches 100 --json "$profiles/$name.json" || failed=1
}
for activation in relu tanh sigmoid gelu; do
  profile "mlp-$activation" --model mlp --activation "$activation"
done
# A test uses batches of 128.
profile convnet --model convnet --batch 128
profile convnet-unfused --model convnet --batch 128 --fused off
profile convnet-int8 --model convnet --batch 128 --int8
"$bin" report --format html "${results[@]}" "$profiles" "results/fused$suffix.csv" || failed=1
say "took $(((SECONDS - begin) / 60)) min; $(du -csh "${results[@]}" "$profiles" 2>/dev/null | tail -n 1 | cut -f 1) of results"
[ ${#skipped[@]} -eq 0 ] || printf 'skipped: %s\n' "${skipped[@]}" >&2
exit "$failed"
