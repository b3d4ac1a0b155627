/* All-reduces whose sums are checked: allreduce BYTES ROUNDS. Rank 0 prints a line after each one. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: allreduce BYTES ROUNDS\n");
        return 2;
    }
    int count = atoi(argv[1]) / (int)sizeof(float), rounds = atoi(argv[2]), rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    float *data = malloc(count * sizeof *data);
    for (int i = 1; i <= rounds; i++) {
        for (int k = 0; k < count; k++) data[k] = 1;
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        for (int k = 0; k < count; k++)
            if (data[k] != (float)size) MPI_Abort(MPI_COMM_WORLD, 1);
        if (rank == 0) {
            printf("round %d\n", i);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    return 0;
}
