#!/usr/bin/env bash
# Checks `mpiburn launch --restart`: the last rank of a training is killed after a checkpoint. The training
# must be started again, and end with the weights of an undisturbed one. The same as tests/jobs/restart.rs,
# for any program and launcher:
#
#   tests/faults/restart.sh target-mpich/release/mpiburn 1x2
#   tests/faults/restart.sh target/release/mpiburn 2x1 --launcher srun --srun-by tests/slurm/srun.sh
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."

# shellcheck source-path=SCRIPTDIR source=../waiting.sh
. tests/waiting.sh
binary=${1:?a program} topology=${2:?a topology}
shift 2
# Not in /tmp, because each node of tests/slurm and tests/cluster has its own /tmp.
mkdir -p target
work=$(mktemp -d "$PWD/target/restart.XXXXXX")
job=
clean() {
  [ -z "$job" ] || pkill -P "$job" || true
  rm -rf "$work"
}
trap clean EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$binary" -q data digits --out "$work/digits" --train 3200 --test 500

launch() { # launch NAME OPTION...: a training into NAME
  local name=$1
  shift
  timeout "$limit" "$binary" launch "$topology" "$@" -- train --data-root "$work/digits" --epochs 10 --shuffle \
    --train-batch-size 8 --checkpoint-every 20 --keep 2 --out "$work/$name" >"$work/$name.log" 2>&1
}

weights() { sed -n 's/.*"weights_sha256": "\(.*\)".*/\1/p' "$work/$1/run.json"; } # weights NAME

# Succeeds if there are two checkpoints, or if the job has ended.
is_under_way() {
  [ "$(find "$work/cut/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null | wc -l)" -ge 2 ] || ended "$job"
}

launch whole "$@" || { cat "$work/whole.log"; exit 1; }
launch cut --restart 1 "$@" &
job=$!
if ! await is_under_way || ended "$job"; then
  cat "$work/cut.log"
  echo "restart.sh: the job was not under way with two checkpoints"
  exit 1
fi
# `places` in run.json lists the ranks in order, so the last process is the last rank's.
kill -KILL "$(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$work/cut/run.json" | tail -n 1)"
status=0
wait "$job" || status=$?
job=
cat "$work/cut.log"
[ $status -eq 0 ]
# The first attempt must have failed because of the killed rank. Each launcher has its own words for this.
attempts=$(grep -cE '^mpiburn: launch: attempt 1 ended with exit code .*(signal 9|Killed).*; starting again from step [1-9]' \
  "$work/cut.log") || { echo "restart.sh: no attempt that a killed rank ended"; exit 1; }
echo "$attempts attempt failed; weights of both trainings: $(weights whole) $(weights cut)"
[ "$attempts" -eq 1 ] && [ -n "$(weights whole)" ] && [ "$(weights whole)" = "$(weights cut)" ]
