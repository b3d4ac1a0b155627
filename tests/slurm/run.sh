#!/usr/bin/env bash
# Runs a command on node0. There, Slurm's commands can reach the daemons, and see the same files as jobs:
#
#   tests/slurm/run.sh sbatch jobs/2x2.sbatch
#   tests/slurm/run.sh squeue
#
# Jobs that sbatch submits inherit this command's environment.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"
require_slurm
[ $# -gt 0 ] || die "usage: run.sh COMMAND..."
pid=$(slurmd_of "${hosts[0]}") || die "Slurm is not up; run tests/slurm/up.sh"
! out_of_sight "$PWD" || die "$PWD is hidden on a node, which has its own /tmp; start from another folder"

setting() { # setting NAME VALUE: unless the caller has set it
  local name=OMPI_MCA_$1
  export "$name=${!name-$2}"
}
# The same settings as in tests/cluster/mpirun.sh, which gives the reasons.
setting btl self,vader,tcp
setting btl_tcp_if_include "$subnet"
setting oob_tcp_if_include "$subnet"
setting btl_tcp_links 2
setting mpi_yield_when_idle 1
setting oob_tcp_keepalive_time 2
setting oob_tcp_keepalive_intvl 1
setting oob_tcp_keepalive_probes 3
# Jobs run as root on these nodes.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export SLURM_CONF=$settings TMPDIR=/tmp

# The working directory is set again, because the inherited one is in the outer mount namespace. Each command
# is an exec, so that signals reach COMMAND.
# shellcheck disable=SC2016
exec nsenter --target "$pid" --net --uts --ipc --mount \
  sh -e -c 'cd "$1"; shift; exec "$@"' sh "$PWD" "$@"
