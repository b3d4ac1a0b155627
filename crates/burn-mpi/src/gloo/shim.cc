// A C interface over gloo, as small as mpiburn needs it.
//
// No exception leaves this file: every function returns 0, or 1 with gloo's
// words in `error`. Buffers belong to the caller and are in use until the
// function returns.

#include <sched.h>

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
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

namespace {

// Adds `n` elements: out = a + b, where the three may be the same memory.
using Add = void (*)(void*, const void*, const void*, size_t);

// Where gloo puts the messages of send and recv, away from its collectives.
constexpr uint64_t kDirectSlots = uint64_t{0x40} << 56;

// Sums at most this many bytes at once: gloo's older classes count in int.
constexpr size_t kPieceBytes = size_t{1} << 30;

// Threads that are created while one of these lives do not push another thread
// off its core when they wake. gloo's own thread wakes while the sending thread
// is still inside send and holds its connection; it then tries that lock again
// and again, and where the two share a core, as under `mpirun --bind-to core`,
// the sender goes on with the next tick only: 4 ms for each message.
class PoliteThreads {
 public:
  PoliteThreads() : changed_(sched_getscheduler(0) == SCHED_OTHER && set(SCHED_BATCH)) {}
  ~PoliteThreads() {
    if (changed_) {
      set(SCHED_OTHER);
    }
  }

 private:
  static bool set(int policy) {
    const sched_param priority{};
    return sched_setscheduler(0, policy, &priority) == 0;
  }

  const bool changed_;
};

// A context whose addresses travel by other means than gloo's stores: gloo
// as Debian ships it has no rendezvous over MPI.
class Mesh : public gloo::Context {
 public:
  Mesh(int rank, int size) : gloo::Context(rank, size) {}

  void listen(const std::string& address, std::chrono::milliseconds timeout) {
    gloo::transport::tcp::attr attr;
    attr.hostname = address;
    {
      const PoliteThreads polite;
      device_ = gloo::transport::tcp::CreateDevice(attr);
    }
    setTimeout(timeout);
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(timeout);
    for (int peer = 0; peer < size; peer++) {
      if (peer != rank) {
        transportContext_->createPair(peer);
      }
    }
  }

  // One address a peer, all of one length, in rank order; this rank's own
  // place is zeros.
  std::vector<char> addresses() {
    std::vector<char> all;
    for (int peer = 0; peer < size; peer++) {
      if (peer != rank) {
        const auto one = getPair(peer)->address().bytes();
        all.resize(one.size() * size);
        std::memcpy(&all[one.size() * peer], one.data(), one.size());
      }
    }
    return all;
  }

  void connect(const char* peers, size_t length) {
    for (int peer = 0; peer < size; peer++) {
      if (peer != rank) {
        const char* at = peers + length * peer;
        getPair(peer)->connect(std::vector<char>(at, at + length));
      }
    }
  }

  // Slots are ints, and each halving-doubling takes some: from far on they
  // are used anew. All ranks take equally many, so they turn back together.
  void turnSlotsBack() {
    if (slot_ > (1 << 28)) {
      slot_ = 0;
    }
  }
};

// gloo's class takes a function without state, so the addition of the call
// under way lies beside it. It is called on the calling thread only.
thread_local Add currentAdd = nullptr;

template <typename T>
void addInPlace(T* sum, const T* other, size_t n) {
  currentAdd(sum, sum, other, n);
}

template <typename T>
class HalvingDoubling : public gloo::AllreduceHalvingDoubling<T> {
 public:
  using gloo::AllreduceHalvingDoubling<T>::AllreduceHalvingDoubling;

  // The last notices to each peer are not waited for by run(), and their
  // buffers end with this object: each went out twice.
  void drain() {
    for (auto& notice : this->sendNotificationBufs_) {
      notice->waitSend();
      notice->waitSend();
    }
  }
};

template <typename T>
void halvingDoubling(const std::shared_ptr<Mesh>& mesh, void* buffer, size_t count, Add add,
                     uint32_t tag) {
  currentAdd = add;
  const gloo::ReductionFunction<T> function(gloo::CUSTOM, addInPlace<T>);
  const size_t most = kPieceBytes / sizeof(T);
  for (size_t at = 0; at < count; at += most) {
    mesh->turnSlotsBack();
    std::vector<T*> pointers{static_cast<T*>(buffer) + at};
    HalvingDoubling<T> algorithm(
        mesh, pointers, static_cast<int>(std::min(most, count - at)), &function);
    try {
      // What comes in before its buffer is there makes gloo's thread spin, and
      // takes the core from a rank that is still computing. So all wait here
      // until all buffers are there.
      gloo::BarrierOptions ready(mesh);
      ready.setTag(tag);
      gloo::barrier(ready);
      algorithm.run();
      algorithm.drain();
    } catch (...) {
      // Other peers may still be sending into the buffers that end here.
      mesh->closeConnections();
      throw;
    }
  }
}

template <typename T>
void allreduce(const std::shared_ptr<Mesh>& mesh, void* buffer, size_t count,
               gloo::AllreduceOptions::Algorithm algorithm, Add add, uint32_t tag) {
  gloo::AllreduceOptions options(mesh);
  options.setAlgorithm(algorithm);
  options.setOutput(static_cast<T*>(buffer), count);
  options.setReduceFunction(add);
  options.setTag(tag);
  gloo::allreduce(options);
}

template <typename T>
void reduce(const std::shared_ptr<Mesh>& mesh, void* buffer, size_t count, int root, Add add,
            uint32_t tag) {
  gloo::ReduceOptions options(mesh);
  options.setOutput(static_cast<T*>(buffer), count);
  options.setRoot(root);
  options.setReduceFunction(add);
  options.setTag(tag);
  gloo::reduce(options);
}

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

// What waiting for a message returned: false where it was called off.
void check(bool done) {
  if (!done) {
    throw std::runtime_error("the operation was called off");
  }
}

char* bytes_of(const void* buffer) { return static_cast<char*>(const_cast<void*>(buffer)); }

}  // namespace

struct mpiburn_gloo {
  std::shared_ptr<Mesh> mesh;
};

extern "C" {

int mpiburn_gloo_listen(const char* address, int rank, int size, uint64_t timeout_ms,
                        mpiburn_gloo** out, char* error, size_t room) {
  return guarded(error, room, [&] {
    auto mesh = std::make_shared<Mesh>(rank, size);
    mesh->listen(address, std::chrono::milliseconds(timeout_ms));
    *out = new mpiburn_gloo{std::move(mesh)};
  });
}

// Writes the addresses to `out`, which has room for `capacity` bytes, and
// their number of bytes to `length`, also where it is more than the capacity.
int mpiburn_gloo_addresses(mpiburn_gloo* self, char* out, size_t capacity, size_t* length,
                           char* error, size_t room) {
  return guarded(error, room, [&] {
    const auto all = self->mesh->addresses();
    *length = all.size();
    std::memcpy(out, all.data(), std::min(capacity, all.size()));
  });
}

// `peers`: what each peer listens on for this rank, `length` bytes each.
int mpiburn_gloo_connect(mpiburn_gloo* self, const char* peers, size_t length, char* error,
                         size_t room) {
  return guarded(error, room, [&] { self->mesh->connect(peers, length); });
}

void mpiburn_gloo_free(mpiburn_gloo* self) {
  guarded(nullptr, 0, [&] { delete self; });
}

// `algorithm`: 0 ring, 1 bcube, 2 halving-doubling. `width`: bytes an element.
int mpiburn_gloo_allreduce(mpiburn_gloo* self, void* buffer, size_t count, size_t width,
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

int mpiburn_gloo_reduce(mpiburn_gloo* self, void* buffer, size_t count, size_t width, int root,
                        Add add, uint32_t tag, char* error, size_t room) {
  return guarded(error, room, [&] {
    const auto each = [&](auto zero) {
      reduce<decltype(zero)>(self->mesh, buffer, count, root, add, tag);
    };
    width == 2 ? each(uint16_t{}) : width == 4 ? each(uint32_t{}) : each(uint64_t{});
  });
}

int mpiburn_gloo_broadcast(mpiburn_gloo* self, void* buffer, size_t bytes, int root, uint32_t tag,
                           char* error, size_t room) {
  return guarded(error, room, [&] {
    gloo::BroadcastOptions options(self->mesh);
    options.setOutput(bytes_of(buffer), bytes);
    options.setRoot(root);
    options.setTag(tag);
    gloo::broadcast(options);
  });
}

// `bytes` from each rank; `all` has room for all ranks'.
int mpiburn_gloo_allgather(mpiburn_gloo* self, const void* mine, size_t bytes, void* all,
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
int mpiburn_gloo_gather(mpiburn_gloo* self, const void* mine, size_t bytes, void* all, int root,
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
int mpiburn_gloo_scatter(mpiburn_gloo* self, const void* all, size_t bytes, void* mine, int root,
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
int mpiburn_gloo_alltoall(mpiburn_gloo* self, const void* from, void* to, size_t bytes,
                          uint32_t tag, char* error, size_t room) {
  return guarded(error, room, [&] {
    gloo::AlltoallOptions options(self->mesh);
    options.setInput(bytes_of(from), bytes);
    options.setOutput(bytes_of(to), bytes);
    options.setTag(tag);
    gloo::alltoall(options);
  });
}

int mpiburn_gloo_barrier(mpiburn_gloo* self, uint32_t tag, char* error, size_t room) {
  return guarded(error, room, [&] {
    gloo::BarrierOptions options(self->mesh);
    options.setTag(tag);
    gloo::barrier(options);
  });
}

int mpiburn_gloo_send(mpiburn_gloo* self, const void* buffer, size_t bytes, int peer, uint32_t tag,
                      char* error, size_t room) {
  return guarded(error, room, [&] {
    auto unbound = self->mesh->createUnboundBuffer(bytes_of(buffer), bytes);
    unbound->send(peer, kDirectSlots | tag);
    check(unbound->waitSend(self->mesh->getTimeout()));
  });
}

int mpiburn_gloo_recv(mpiburn_gloo* self, void* buffer, size_t bytes, int peer, uint32_t tag,
                      char* error, size_t room) {
  return guarded(error, room, [&] {
    auto unbound = self->mesh->createUnboundBuffer(bytes_of(buffer), bytes);
    unbound->recv(peer, kDirectSlots | tag);
    check(unbound->waitRecv(self->mesh->getTimeout()));
  });
}

}  // extern "C"
