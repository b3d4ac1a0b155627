//! What the libtorch of this program can use.

/// The number of GPUs that libtorch sees: none without a driver, or if it was built without CUDA.
pub fn libtorch_gpus() -> usize {
    usize::try_from(tch::Cuda::device_count()).unwrap_or_default()
}
