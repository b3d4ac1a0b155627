#!/usr/bin/env bash
# Starts a real Slurm on the two nodes of tests/cluster/up.sh: a slurmctld on node0, and a
# slurmd and a munged on both, with separate keys and settings.
#
#   RATE=1gbit DELAY=0.1ms tests/slurm/up.sh
#
# It creates the nodes as well, and replaces existing ones.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"
require_slurm
[[ $project != *' '* ]] || die "slurm.conf does not support a path with a space: $project"

"$here/down.sh"
trap '"$here/down.sh"' EXIT
"$cluster/up.sh"
mkdir -p "$state/slurmctld"
(umask 077 && head -c 1024 /dev/urandom >"$state/munge.key")

# The hardware that slurmd detects itself, because it rejects anything else: each node
# sees the whole machine. The memory is divided.
machine=$(slurmd -C | sed -n 's/^NodeName=[^ ]* //p')
[[ $machine =~ ^(.*)\ RealMemory=([0-9]+)$ ]] || die "slurmd -C has unexpected output: $machine"
machine="${BASH_REMATCH[1]} RealMemory=$((BASH_REMATCH[2] / 2))"

# cred_expire is also the delay of a requeued job, 120 s by default; the scheduler's
# intervals are short for the same reason: tests wait for them. Job ids continue from
# cluster to cluster, because results are named after them.
cat >"$settings" <<END
ClusterName=mpiburn
FirstJobId=$(($(date +%s) % 60000000 + 1))
SlurmctldHost=${hosts[0]}($(address_of "${hosts[0]}"))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=/tmp/munge.socket,cred_expire=5
StateSaveLocation=$state/slurmctld
SlurmdSpoolDir=/tmp/slurmd
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdTimeout=$limit
MessageTimeout=$((limit / 2))
KillWait=$((limit / 2))
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
NodeName=${hosts[0]} NodeAddr=$(address_of "${hosts[0]}") $machine
NodeName=${hosts[1]} NodeAddr=$(address_of "${hosts[1]}") $machine
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE
END

export SLURM_CONF=$settings
for host in "${hosts[@]}"; do
  # Every step is an exec without a fork, so this is the process id of slurmd.
  setsid "$cluster/enter.sh" "$host" "$here/node.sh" </dev/null >"$state/$host.log" 2>&1 &
  echo $! >"$state/$host.pid"
done

message=
all_idle() {
  message=$("$here/run.sh" sinfo -h -o '%T %D' 2>&1) && [ "$message" = "idle ${#hosts[@]}" ]
}
if ! await all_idle; then
  tail -n 3 "$state"/*.log >&2
  die "Slurm did not start; the ends of its logs are above, sinfo reports: ${message##*$'\n'}"
fi
trap - EXIT
echo "up: Slurm on ${hosts[*]}; try tests/slurm/run.sh sbatch jobs/2x2.sbatch"
