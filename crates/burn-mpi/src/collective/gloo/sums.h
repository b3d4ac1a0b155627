// Sums over all ranks with gloo: its all-reduce algorithms and its reduce. The caller passes the function
// that adds values.
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

// Called as add(out, a, b, n): computes out = a + b for `n` elements. Any two of the three arrays may be the
// same.
using Add = void (*)(void*, const void*, const void*, size_t);

// Maximum bytes of one halving-doubling sum; a longer buffer is summed in pieces. gloo's older classes count
// elements in an int.
constexpr size_t kPieceBytes = size_t{1} << 30;

// gloo::AllreduceHalvingDoubling takes a function without state, so the addition of the current call is
// stored here. gloo calls the addition only on the thread that called gloo.
thread_local Add currentAdd = nullptr;

template <typename T>
void addInPlace(T* sum, const T* other, size_t n) {
  currentAdd(sum, sum, other, n);
}

template <typename T>
class HalvingDoubling : public gloo::AllreduceHalvingDoubling<T> {
 public:
  using gloo::AllreduceHalvingDoubling<T>::AllreduceHalvingDoubling;

  // Waits until the last notifications to each peer have been sent. run() does not wait for them, and
  // destroying this object destroys their buffers. Each notification was sent twice, so there are two waits.
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
      // A message that arrives before its buffer exists makes gloo's thread spin. The spinning thread takes
      // the core from a rank that is still computing. So all ranks wait here until all buffers exist.
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
