// gloo's connections between all ranks of a job. gloo usually exchanges the addresses of the ranks through a
// key-value store; here the caller exchanges them.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/tcp/device.h>

namespace {

// Threads that are created during the lifetime of this object do not preempt another thread when they wake.
// Without this class, gloo's thread can preempt a thread that is still inside send and holds the connection's
// lock. gloo's thread then spins on that lock. If the two threads share a core, as under
// `mpirun --bind-to core`, the sending thread continues only at the next scheduler tick: 4 ms per message.
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

// A gloo context. The caller exchanges the addresses, because Debian's gloo has no rendezvous over MPI.
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

  // Returns one address for each rank, in rank order: the address on which this rank listens for that rank.
  // All addresses have the same length. The address for this rank itself is zeros.
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

  // Restarts gloo's slot numbers at 0 before they overflow: they are ints, and each halving-doubling sum uses
  // new ones. All ranks use the same slot numbers, so they restart at the same operation.
  void turnSlotsBack() {
    if (slot_ > (1 << 28)) {
      slot_ = 0;
    }
  }
};

}  // namespace
