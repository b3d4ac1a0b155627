# Slurm's files, and the process of each node. The other scripts here source this file. It sources the names
# of the nodes from tests/cluster.
# shellcheck shell=bash disable=SC2034
cluster=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")/cluster
# shellcheck source-path=SCRIPTDIR source=../cluster/common.sh
. "$cluster/common.sh"

# Settings, logs, job queue and key: all files on disk, which down.sh removes. Sockets and spool folders are
# in each node's private /tmp.
state=$project/target/slurm
settings=$state/slurm.conf

require_slurm() {
  require_tools
  # Daemons may be outside a user's PATH.
  PATH=$PATH:/usr/sbin:/sbin
  local tool
  for tool in slurmctld:slurm-wlm slurmd:slurm-wlm srun:slurm-wlm munged:munge; do
    command -v "${tool%:*}" >/dev/null || die "no ${tool%:*} here; run scripts/setup.sh --all"
  done
}

# Prints the process id of a node's slurmd. Commands on the node run in this process's mount namespace.
slurmd_of() {
  local pid
  pid=$(cat "$state/$1.pid" 2>/dev/null) &&
    [ "/run/netns/$(namespace_of "$1")" -ef "/proc/$pid/ns/net" ] && echo "$pid"
}
