//! How gradients are averaged, and how large buckets are.

use super::plan::BucketPlan;
use super::wire_type::WireType;
use crate::{ParamLayout, Reduction};

/// How gradients are averaged. All ranks choose the same.
///
/// ```
/// use burn_mpi::{Reduction, SyncOptions, WireType};
///
/// // Half the bytes, and the same bits over MPI and gloo.
/// let options =
///     SyncOptions { wire: WireType::Bf16, reduction: Reduction::Ordered, ..SyncOptions::default() };
/// assert!(options.overlap);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyncOptions {
    /// In which order ranks are added up.
    pub reduction: Reduction,
    /// How gradients travel.
    pub wire: WireType,
    /// Whether buckets travel while backward goes on.
    pub overlap: bool,
    /// Bytes of a bucket's f32 at most; a network that fills fewer than eight
    /// is cut into eight, down to 1 MB.
    pub bucket_bytes: usize,
    /// Bytes of the first bucket's f32 at most.
    pub first_bucket_bytes: usize,
}

impl Default for SyncOptions {
    fn default() -> Self {
        Self {
            reduction: Reduction::Native,
            wire: WireType::F32,
            overlap: true,
            bucket_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
        }
    }
}

/// Buckets of a small network: with all gradients in one, nothing could travel
/// while backward goes on. Eight leave little to wait for at the end.
const PARTS: usize = 8;
/// Cutting up less than this gains nothing: latency weighs more than time on
/// the wire.
const LEAST_BYTES: usize = 1 << 20;

/// The buckets of a module with `layout` whose gradients become final in `order`.
pub(crate) fn plan_of(
    layout: &ParamLayout,
    order: &[usize],
    options: &SyncOptions,
    world_size: usize,
) -> BucketPlan {
    let lengths: Vec<usize> = layout.specs().iter().map(|spec| spec.range.len()).collect();
    let (first, capacity) = bucket_limits(layout.trainable(), options);
    BucketPlan::new(&lengths, order, first, capacity, world_size)
}

/// Values that the first buckets and the others hold at most, for a network of
/// `trainable` values.
pub fn bucket_limits(trainable: usize, options: &SyncOptions) -> (usize, usize) {
    let part = (4 * trainable / PARTS).max(LEAST_BYTES);
    (options.first_bucket_bytes / 4, options.bucket_bytes.min(part) / 4)
}
