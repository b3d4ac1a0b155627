# Where Slurm's files are and which process keeps a node; read by the other
# scripts here, and reads the names of the nodes from those in tests/cluster.
# shellcheck shell=bash disable=SC2034
cluster=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")/cluster
# shellcheck source-path=SCRIPTDIR source=../cluster/common.sh
. "$cluster/common.sh"

# Settings, logs, job queue and key: all that is on disk, and none of it
# outlives down.sh. Sockets and spools lie in each node's own /tmp.
state=$project/target/slurm
settings=$state/slurm.conf

require_slurm() {
  require_tools
  # Daemons may lie where a user's PATH does not lead.
  PATH=$PATH:/usr/sbin:/sbin
  local tool
  for tool in slurmctld:slurm-wlm slurmd:slurm-wlm srun:slurm-wlm munged:munge; do
    command -v "${tool%:*}" >/dev/null || die "no ${tool%:*} here; run scripts/setup.sh --all"
  done
}

# Process id of a node's slurmd, in whose file systems everything has to run.
slurmd_of() {
  local pid
  pid=$(cat "$state/$1.pid" 2>/dev/null) &&
    [ "/run/netns/$(namespace_of "$1")" -ef "/proc/$pid/ns/net" ] && echo "$pid"
}
