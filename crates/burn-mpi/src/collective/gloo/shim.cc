// A minimal C interface to gloo for burn-mpi.
//
// No exception leaves this file: every function returns 0, or 1 with gloo's
// message in `error`. Buffers belong to the caller and are in use until the
// function returns.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/scatter.h>

#include "mesh.h"
#include "sums.h"

namespace {

// Slot prefix of send and recv messages, distinct from that of collectives.
constexpr uint64_t kDirectSlots = uint64_t{0x40} << 56;

template <typename Call>
int guarded(char* error, size_t room, Call call) {
  std::string text;
  try {
    call();
    return 0;
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {
    text = "an exception without text";
  }
  if (room > 0) {
    const size_t length = std::min(room - 1, text.size());
    std::memcpy(error, text.data(), length);
    error[length] = 0;
  }
  return 1;
}

// The result of waiting for a message: false if the wait was aborted.
void check(bool done) {
  if (!done) {
    throw std::runtime_error("the operation was called off");
  }
}

char* bytes_of(const void* buffer) { return static_cast<char*>(const_cast<void*>(buffer)); }

}  // namespace

struct burn_mpi_gloo {
  std::shared_ptr<Mesh> mesh;
};

extern "C" {

int burn_mpi_gloo_listen(const char* address, int rank, int size, uint64_t timeout_ms,
                        burn_mpi_gloo** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    auto mesh = std::make_shared<Mesh>(rank, size);
    mesh->listen(address, std::chrono::milliseconds(timeout_ms));
    *out = new burn_mpi_gloo{std::move(mesh)};
  });
}

// Writes the addresses to `out`, a buffer of `capacity` bytes, and their size
// in bytes to `length`, even if it exceeds the capacity.
int burn_mpi_gloo_addresses(burn_mpi_gloo* self, char* out, size_t capacity, size_t* length,
                           char* error, size_t room) {
  return guarded(error, room, [&] {
    const auto all = self->mesh->addresses();
    *length = all.size();
    std::memcpy(out, all.data(), std::min(capacity, all.size()));
  });
}

// `peers`: the address on which each peer listens for this rank, `length` bytes each.
int burn_mpi_gloo_connect(burn_mpi_gloo* self, const char* peers, size_t length, char* error,
                         size_t room) {
  return guarded(error, room, [&] { self->mesh->connect(peers, length); });
}

void burn_mpi_gloo_free(burn_mpi_gloo* self) {
  guarded(nullptr, 0, [&] { delete self; });
}

// `algorithm`: 0 ring, 1 bcube, 2 halving-doubling. `width`: bytes per element.
int burn_mpi_gloo_allreduce(burn_mpi_gloo* self, void* buffer, size_t count, size_t width,
                           int algorithm, Add add, uint32_t tag, char* error, size_t room) {
  return guarded(error, room, [&] {
    const auto each = [&](auto zero) {
      using T = decltype(zero);
      if (algorithm == 2) {
        halvingDoubling<T>(self->mesh, buffer, count, add, tag);
      } else {
        using Algorithm = gloo::detail::AllreduceOptionsImpl;
        const auto chosen = algorithm == 0 ? Algorithm::RING : Algorithm::BCUBE;
        allreduce<T>(self->mesh, buffer, count, chosen, add, tag);
      }
    };
    width == 2 ? each(uint16_t{}) : width == 4 ? each(uint32_t{}) : each(uint64_t{});
  });
}

int burn_mpi_gloo_reduce(burn_mpi_gloo* self, void* buffer, size_t count, size_t width, int root,
                        Add add, uint32_t tag, char* error, size_t room) {
  return guarded(error, room, [&] {
    const auto each = [&](auto zero) {
      reduce<decltype(zero)>(self->mesh, buffer, count, root, add, tag);
    };
    width == 2 ? each(uint16_t{}) : width == 4 ? each(uint32_t{}) : each(uint64_t{});
  });
}

int burn_mpi_gloo_broadcast(burn_mpi_gloo* self, void* buffer, size_t bytes, int root, uint32_t tag,
                           char* error, size_t room) {
  return guarded(error, room, [&] {
    gloo::BroadcastOptions options(self->mesh);
    options.setOutput(bytes_of(buffer), bytes);
    options.setRoot(root);
    options.setTag(tag);
    gloo::broadcast(options);
  });
}

// `bytes` from each rank; `all` holds those of all ranks.
int burn_mpi_gloo_allgather(burn_mpi_gloo* self, const void* mine, size_t bytes, void* all,
                           uint32_t tag, char* error, size_t room) {
  return guarded(error, room, [&] {
    gloo::AllgatherOptions options(self->mesh);
    options.setInput(bytes_of(mine), bytes);
    options.setOutput(bytes_of(all), bytes * self->mesh->size);
    options.setTag(tag);
    gloo::allgather(options);
  });
}

// `all` is written on the root only.
int burn_mpi_gloo_gather(burn_mpi_gloo* self, const void* mine, size_t bytes, void* all, int root,
                        uint32_t tag, char* error, size_t room) {
  return guarded(error, room, [&] {
    gloo::GatherOptions options(self->mesh);
    options.setInput(bytes_of(mine), bytes);
    if (self->mesh->rank == root) {
      options.setOutput(bytes_of(all), bytes * self->mesh->size);
    }
    options.setRoot(root);
    options.setTag(tag);
    gloo::gather(options);
  });
}

// `bytes` to each rank; `all` is read on the root only.
int burn_mpi_gloo_scatter(burn_mpi_gloo* self, const void* all, size_t bytes, void* mine, int root,
                         uint32_t tag, char* error, size_t room) {
  return guarded(error, room, [&] {
    gloo::ScatterOptions options(self->mesh);
    if (self->mesh->rank == root) {
      std::vector<char*> parts;
      for (int rank = 0; rank < self->mesh->size; rank++) {
        parts.push_back(bytes_of(all) + bytes * rank);
      }
      options.setInputs(parts, bytes);
    }
    options.setOutput(bytes_of(mine), bytes);
    options.setRoot(root);
    options.setTag(tag);
    gloo::scatter(options);
  });
}

// `bytes` over all ranks, the same in both buffers.
int burn_mpi_gloo_alltoall(burn_mpi_gloo* self, const void* from, void* to, size_t bytes,
                          uint32_t tag, char* error, size_t room) {
  return guarded(error, room, [&] {
    gloo::AlltoallOptions options(self->mesh);
    options.setInput(bytes_of(from), bytes);
    options.setOutput(bytes_of(to), bytes);
    options.setTag(tag);
    gloo::alltoall(options);
  });
}

int burn_mpi_gloo_version() { return GLOO_VERSION; }

int burn_mpi_gloo_barrier(burn_mpi_gloo* self, uint32_t tag, char* error, size_t room) {
  return guarded(error, room, [&] {
    gloo::BarrierOptions options(self->mesh);
    options.setTag(tag);
    gloo::barrier(options);
  });
}

int burn_mpi_gloo_send(burn_mpi_gloo* self, const void* buffer, size_t bytes, int peer, uint32_t tag,
                      char* error, size_t room) {
  return guarded(error, room, [&] {
    auto unbound = self->mesh->createUnboundBuffer(bytes_of(buffer), bytes);
    unbound->send(peer, kDirectSlots | tag);
    check(unbound->waitSend(self->mesh->getTimeout()));
  });
}

int burn_mpi_gloo_recv(burn_mpi_gloo* self, void* buffer, size_t bytes, int peer, uint32_t tag,
                      char* error, size_t room) {
  return guarded(error, room, [&] {
    auto unbound = self->mesh->createUnboundBuffer(bytes_of(buffer), bytes);
    unbound->recv(peer, kDirectSlots | tag);
    check(unbound->waitRecv(self->mesh->getTimeout()));
  });
}

}  // extern "C"
