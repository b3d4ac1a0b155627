#!/usr/bin/env bash
# Checks the batch scripts in jobs/ on a real Slurm with two emulated nodes. Runs all topologies with both
# launchers. A job that gets a signal, or reaches its time limit, must be requeued and reach the same bits.
# Also checks that Slurm starts and is removed completely. Needs a release build, and optionally one for
# MPICH:
#
#   tests/slurm/check.sh [PROGRAM_OF_MPICH]
#   ONLY='two idle nodes|2x2 by mpirun' tests/slurm/check.sh    only these checks
#
# `check` calls functions by name, so shellcheck believes that they are not called.
# shellcheck disable=SC2317
set -uo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"
cd "$project" || exit 1
require_slurm

unset RATE DELAY DATA ARGS BACKEND LAUNCHER BIN MPIRUN SRUN_MPI SRUN_OPTIONS SBATCH_PARTITION SBATCH_TIMELIMIT
unset "${!OMPI_MCA_@}"
binary=target/release/mpiburn
mpich_binary=${1-}
for needed in $binary ${mpich_binary:+"$mpich_binary"}; do
  [ -x "$needed" ] || die "no $needed; run make build"
done
links=$(ls /sys/class/net)
# Not in /tmp, because each node has its own /tmp.
mkdir -p target
work=$(mktemp -d "$project/target/slurm-check.XXXXXX")
jobs=()
clean() {
  "$here/down.sh"
  for job in "${jobs[@]}"; do rm -rf results/slurm-*-"$job"; done
  rm -rf "$work"
}
trap clean EXIT
export DATA=$work/digits
$binary -q data digits --out "$DATA" --train 3200 --test 500 || exit 1

# shellcheck source-path=SCRIPTDIR source=../checking.sh
. "$project/tests/checking.sh"

on_node0() { timeout "$limit" "$here/run.sh" "$@"; }

# Submits a batch script, and sets $job to the job's id. Variables for the script precede the call.
submit() { # submit TOPOLOGY OPTION_OF_SBATCH...
  local topology=$1
  shift
  job=$(on_node0 sbatch --parsable --output="$work/%j.out" "$@" "jobs/$topology.sbatch") || return
  jobs+=("$job")
}

field() { on_node0 scontrol show job "$1" | sed -n "s/.*\b$2=\([^ ]*\).*/\1/p"; } # field JOB NAME

state_of= # the state of the job in the last call of `has_ended`
has_ended() { # has_ended JOB
  state_of=$(field "$1" JobState)
  case $state_of in
    COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL | OUT_OF_MEMORY) ;;
    *) return 1 ;;
  esac
}

ends() { # ends JOB STATE
  await has_ended "$1"
  [ "$state_of" = "$2" ] && return
  cat "$work/$1.out"
  echo "job $1 is $state_of, restarts: $(field "$1" Restarts)"
  # Frees the nodes for the next jobs.
  on_node0 scancel "$1"
  return 1
}

record() { echo results/slurm-*-"$1"/run.json; } # record JOB

records() { # records JOB KEY VALUE
  tr -d ' \n' <"$(record "$1")" | grep -F "\"$2\":$3" >/dev/null || { echo "run.json of job $1 does not record $2: $3"; return 1; }
}

weights() { sed -n 's/.*"weights_sha256": "\(.*\)".*/\1/p' "$(record "$1")"; }

same_weights() { # same_weights JOB JOB
  local first second
  first=$(weights "$1") && second=$(weights "$2") || return
  note=${first:0:16}…
  echo "job $1 ends in $first, job $2 in $second"
  [ -n "$first" ] && [ "$first" = "$second" ]
}

is_idle() { [ "$(on_node0 sinfo -h -o '%T %D')" = "idle 2" ]; }

comes_up() { "$here/up.sh" && is_idle; }

comes_up_after_a_crash() {
  local host pid
  for host in "${hosts[@]}"; do
    pid=$(slurmd_of "$host") && kill -KILL "$pid" || return
  done
  ! on_node0 sinfo && comes_up
}

# An invalid rate makes up.sh fail in its middle. Nothing may be left.
fails_cleanly() {
  local message
  ! RATE=fast "$here/up.sh" && ! [ -e "/run/netns/$(namespace_of node0)" ] && ! [ -e "$state" ] || return
  message=$(on_node0 true 2>&1)
  [ $? -eq 1 ] && [ "$message" = "run.sh: Slurm is not up; run tests/slurm/up.sh" ]
}

declare -A trained
trains() { # trains TOPOLOGY LAUNCHER RANKS HOSTS, after `trained` has the job
  local job=${trained[$1-$2]}
  ends "$job" COMPLETED || return
  records "$job" status '"completed"' && records "$job" topology "\"$1\"" && records "$job" world_size "$3" &&
    records "$job" hosts "$4" && records "$job" launcher "\"$2\"" && records "$job" binding '"0"' || return
  [ "$2" = mpirun ] || same_weights "$job" "${trained[$1-mpirun]}"
}

trains_over_gloo() {
  BACKEND=gloo ARGS="--epochs 1" submit 2x1 && ends "$job" COMPLETED &&
    records "$job" backend '"gloo"' && records "$job" hosts '["node0","node1"]'
}

runs_under_srun() {
  diff <("$here/srun.sh" 2x2 hostname | sort) <(printf '%s\n' node0 node0 node1 node1) &&
    "$here/srun.sh" 2x1 "$binary" train --data-root "$DATA" --epochs 1 --out "$work/srun" &&
    tr -d ' \n' <"$work/srun/run.json" | grep -F '"topology":"2x1"' | grep -F '"launcher":"srun"' >/dev/null
}

# Prints the losses and accuracies of each epoch, with all their digits. The last line may be incomplete, and
# is left out.
epochs_of() { # epochs_of JOB
  sed -n 's/^\([0-9]*,[^,]*,[^,]*,[^,]*,[^,]*\)\(,[^,]*\)\{4\}$/\1/p' results/slurm-*-"$1"/epochs.csv 2>/dev/null
}

has_epochs() { # has_epochs JOB NUMBER
  [ "$(epochs_of "$1" | wc -l)" -ge "$2" ]
}

starts() { # starts JOB: until it has trained for two epochs
  await has_epochs "$1" 2 && return
  cat "$work/$1.out"
  on_node0 scancel "$1"
  return 1
}

# Sends a signal to a training in its middle. The weights at the end must be those of an undisturbed training.
goes_on() { # goes_on LAUNCHER SIGNAL [PROGRAM]
  ARGS=$long LAUNCHER=$1 BIN=${3-$binary} submit 2x2 && starts "$job" || return
  on_node0 scancel --signal="$2" --batch "$job" && ends "$job" COMPLETED || return
  cat "$work/$job.out"
  [ "$(field "$job" Restarts)" = 1 ] && grep 'stopped by .*--resume' "$work/$job.out" &&
    grep 'resuming after step' "$work/$job.out" && same_weights "$job" "${trained[2x2-mpirun]}"
}

has_started_again() { [ "$(field "$1" Restarts)" -ge 1 ]; } # has_started_again JOB

# A training without an end, whose time limit is shortened while it trains. Slurm checks time limits every 30
# s, and then sends the signal. After the job has been requeued, its limit is extended, so there is only one
# signal. The losses must be those of an undisturbed training of the same number of epochs.
outlives_its_time() {
  local first epochs
  ARGS="--epochs 1000000" submit 1x1 --time=1000 --signal="B:USR1@$((2 * limit))" && first=$job &&
    starts "$first" && on_node0 scontrol update JobId="$first" TimeLimit=$((2 * limit / 60)) &&
    await has_started_again "$first" && on_node0 scontrol update JobId="$first" TimeLimit=1000 &&
    await grep 'resuming after step' "$work/$first.out" || return
  epochs=$(epochs_of "$first" | wc -l)
  await has_epochs "$first" $((epochs + 2)) && on_node0 scancel "$first" && ends "$first" CANCELLED || return
  cat "$work/$first.out"
  epochs=$(epochs_of "$first" | wc -l)
  grep 'stopped by SIGUSR1 after step' "$work/$first.out" && ARGS="--epochs $epochs" submit 1x1 &&
    ends "$job" COMPLETED && [ "$(field "$job" Restarts)" = 0 ] &&
    diff <(epochs_of "$first") <(epochs_of "$job") &&
    note="$epochs epochs in $(($(field "$first" Restarts) + 1)) starts"
}

# The job's state is read again when the nodes are idle. A job that was requeued by mistake would then wait for
# its nodes, and no longer be CANCELLED.
stays_cancelled() {
  ARGS="--epochs 1000" submit 2x2 && starts "$job" && on_node0 scancel "$job" && ends "$job" CANCELLED &&
    await is_idle || return
  has_ended "$job"
  echo "job $job is $state_of, restarts: $(field "$job" Restarts)"
  [ "$state_of" = CANCELLED ] && [ "$(field "$job" Restarts)" = 0 ] && records "$job" status '"stopped"'
}

rejects() { # rejects LINE NAME=VALUE: the output is this one line
  submit 1x1 --export="ALL,$2" && ends "$job" FAILED || return
  diff "$work/$job.out" - <<<"$1"
}

rejects_another_folder() {
  job=$(cd "$work" && on_node0 sbatch --parsable "$project/jobs/2x2.sbatch") && ends "$job" FAILED || return
  diff "$work/slurm-2x2-$job.out" - \
    <<<"2x2.sbatch: no $work/jobs/train.sbatch; submit from the project's folder: sbatch jobs/2x2.sbatch"
}

# The four batch scripts must have the same partition, time limit and other settings.
scripts_agree() {
  local topology
  for topology in 1x2 2x1 2x2; do
    diff <(sed "/nodes=/d; /ntasks-per-node=/d; 2d; s/1x1/$topology/g" jobs/1x1.sbatch) \
      <(sed '/nodes=/d; /ntasks-per-node=/d; 2d' "jobs/$topology.sbatch") || return
  done
}

nothing_is_left() {
  local spaces=() host left=0
  for host in "${hosts[@]}"; do spaces+=("$(stat -Lc %i "/run/netns/$(namespace_of "$host")")"); done
  ARGS="--epochs 1000" submit 2x2 && starts "$job" && "$here/down.sh" || return
  ! [ -e "$state" ] || left=1
  for host in "${hosts[@]}"; do ! [ -e "/run/netns/$(namespace_of "$host")" ] || left=1; done
  ! [ -e "/run/netns/$switch" ] || left=1
  for host in "${spaces[@]}"; do
    ! readlink /proc/[0-9]*/ns/net 2>/dev/null | grep -F "[$host]" || left=1
  done
  diff <(ls /sys/class/net) - <<<"$links" || left=1
  ! grep -E "10\.77\.0|${switch%switch}" /etc/hosts /proc/mounts || left=1
  return "$left"
}

note=
check "down.sh without Slurm" "$here/down.sh"
check "a failed up.sh removes what it has created" fails_cleanly
check "two idle nodes" comes_up
check "up.sh replaces a Slurm whose daemons were killed" comes_up_after_a_crash
check "the four batch scripts differ in the topology only" scripts_agree

# A long training, so that a signal reaches it in its middle; its bits are the same for either MPI. If no
# check with a signal is selected, the training is short.
long="--epochs 2 --reduce ordered"
for signal in "SIGUSR1 under "{mpirun,srun,"MPICH and mpirun","MPICH and srun"} "SIGTERM under mpirun"; do
  ! chosen "$signal: requeued, and on to the same bits" || long="--epochs 24 --reduce ordered"
done
queue() { # queue TOPOLOGY LAUNCHER ARGS OPTION_OF_SBATCH...
  chosen "$1 by $2" || return
  ARGS=$3 LAUNCHER=$2 submit "$1" "${@:4}" && trained[$1-$2]=$job
}
for launcher in mpirun srun; do
  queue 1x1 $launcher "--epochs 2" --nodelist=node0
  queue 1x2 $launcher "--epochs 2" --nodelist=node0
  queue 2x1 $launcher "--epochs 2"
  queue 2x2 $launcher "$long"
done
for launcher in mpirun srun; do
  check "1x1 by $launcher" trains 1x1 $launcher 1 '["node0"]'
  check "1x2 by $launcher" trains 1x2 $launcher 2 '["node0","node0"]'
  check "2x1 by $launcher" trains 2x1 $launcher 2 '["node0","node1"]'
  check "2x2 by $launcher" trains 2x2 $launcher 4 '["node0","node0","node1","node1"]'
done
check "2x1 over gloo" trains_over_gloo
check "srun.sh starts programs and trainings" runs_under_srun
check "a killed rank under srun: started again, and on to the same bits" \
  tests/faults/restart.sh "$binary" 2x1 --launcher srun --srun-by "$here/srun.sh"
check "SIGUSR1 under mpirun: requeued, and on to the same bits" goes_on mpirun USR1
check "SIGUSR1 under srun: requeued, and on to the same bits" goes_on srun USR1
check "SIGTERM under mpirun: requeued, and on to the same bits" goes_on mpirun TERM
if [ -n "$mpich_binary" ]; then
  for launcher in mpirun srun; do
    check "SIGUSR1 under MPICH and $launcher: requeued, and on to the same bits" goes_on $launcher USR1 "$mpich_binary"
  done
fi
check "a time limit: requeued, and on to the same bits" outlives_its_time
check "a cancelled job is not requeued, and can be resumed" stays_cancelled
check "an unknown LAUNCHER" rejects "1x1.sbatch: unknown LAUNCHER=mpiexec; choose mpirun or srun" LAUNCHER=mpiexec
check "no data set" rejects \
  "1x1.sbatch: no data set nowhere on node0; run make data, or name its folder: DATA=DIR sbatch …" DATA=nowhere
check "another folder than the project's" rejects_another_folder
check "down.sh leaves nothing, and no process" nothing_is_left
check "down.sh again" "$here/down.sh"
exit "$failed"
