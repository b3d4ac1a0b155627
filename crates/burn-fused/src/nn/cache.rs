//! A cache of a tensor, for autoregressive inference.

use burn::tensor::Tensor;

/// A cache for a tensor; replaces [`burn::nn::cache::TensorCache`].
pub struct TensorCache<const D: usize> {
    tensor: Option<Tensor<D>>,
}

impl<const D: usize> TensorCache<D> {
    /// Creates a cache without a tensor.
    pub fn empty() -> Self {
        Self { tensor: None }
    }

    /// Returns whether the cache has no tensor.
    pub(super) fn is_empty(&self) -> bool {
        self.tensor.is_none()
    }

    /// Returns the cached tensor. Calls `compute` if there is none, and caches the result.
    pub(super) fn or_compute(&mut self, compute: impl FnOnce() -> Tensor<D>) -> Tensor<D> {
        self.tensor.get_or_insert_with(compute).clone()
    }
}

impl TensorCache<3> {
    /// Returns `compute(tensor)` for `tensor` `[batch, sequence, ...]`. If the cache has a tensor, calls
    /// `compute` only for the last position of the sequence, and takes the results of the other positions
    /// from the cache.
    pub(super) fn extend(
        &mut self,
        tensor: Tensor<3>,
        compute: impl FnOnce(Tensor<3>) -> Tensor<3>,
    ) -> Tensor<3> {
        let all = match self.tensor.take() {
            Some(before) => Tensor::cat(vec![before, compute(last(tensor))], 1),
            None => compute(tensor),
        };
        self.tensor.insert(all).clone()
    }
}

/// Returns the last position of a sequence `[batch, sequence, ...]`.
pub(super) fn last(tensor: Tensor<3>) -> Tensor<3> {
    let length = tensor.dims()[1];
    tensor.narrow(1, length - 1, 1)
}

/// Returns `compute(tensor)`. If there is a `cache`, calls [`TensorCache::extend`], which computes only the
/// last position of the sequence unless the cache is empty.
pub(super) fn cached(
    cache: Option<&mut TensorCache<3>>,
    tensor: Tensor<3>,
    compute: impl FnOnce(Tensor<3>) -> Tensor<3>,
) -> Tensor<3> {
    match cache {
        Some(cache) => cache.extend(tensor, compute),
        None => compute(tensor),
    }
}
