#!/usr/bin/env bash
# cargo, with the MPI of $MPI (openmpi or mpich): cargo.sh ARGS...
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=mpi.sh
. "$(dirname "$(readlink -f "$0")")/mpi.sh"
mpicc=$(mpi_command mpicc)
# Set only where the plain mpicc is another one's: builds with and without this
# script then share what is built.
if [ "$(readlink -f "$(command -v "$mpicc")")" != "$(readlink -f "$(command -v mpicc)")" ]; then
  export MPICC=$mpicc
fi
exec cargo "$@"
