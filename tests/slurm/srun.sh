#!/usr/bin/env bash
# Starts an MPI program on the nodes with srun, without a batch script:
#
#   tests/slurm/srun.sh 1x1|1x2|2x1|2x2 PROGRAM ARGS...
#
# NxC is N nodes with C ranks on each. MPI=mpich is for programs built for MPICH, which need pmi2 instead of
# pmix. SRUN_MPI selects another PMI. $SRUN_OPTIONS has further options of srun, split at spaces; they
# override the options below.
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
  ! out_of_sight "${arg##*=}" || die "$arg: every node has its own /tmp; use a path outside it"
done
[ "${MPI-}" = mpich ] && meet=pmi2 || meet=pmix
read -ra options <<<"${SRUN_OPTIONS-}"
exec "$here/run.sh" srun "${shape[@]}" --mpi="${SRUN_MPI:-$meet}" --cpu-bind=cores \
  --kill-on-bad-exit=1 "${options[@]}" "$@"
