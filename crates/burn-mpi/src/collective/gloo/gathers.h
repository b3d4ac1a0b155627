// All-gathers over gloo's connections.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include <gloo/allgather.h>

#include "mesh.h"

namespace {

// gloo matches messages by their slot number. This prefix separates the slots below from the slots of gloo's
// collectives.
constexpr uint64_t kGatherSlots = uint64_t{0x41} << 56;

// Maximum bytes of a result that is gathered in few rounds. Above it, bandwidth counts more than latency.
constexpr size_t kFewRoundsBytes = 64 << 10;

// Throws if a wait for a message was aborted: gloo's wait then returns false.
void check(bool done) {
  if (!done) {
    throw std::runtime_error("the operation was aborted");
  }
}

// Gathers in log2(size) rounds (Bruck et al., "Efficient algorithms for all-to-all communications in
// multiport message-passing systems", 1997). gloo itself has only a ring of size - 1 rounds: on 64 ranks that
// share cores, it takes ten times as long.
void gatherInFewRounds(const std::shared_ptr<Mesh>& mesh, const char* from, size_t bytes, char* to,
                       uint32_t tag) {
  const size_t size = mesh->size, rank = mesh->rank;
  // Block i is of rank (rank + i) % size.
  std::vector<char> blocks(bytes * size);
  std::memcpy(blocks.data(), from, bytes);
  auto unbound = mesh->createUnboundBuffer(blocks.data(), blocks.size());
  for (size_t have = 1; have < size; have *= 2) {
    const size_t more = std::min(have, size - have) * bytes;
    unbound->recv((rank + have) % size, kGatherSlots | tag, have * bytes, more);
    unbound->send((rank + size - have) % size, kGatherSlots | tag, 0, more);
    check(unbound->waitSend(mesh->getTimeout()));
    check(unbound->waitRecv(mesh->getTimeout()));
  }
  std::memcpy(to + rank * bytes, blocks.data(), (size - rank) * bytes);
  std::memcpy(to, blocks.data() + (size - rank) * bytes, rank * bytes);
}

void allgather(const std::shared_ptr<Mesh>& mesh, char* from, size_t bytes, char* to, uint32_t tag) {
  const size_t all = bytes * mesh->size;
  if (mesh->size > 2 && all <= kFewRoundsBytes) {
    return gatherInFewRounds(mesh, from, bytes, to, tag);
  }
  gloo::AllgatherOptions options(mesh);
  options.setInput(from, bytes);
  options.setOutput(to, all);
  options.setTag(tag);
  gloo::allgather(options);
}

}  // namespace
