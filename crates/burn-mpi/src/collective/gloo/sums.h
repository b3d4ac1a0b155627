// gloo's all-reduces and reduce with an addition callback.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/reduce.h>

#include "mesh.h"

namespace {

// Adds `n` elements: out = a + b, where the three may alias.
using Add = void (*)(void*, const void*, const void*, size_t);

// Sums at most this many bytes at once: gloo's older classes count in int.
constexpr size_t kPieceBytes = size_t{1} << 30;

// gloo's class takes a function without state, so the addition of the current
// call is stored here. gloo calls it on the calling thread only.
thread_local Add currentAdd = nullptr;

template <typename T>
void addInPlace(T* sum, const T* other, size_t n) {
  currentAdd(sum, sum, other, n);
}

template <typename T>
class HalvingDoubling : public gloo::AllreduceHalvingDoubling<T> {
 public:
  using gloo::AllreduceHalvingDoubling<T>::AllreduceHalvingDoubling;

  // Waits for the last notifications to each peer: run() does not, and their
  // buffers are destroyed with this object. Each notification was sent twice.
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
      // A message that arrives before its buffer exists makes gloo's thread spin,
      // and takes the core from a rank that is still computing. So all ranks wait
      // here until all buffers exist.
      gloo::BarrierOptions ready(mesh);
      ready.setTag(tag);
      gloo::barrier(ready);
      algorithm.run();
      algorithm.drain();
    } catch (...) {
      // Other peers may still be sending into the buffers destroyed here.
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

}  // namespace
