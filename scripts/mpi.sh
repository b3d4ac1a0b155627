# Selects the MPI. $MPI is openmpi (the default) or mpich. Other scripts source this file.
# shellcheck shell=bash

MPI=${MPI:-openmpi}
case $MPI in
  openmpi) mpi_says='Open MPI|OpenRTE' mpi_name='Open MPI' mpi_packages='openmpi-bin libopenmpi-dev' ;;
  mpich) mpi_says='HYDRA|MPICH' mpi_name=MPICH mpi_packages='mpich libmpich-dev' ;;
  *)
    echo "${0##*/}: unknown MPI=$MPI: choose openmpi or mpich" >&2
    exit 1
    ;;
esac
export MPI

# Prints the name of this MPI's mpirun or mpicc. If both MPIs are installed, Debian names the commands
# mpirun.openmpi and mpirun.mpich; the plain name mpirun may be either.
mpi_command() { # mpi_command mpirun|mpicc
  local version
  if command -v "$1.$MPI" >/dev/null; then
    echo "$1.$MPI"
  elif command -v "$1" >/dev/null && version=$(mpirun --version 2>&1) && grep -qE "$mpi_says" <<<"$version"; then
    echo "$1"
  else
    echo "${0##*/}: no $1 of $mpi_name found (apt-get install $mpi_packages); run make setup MPI=$MPI" >&2
    return 1
  fi
}
