#!/usr/bin/env bash
# cargo, with the MPI of $MPI (openmpi or mpich): cargo.sh ARGS...
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=mpi.sh
. "$(dirname "$(readlink -f "$0")")/mpi.sh"
mpicc=$(mpi_command mpicc)
# Set only if the plain mpicc belongs to another MPI, so that builds with and without
# this script share their artifacts.
if [ "$(readlink -f "$(command -v "$mpicc")")" != "$(readlink -f "$(command -v mpicc)")" ]; then
  export MPICC=$mpicc
fi
exec cargo "$@"
