/* The baseline of `mpiburn bench allreduce`: a plain loop around MPI_Allreduce,
 * in place, on f32, timed in the same way. Prints a line for each size:
 *
 *   bytes min_us median_us p99_us
 *
 * Usage: mpirun -n 2 allreduce ITERATIONS BYTES... */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Aligned to huge pages, and requests huge pages: one process reads the other's
 * memory, which is much slower with small pages. */
static void *allocate(size_t bytes) {
  const size_t page = 2 << 20;
  void *memory = NULL;
  if (bytes > page)
    bytes = (bytes + page - 1) / page * page;
  if (posix_memalign(&memory, bytes < page ? 64 : page, bytes)) {
    fprintf(stderr, "allreduce: no memory for %zu bytes\n", bytes);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  if (bytes >= page)
    madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

static void measure(long bytes, int iterations, int rank, int size) {
  int count = (int)(bytes / (long)sizeof(float));
  int warm_up = iterations / 10 > 5 ? iterations / 10 : 5;
  float *buffer = allocate(bytes);
  double *times = allocate(sizeof(double) * iterations);

  /* Written before the timing, so that all pages belong to this process. The timed
   * calls sum zeros, which stay zero. */
  for (int i = 0; i < count; i++)
    buffer[i] = (float)(i % 7 + 1);
  MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < count; i++) {
    if (buffer[i] != (float)(i % 7 + 1) * (float)size) {
      fprintf(stderr, "allreduce: a wrong sum\n");
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  memset(buffer, 0, bytes);

  for (int turn = 0; turn < warm_up + iterations; turn++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double started = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double time = MPI_Wtime() - started;
    if (turn >= warm_up)
      times[turn - warm_up] = time * 1e6;
  }

  /* The latency of a call is the mean of the ranks' latencies. */
  MPI_Allreduce(MPI_IN_PLACE, times, iterations, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) {
    for (int i = 0; i < iterations; i++)
      times[i] /= size;
    qsort(times, iterations, sizeof(double), ascending);
    int half = iterations / 2;
    double median = iterations % 2 ? times[half] : (times[half - 1] + times[half]) / 2;
    double p99 = times[(iterations * 99L + 99) / 100 - 1];
    printf("%ld %.3f %.3f %.3f\n", bytes, times[0], median, p99);
  }
  free(buffer);
  free(times);
}

int main(int argc, char **argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int iterations = argc > 2 ? atoi(argv[1]) : 0;
  for (int i = 2; i < argc; i++) {
    long bytes = atol(argv[i]);
    if (iterations < 1 || bytes < 4 || bytes % 4 || bytes > 1L << 30) {
      iterations = 0;
      break;
    }
    measure(bytes, iterations, rank, size);
  }
  if (iterations < 1 && rank == 0)
    fprintf(stderr, "usage: allreduce ITERATIONS BYTES..., sizes being multiples of 4\n");
  MPI_Finalize();
  return iterations < 1 ? 2 : 0;
}
