#!/usr/bin/env bash
# Starts an MPI program on the nodes by srun, without a batch script:
#
#   tests/slurm/srun.sh 1x1|1x2|2x1|2x2 PROGRAM ARGS...
#
# NxC is N nodes with C ranks on each. MPI=mpich is for programs of MPICH, which
# meet srun by pmi2 rather than pmix; SRUN_MPI names another way. More options of
# srun go into $SRUN_OPTIONS, split at spaces; they win.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$here/common.sh"
usage="usage: srun.sh 1x1|1x2|2x1|2x2 PROGRAM ARGS..."
[[ ${1-} =~ ^([12])x([12])$ ]] || die "$usage"
shape=(-N "${BASH_REMATCH[1]}" --ntasks-per-node="${BASH_REMATCH[2]}")
shift
[ $# -gt 0 ] || die "$usage"
for arg in "$@"; do
  ! out_of_sight "${arg##*=}" || die "$arg: every node has its own /tmp; name a path outside it"
done
[ "${MPI-}" = mpich ] && meet=pmi2 || meet=pmix
read -ra options <<<"${SRUN_OPTIONS-}"
exec "$here/run.sh" srun "${shape[@]}" --mpi="${SRUN_MPI:-$meet}" --cpu-bind=cores \
  --kill-on-bad-exit=1 "${options[@]}" "$@"
