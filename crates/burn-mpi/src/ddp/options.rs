//! Options of gradient averaging: how ranks sum gradients, in which type they send them, and how large the
//! buckets are. A bucket is a buffer of several gradients that one all-reduce sums.

use derive_setters::Setters;
use serde::{Deserialize, Serialize};

use crate::collective::wire::Element;
use crate::named::named;
use crate::{PowerSgd, Reduction};

/// Options of gradient averaging. They must be equal on all ranks.
///
/// ```
/// use burn_mpi::{Reduction, SyncOptions, WireType};
///
/// // Half the bytes, and the same bits over MPI and gloo.
/// let options =
///     SyncOptions::default().with_wire(WireType::Bf16).with_reduction(Reduction::Ordered);
/// assert!(options.overlap);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct SyncOptions {
    /// Summation order over ranks.
    pub reduction: Reduction,
    /// Type in which gradients are sent.
    pub wire: WireType,
    /// Whether buckets are summed over ranks while backward still runs.
    pub overlap: bool,
    /// Maximum bytes of a bucket, counted in f32. The maximum is lower for a model with too few gradients for
    /// eight buckets of this size: an eighth of the bytes of all gradients, but not less than 1 MB.
    pub bucket_bytes: usize,
    /// Maximum bytes of the first bucket, counted in f32.
    pub first_bucket_bytes: usize,
    /// Compression of gradients; `None` sends them as they are.
    #[setters(into)]
    pub compression: Option<PowerSgd>,
    /// Whether each rank updates only its share of the parameters, and has only this share's optimizer state:
    /// ZeRO stage 1 (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter
    /// models", 2020). Buckets are reduce-scattered, and the updated parameters are all-gathered as f32.
    /// Together these are the bytes of an all-reduce if `wire` is f32. The update is that of a
    /// [`ShardedOptimizer`](crate::ShardedOptimizer), or uses
    /// [`GradientSync::pieces`](crate::GradientSync::pieces).
    pub shard: bool,
}

impl Default for SyncOptions {
    fn default() -> Self {
        Self {
            reduction: Reduction::Native,
            wire: WireType::F32,
            overlap: true,
            bucket_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            compression: None,
            shard: false,
        }
    }
}

/// Number of buckets of a small model. With one bucket, no communication overlaps with backward. With eight
/// buckets, little communication is left after backward.
const PARTS: usize = 8;
/// The maximum bytes of a small model's buckets are never lower than this number. Smaller buckets gain
/// nothing: latency outweighs transfer time.
const LEAST_BYTES: usize = 1 << 20;

/// Returns the maximum number of values in the first bucket, and in each other bucket, of a model with
/// `trainable` trainable values.
pub fn bucket_limits(trainable: usize, options: &SyncOptions) -> (usize, usize) {
    let part = (4 * trainable / PARTS).max(LEAST_BYTES);
    (options.first_bucket_bytes / 4, options.bucket_bytes.min(part) / 4)
}

/// The type in which gradients are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireType {
    /// f32, without conversion.
    F32,
    /// bfloat16: half the bytes of f32, the range of f32, 8 bits of precision.
    Bf16,
    /// IEEE half precision: half the bytes of f32, 11 bits of precision, values up to 65504.
    F16,
}

named!(WireType, "type": F32 = "f32", Bf16 = "bf16", F16 = "f16");

impl WireType {
    /// Bytes per value.
    pub fn bytes(self) -> usize {
        self.element().width()
    }

    /// The same type, as collectives name it.
    pub(crate) fn element(self) -> Element {
        match self {
            Self::F32 => Element::F32,
            Self::Bf16 => Element::Bf16,
            Self::F16 => Element::F16,
        }
    }
}
