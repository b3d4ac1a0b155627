#!/usr/bin/env bash
# Trains on two emulated nodes, over mpi and gloo and with a link that breaks. Needs the builds for Open MPI
# and MPICH:
#
#   make build && make build MPI=mpich && tests/cluster/train.sh [openmpi|mpich]...
#
# Functions are called by name, through `check`.
# shellcheck disable=SC2317
set -uo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
# shellcheck source-path=SCRIPTDIR source=testing.sh
. "$(dirname "$(readlink -f "$0")")/testing.sh"

[ $# -gt 0 ] || set -- openmpi mpich
data=$work/digits
samples=1600
gradient_bytes=$((4266 * 4))
undisturbed=

binary() { # the program for the MPI in $MPI
  case $MPI in
    openmpi) echo target/release/mpiburn ;;
    *) echo "target-$MPI/release/mpiburn" ;;
  esac
}

train() { # train TOPOLOGY OPTION...
  local topology=$1
  shift
  on "$topology" "$(binary)" -q train --data-root "$data" "$@"
}

# Prints the value of a field in a run's run.json.
field() { # field RUN NAME
  sed -n "s/^  *\"$2\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" "$work/$1/run.json" | head -n 1
}

is() { # is RUN NAME VALUE
  [ "$(field "$1" "$2")" = "$3" ] || { echo "$2 is $(field "$1" "$2"), not $3"; return 1; }
}

makes_data() { target/release/mpiburn -q data digits --out "$data" --train "$samples" --test 200; }

# Each node must send at least the gradients of every step.
trains() { # trains TOPOLOGY BACKEND RANKS OVERSUBSCRIBED
  local run=$MPI-$1-$2 before after steps host sent least
  before=("$(sent_by node0)" "$(sent_by node1)")
  train "$1" --epochs 1 --backend "$2" --out "$work/$run" || return
  after=("$(sent_by node0)" "$(sent_by node1)")
  steps=$((samples / 32 / $3))
  least=$((steps * gradient_bytes))
  note=
  for host in 0 1; do
    sent=$((after[host] - before[host]))
    note+="node$host sent $((sent / 1000)) kB, "
    [ "$sent" -ge "$least" ] || { echo "node$host sent $sent bytes, which is less than $least"; return 1; }
  done
  note+="$steps steps' gradients are $((least / 1000)) kB"
  is "$run" status completed && is "$run" topology "$1" && is "$run" backend "$2" &&
    is "$run" oversubscribed "$4" || return
  tr -d ' \n' <"$work/$run/run.json" | grep -E '"hosts":\[("node0",){'"${1#*x}"'}("node1",?){'"${1#*x}"'}\]' >/dev/null ||
    { echo "run.json does not name both nodes"; return 1; }
  case $MPI in
    openmpi) grep -q '"mpi": "Open MPI' "$work/$run/run.json" ;;
    mpich) grep -q '"mpi": "MPICH' "$work/$run/run.json" ;;
  esac || { echo "run.json does not name $MPI"; return 1; }
}

# Two ranks have only one order of summation, so the weights must be the same over every transport.
weights_are_equal() { # weights_are_equal RUN...
  local run
  note=$(field "$1" weights_sha256)
  note=${note:0:16}
  [ -n "$note" ] || return
  for run in "$@"; do is "$run" weights_sha256 "$(field "$1" weights_sha256)" || return; done
}

# On two machines, two ranks sum each bucket by exchanging halves of it.
trains_in_buckets() {
  local printed
  printed=$(train 2x1 -v --epochs 1 --bucket-mb 0.004 --out "$work/$MPI-2x1-buckets") || { echo "$printed"; return 1; }
  note=$(grep -oE '[2-9] buckets of .*, overlap active' <<<"$printed") || { echo "$printed"; return 1; }
}

# MPICH's ranks once waited for each other forever in MPI_Finalize, in one of three runs.
ends() {
  local runs=8 each
  for ((each = 0; each < runs; each++)); do
    train 2x2 --epochs 1 --train-samples 320 --backend "$([ $((each % 2)) = 0 ] && echo mpi || echo gloo)" || return
  done
  note="$runs runs"
}

overlong=(--epochs 40 --checkpoint-every 25)

# Succeeds if the run has a checkpoint, or if its job has ended.
is_under_way() { # is_under_way RUN JOB
  compgen -G "$work/$1/checkpoints/step-*" >/dev/null || ended "$2"
}

has_left() { [ -z "$(ip netns pids "$(namespace_of "$1")")" ]; } # has_left HOST

# Breaks node1's link after the first checkpoint. The job must end by itself: because a daemon of the MPI
# detects the failure, or at the deadline of the ranks' watchdog.
ends_when_cut() { # ends_when_cut BACKEND
  local run=$MPI-cut-$1 job status hangs=
  "$here/mpirun.sh" 2x1 "$(binary)" -q train --data-root "$data" "${overlong[@]}" --backend "$1" \
    --comm-timeout $((limit / 4)) --out "$work/$run" >"$work/output" 2>&1 &
  job=$!
  if ! await is_under_way "$run" "$job" || ended "$job"; then
    kill -KILL "$job"
    cat "$work/output"
    return 1
  fi
  "$here/link.sh" down node1
  await ended "$job" || hangs=1
  [ -z "$hangs" ] || kill -KILL "$job"
  wait "$job"
  status=$?
  "$here/link.sh" up node1
  cat "$work/output"
  note="exit $status"
  [ -z "$hangs" ] && [ "$status" -ne 0 ] || return
  ! is "$run" status completed >/dev/null || { echo "the run completed before the link broke"; return 1; }
  # Open MPI's daemons usually detect the failure first. With MPICH, the watchdog does.
  grep -qE 'lost communication with a remote daemon|exceeded the deadline .*missing: rank 1 on node1' "$work/output" ||
    { echo "no line names the failure"; return 1; }
  # The ranks on the isolated node must end by themselves too.
  await has_left node1
}

resumes() { # resumes BACKEND
  local run=$MPI-cut-$1
  on 2x1 "$(binary)" -q train --resume "$work/$run" || return
  is "$run" status completed || return
  note="$(field "$run" weights_sha256 | cut -c1-16)"
  is "$run" weights_sha256 "$undisturbed"
}

never_cut() {
  train 2x1 "${overlong[@]}" --out "$work/whole" && undisturbed=$(field whole weights_sha256) &&
    note=${undisturbed:0:16} && [ -n "$undisturbed" ]
}

check "the data set" makes_data
check "up.sh" env RATE=1gbit "$here/up.sh"
two_ranks=()
for MPI in "$@"; do
  export MPI
  for backend in mpi gloo; do
    check "$MPI: 2x1 over $backend" trains 2x1 $backend 2 "$([ "$(nproc --all)" -lt 2 ] && echo true || echo false)"
    check "$MPI: 2x2 over $backend" trains 2x2 $backend 4 "$([ "$(nproc --all)" -lt 4 ] && echo true || echo false)"
    two_ranks+=("$MPI-2x1-$backend")
  done
  check "$MPI: 2x1 in several buckets" trains_in_buckets
  two_ranks+=("$MPI-2x1-buckets")
  check "$MPI: 2x2 ends" ends
done
check "2x1 has the same weights over every transport" weights_are_equal "${two_ranks[@]}"
MPI=$1 check "an undisturbed run of 40 epochs" never_cut
for MPI in "$@"; do
  for backend in mpi gloo; do
    check "$MPI: a broken link ends a job over $backend" ends_when_cut $backend
    check "$MPI: --resume gives the weights of the undisturbed run" resumes $backend
  done
done
exit "$failed"
