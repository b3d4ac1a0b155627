/* MPI_IN_PLACE for the Rust bindings: a cast in mpi.h that binding generators
 * cannot translate. Each function is the MPI call of its name with the receive
 * buffer as its input, and returns that call's code. */
#include <mpi.h>

int burn_mpi_allreduce(void *buffer, int count, MPI_Datatype type, MPI_Op op,
                      MPI_Comm comm) {
  return MPI_Allreduce(MPI_IN_PLACE, buffer, count, type, op, comm);
}

int burn_mpi_iallreduce(void *buffer, int count, MPI_Datatype type, MPI_Op op,
                       MPI_Comm comm, MPI_Request *request) {
  return MPI_Iallreduce(MPI_IN_PLACE, buffer, count, type, op, comm, request);
}
