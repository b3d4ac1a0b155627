// A loop around gloo's ring all-reduce in plain C++. mpiburn's shim around the same call is compared with it.
// Prints `min median p99` in microseconds. The latency of a call is the mean of the ranks' latencies.
//
//   mpicxx -O3 -std=c++17 gloo_allreduce.cc -lgloo && mpirun -n 2 a.out CALLS BYTES FOLDER
//
// MPI starts the processes and synchronises them before each call. gloo exchanges its addresses through files
// in FOLDER.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc != 4) {
    std::fprintf(stderr, "usage: gloo_allreduce CALLS BYTES FOLDER\n");
    return 2;
  }
  const int calls = std::atoi(argv[1]);
  const size_t count = std::strtoul(argv[2], nullptr, 10) / sizeof(float);
  gloo::transport::tcp::attr attr;
  attr.iface = "lo";
  auto device = gloo::transport::tcp::CreateDevice(attr);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  gloo::rendezvous::FileStore store(argv[3]);
  context->connectFullMesh(store, device);

  std::vector<float> buffer(count, 1.0f);
  std::vector<double> latencies;
  for (int call = -10; call < calls; call++) {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setOutput(buffer.data(), buffer.size());
    options.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
    options.setTag(call + 10);
    MPI_Barrier(MPI_COMM_WORLD);
    auto began = std::chrono::steady_clock::now();
    gloo::allreduce(options);
    std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - began;
    double mean = took.count() / size;
    MPI_Allreduce(MPI_IN_PLACE, &mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (call >= 0) latencies.push_back(mean);
    // The buffer is set to 1 again, because repeated sums would overflow.
    std::fill(buffer.begin(), buffer.end(), 1.0f);
  }
  std::sort(latencies.begin(), latencies.end());
  if (rank == 0)
    std::printf("%.3f %.3f %.3f\n", latencies.front(), latencies[latencies.size() / 2],
                latencies[latencies.size() * 99 / 100]);
  MPI_Finalize();
  return 0;
}
