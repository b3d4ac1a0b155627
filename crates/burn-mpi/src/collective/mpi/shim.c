/* MPI_IN_PLACE for the Rust bindings: a cast in mpi.h that binding generators
 * cannot translate. */
#include <mpi.h>

const void *burn_mpi_in_place(void) { return MPI_IN_PLACE; }
