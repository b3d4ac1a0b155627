/* Times an all-reduce: allreduce BYTES ROUNDS; rank 0 prints the median in ms. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

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
    double *times = malloc(rounds * sizeof *times);
    for (int i = -1; i < rounds; i++) { /* the first round connects and is not timed */
        for (int k = 0; k < count; k++) data[k] = 1;
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0) times[i] = 1e3 * (MPI_Wtime() - start);
        for (int k = 0; k < count; k++)
            if (data[k] != (float)size) MPI_Abort(MPI_COMM_WORLD, 1);
    }
    if (rank == 0) {
        qsort(times, rounds, sizeof *times, ascending);
        printf("%.1f\n", times[rounds / 2]);
    }
    MPI_Finalize();
    return 0;
}
