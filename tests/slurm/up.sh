#!/usr/bin/env bash
# A real Slurm on the two nodes of tests/cluster/up.sh: a slurmctld on node0, and
# a slurmd and a munged on both, with a key and settings of their own.
#
#   RATE=1gbit DELAY=0.1ms tests/slurm/up.sh
#
# It makes the nodes, too, and replaces those that are up.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"
require_slurm
[[ $project != *' '* ]] || die "slurm.conf takes no path with a space in it: $project"

"$here/down.sh"
trap '"$here/down.sh"' EXIT
"$cluster/up.sh"
mkdir -p "$state/slurmctld"
(umask 077 && head -c 1024 /dev/urandom >"$state/munge.key")

# What slurmd itself finds, as it refuses anything else: each node takes the
# whole machine for its own, but for the memory.
machine=$(slurmd -C | sed -n 's/^NodeName=[^ ]* //p')
[[ $machine =~ ^(.*)\ RealMemory=([0-9]+)$ ]] || die "slurmd -C says nothing of this machine: $machine"
machine="${BASH_REMATCH[1]} RealMemory=$((BASH_REMATCH[2] / 2))"

# cred_expire is also how long a requeued job waits, 120 s if left alone; the
# scheduler's intervals are shorter than usual for the same reason: tests wait.
# Job numbers go on from cluster to cluster, as results are named after them.
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
SlurmdTimeout=10
KillWait=10
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
NodeName=${hosts[0]} NodeAddr=$(address_of "${hosts[0]}") $machine
NodeName=${hosts[1]} NodeAddr=$(address_of "${hosts[1]}") $machine
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE
END

export SLURM_CONF=$settings
for host in "${hosts[@]}"; do
  # No exec on the way forks, so that this is the process id of slurmd.
  setsid "$cluster/enter.sh" "$host" "$here/node.sh" </dev/null >"$state/$host.log" 2>&1 &
  echo $! >"$state/$host.pid"
done

said=
for _ in {1..100}; do
  said=$("$here/run.sh" sinfo -h -o '%T %D' 2>&1) || true
  [ "$said" = "idle ${#hosts[@]}" ] && break
  sleep 0.1
done
if [ "$said" != "idle ${#hosts[@]}" ]; then
  tail -n 3 "$state"/*.log >&2
  die "Slurm did not come up; the ends of its logs are above, sinfo says: ${said##*$'\n'}"
fi
trap - EXIT
echo "up: Slurm on ${hosts[*]}; try tests/slurm/run.sh sbatch jobs/2x2.sbatch"
