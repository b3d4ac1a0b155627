#!/usr/bin/env bash
# Runs cargo for the MPI of $MPI (openmpi or mpich): cargo.sh ARGS...
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=mpi.sh
. "$(dirname "$(readlink -f "$0")")/mpi.sh"
mpicc=$(mpi_command mpicc)
# MPICC is set only if the plain mpicc belongs to another MPI. A changed MPICC would compile again, so builds
# with and without this script share their artifacts.
if [ "$(readlink -f "$(command -v "$mpicc")")" != "$(readlink -f "$(command -v mpicc)")" ]; then
  export MPICC=$mpicc
fi
exec cargo "$@"
