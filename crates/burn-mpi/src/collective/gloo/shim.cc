// A minimal C interface to gloo for burn-mpi.
//
// No exception leaves this file: a function that can fail returns 0 on success. On failure it writes gloo's
// message to `error` and returns 1. Buffers belong to the caller and are in use until the function returns.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/scatter.h>

#include "gathers.h"
#include "mesh.h"
#include "sums.h"

namespace {

// gloo matches messages by their slot number. This prefix separates the slots of send and recv from the slots
// of gloo's collectives.
constexpr uint64_t kDirectSlots = uint64_t{0x40} << 56;

// Maximum bytes of an error's text, including the terminating zero.
constexpr size_t kErrorBytes = 1024;

template <typename Call>
int guarded(char* error, Call call) {
  std::string text;
  try {
    call();
    return 0;
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {
    text = "an exception without a message";
  }
  if (error != nullptr) {
    const size_t length = std::min(kErrorBytes - 1, text.size());
    std::memcpy(error, text.data(), length);
    error[length] = 0;
  }
  return 1;
}

char* bytes_of(const void* buffer) { return static_cast<char*>(const_cast<void*>(buffer)); }

}  // namespace

struct burn_mpi_gloo {
  std::shared_ptr<Mesh> mesh;
};

extern "C" {

int burn_mpi_gloo_listen(const char* address, int rank, int size, uint64_t timeout_ms,
                        burn_mpi_gloo** out, char* error) {
  return guarded(error, [&] {
    auto mesh = std::make_shared<Mesh>(rank, size);
    mesh->listen(address, std::chrono::milliseconds(timeout_ms));
    *out = new burn_mpi_gloo{std::move(mesh)};
  });
}

// Writes the addresses to `out`, a buffer of `capacity` bytes, and their total size in bytes to `length`. If
// the size exceeds `capacity`, only the first `capacity` bytes are written.
int burn_mpi_gloo_addresses(burn_mpi_gloo* self, char* out, size_t capacity, size_t* length,
                           char* error) {
  return guarded(error, [&] {
    const auto all = self->mesh->addresses();
    *length = all.size();
    std::memcpy(out, all.data(), std::min(capacity, all.size()));
  });
}

// `peers`: the address on which each peer listens for this rank, `length` bytes each.
int burn_mpi_gloo_connect(burn_mpi_gloo* self, const char* peers, size_t length, char* error) {
  return guarded(error, [&] { self->mesh->connect(peers, length); });
}

void burn_mpi_gloo_free(burn_mpi_gloo* self) {
  guarded(nullptr, [&] { delete self; });
}

int burn_mpi_gloo_version() { return GLOO_VERSION; }

// One call. `call` is its number in the switch below, `root` the root or the peer, `algorithm` the algorithm
// of an all-reduce (0 ring, 1 bcube, 2 halving-doubling), `width` the bytes per value, and `add` the addition
// of values.
struct burn_mpi_gloo_run {
  int call;
  int root;
  int algorithm;
  uint32_t tag;
  size_t width;
  const void* from;
  size_t from_bytes;
  void* to;
  size_t to_bytes;
  Add add;
};

int burn_mpi_gloo_call(burn_mpi_gloo* self, const burn_mpi_gloo_run* run, char* error) {
  return guarded(error, [&] {
    const auto& mesh = self->mesh;
    char* from = bytes_of(run->from);
    char* to = bytes_of(run->to);
    // Calls `body` with a zero of the unsigned type that is as wide as the values. gloo needs only the width
    // of the values, because `add` does the arithmetic.
    const auto of_width = [&](auto body) {
      run->width == 2 ? body(uint16_t{}) : run->width == 4 ? body(uint32_t{}) : body(uint64_t{});
    };
    const size_t count = run->to_bytes / run->width;
    switch (run->call) {
      case 0: {
        gloo::BroadcastOptions options(mesh);
        options.setOutput(to, run->to_bytes);
        options.setRoot(run->root);
        options.setTag(run->tag);
        return gloo::broadcast(options);
      }
      case 1:
        return of_width([&](auto zero) {
          using T = decltype(zero);
          if (run->algorithm == 2) {
            return halvingDoubling<T>(mesh, to, count, run->add, run->tag);
          }
          using Algorithm = gloo::detail::AllreduceOptionsImpl;
          const auto chosen = run->algorithm == 0 ? Algorithm::RING : Algorithm::BCUBE;
          allreduce<T>(mesh, to, count, chosen, run->add, run->tag);
        });
      case 2:
        return of_width([&](auto zero) {
          reduce<decltype(zero)>(mesh, to, count, run->root, run->add, run->tag);
        });
      case 3:
        return allgather(mesh, from, run->from_bytes, to, run->tag);
      case 4: {
        gloo::GatherOptions options(mesh);
        options.setInput(from, run->from_bytes);
        if (mesh->rank == run->root) {
          options.setOutput(to, run->to_bytes);
        }
        options.setRoot(run->root);
        options.setTag(run->tag);
        return gloo::gather(options);
      }
      case 5: {
        gloo::ScatterOptions options(mesh);
        if (mesh->rank == run->root) {
          std::vector<char*> parts;
          for (int rank = 0; rank < mesh->size; rank++) {
            parts.push_back(from + run->to_bytes * rank);
          }
          options.setInputs(parts, run->to_bytes);
        }
        options.setOutput(to, run->to_bytes);
        options.setRoot(run->root);
        options.setTag(run->tag);
        return gloo::scatter(options);
      }
      case 6: {
        gloo::AlltoallOptions options(mesh);
        options.setInput(from, run->from_bytes);
        options.setOutput(to, run->to_bytes);
        options.setTag(run->tag);
        return gloo::alltoall(options);
      }
      case 7: {
        gloo::BarrierOptions options(mesh);
        options.setTag(run->tag);
        return gloo::barrier(options);
      }
      case 8: {
        auto unbound = mesh->createUnboundBuffer(from, run->from_bytes);
        unbound->send(run->root, kDirectSlots | run->tag);
        return check(unbound->waitSend(mesh->getTimeout()));
      }
      case 9: {
        auto unbound = mesh->createUnboundBuffer(to, run->to_bytes);
        unbound->recv(run->root, kDirectSlots | run->tag);
        return check(unbound->waitRecv(mesh->getTimeout()));
      }
      default:
        throw std::logic_error("unknown call number");
    }
  });
}

}  // extern "C"
