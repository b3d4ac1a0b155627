#!/usr/bin/env bash
# Starts a real Slurm on the two emulated nodes of tests/cluster/up.sh: slurmctld on node0, and slurmd and
# munged on both nodes. Its key and settings are separate from the machine's.
#
#   RATE=1gbit DELAY=0.1ms tests/slurm/up.sh
#
# It also creates the nodes, and replaces existing ones.
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

# The nodes have the hardware that slurmd detects, because slurmd rejects other values. Each node sees the
# whole machine; only the memory is divided.
machine=$(slurmd -C | sed -n 's/^NodeName=[^ ]* //p')
[[ $machine =~ ^(.*)\ RealMemory=([0-9]+)$ ]] || die "slurmd -C has unexpected output: $machine"
machine="${BASH_REMATCH[1]} RealMemory=$((BASH_REMATCH[2] / 2))"

# Tests wait for requeued jobs. cred_expire is also the delay of a requeued job (120 s by default), so it is
# short here, and so are the scheduler's intervals. The first job id is taken from the clock: results are
# named after job ids, so ids of an earlier Slurm must not be used again.
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
  # Each step is an exec without a fork, so this is also the process id of slurmd.
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
