//! Bucket plan and bucket memory. The plan says which gradients are sent together. The memory is one f32
//! buffer for each bucket, and a 16-bit copy if gradients are sent in a 16-bit type.
//!
//! Many small all-reduces cost many latencies; one large all-reduce cannot start before the last gradient is
//! final. So gradients are packed into buckets in the order in which backward finishes them, as in Li et al.,
//! "PyTorch Distributed" (VLDB 2020). The first bucket is small, so that communication starts early.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType};

use crate::Wire;
use crate::ddp::options::WireType;

/// Number of control values at the end of the last bucket, such as the count of ranks with a stop request.
/// All ranks need these values in the same step. They are summed together with the gradients, so they need no
/// message of their own.
pub const CONTROL: usize = 5;

/// Which gradients are in which bucket. The plan is the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketPlan {
    buckets: Vec<BucketSpec>,
    /// For each parameter, its bucket and its range in that bucket; `None` for parameters without gradients.
    places: Vec<Option<(usize, Range<usize>)>>,
}

/// One bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSpec {
    /// Its parameters, in the order in which backward finishes their gradients.
    pub params: Vec<usize>,
    /// Number of values of its parameters.
    pub len: usize,
    /// Length of the buffer, rounded up to a multiple of the world size so that the buffer can be cut into
    /// equal chunks. The buffer of the last bucket also has room for the control values and the carried
    /// values (see [`BucketPlan::new`]).
    pub padded: usize,
}

impl BucketPlan {
    /// Packs parameters into buckets, in `order`. `lengths` has the number of values of each parameter. A
    /// bucket takes at most `capacity` values, and the first bucket also at most `first`. A parameter that
    /// exceeds the limit gets a separate bucket. The last bucket also has room for the control values, and
    /// for `carried` values that the caller averages together with the gradients.
    pub fn new(
        lengths: &[usize],
        order: &[usize],
        (first, capacity): (usize, usize),
        carried: usize,
        world_size: usize,
    ) -> Self {
        let mut buckets: Vec<BucketSpec> = Vec::new();
        let mut places = vec![None; lengths.len()];
        for &param in order {
            let length = lengths[param];
            let limit = if buckets.len() <= 1 { first.min(capacity) } else { capacity };
            let fits = |bucket: &BucketSpec| bucket.len + length <= limit;
            if !buckets.last().is_some_and(fits) {
                buckets.push(BucketSpec { params: Vec::new(), len: 0, padded: 0 });
            }
            let index = buckets.len() - 1;
            let bucket = &mut buckets[index];
            places[param] = Some((index, bucket.len..bucket.len + length));
            bucket.params.push(param);
            bucket.len += length;
        }
        if buckets.is_empty() {
            // Without trainable parameters, the control values still need a bucket.
            buckets.push(BucketSpec { params: Vec::new(), len: 0, padded: 0 });
        }
        let last = buckets.len().saturating_sub(1);
        for (index, bucket) in buckets.iter_mut().enumerate() {
            let control = if index == last { CONTROL + carried } else { 0 };
            bucket.padded = (bucket.len + control).next_multiple_of(world_size);
        }
        Self { buckets, places }
    }

    /// The buckets, in the order in which they fill.
    pub fn buckets(&self) -> &[BucketSpec] {
        &self.buckets
    }

    /// Returns the bucket of parameter `param`, and the parameter's range in that bucket; `None` for a
    /// parameter without gradients.
    pub fn place(&self, param: usize) -> Option<(usize, Range<usize>)> {
        self.places[param].clone()
    }
}

/// Values of a bucket.
enum Memory {
    Own(Vec<f32>),
    /// Gradient tensors are views of this memory, until the next step.
    Shared(Arc<Bytes>),
}

impl Memory {
    fn values(&self) -> &[f32] {
        match self {
            Self::Own(values) => values,
            Self::Shared(bytes) => bytemuck::cast_slice(bytes),
        }
    }

    /// Returns the values as an owned buffer. The buffer is a copy if tensors are still views of the memory.
    fn into_own(self) -> Vec<f32> {
        let bytes = match self {
            Self::Own(values) => return values,
            Self::Shared(bytes) => Arc::try_unwrap(bytes),
        };
        let copy = |bytes: &[u8]| bytemuck::cast_slice(bytes).to_vec();
        bytes.map_or_else(
            |bytes| copy(&bytes),
            |bytes| bytes.try_into_vec().unwrap_or_else(|bytes| copy(&bytes)),
        )
    }

    fn own(&mut self) -> &mut [f32] {
        if let Self::Shared(_) = self {
            *self = Self::Own(std::mem::replace(self, Self::Own(Vec::new())).into_own());
        }
        match self {
            Self::Own(values) => values,
            Self::Shared(_) => unreachable!("it has become an own buffer"),
        }
    }

    fn shared(&mut self) -> Arc<Bytes> {
        if let Self::Own(values) = self {
            *self = Self::Shared(Arc::new(Bytes::from_elems(std::mem::take(values))));
        }
        match self {
            Self::Shared(bytes) => bytes.clone(),
            Self::Own(_) => unreachable!("it has become a shared one"),
        }
    }
}

/// A buffer for each bucket of a plan.
pub(super) struct Buffers {
    /// The f32 buffers. If gradients are sent as f32, a buffer is `None` while it is in flight, because the
    /// transport owns it.
    wide: Vec<Option<Memory>>,
    /// The 16-bit copies. A copy is `None` while it is in flight. If gradients are sent as f32, all copies
    /// are `None`.
    narrow: Vec<Option<Wire>>,
}

impl Buffers {
    /// Allocates zeros for each bucket of `plan`.
    pub fn new(plan: &BucketPlan, wire: WireType) -> Self {
        let sizes = plan.buckets().iter().map(|bucket| bucket.padded);
        Self {
            wide: sizes.clone().map(|size| Some(Memory::Own(vec![0.0; size]))).collect(),
            narrow: sizes
                .map(|size| (wire != WireType::F32).then(|| Wire::zeros(wire.element(), size)))
                .collect(),
        }
    }

    /// Returns the values in `range` of a bucket; `None` while the f32 buffer of the bucket is in flight.
    pub fn values(&self, bucket: usize, range: Range<usize>) -> Option<&[f32]> {
        self.wide[bucket].as_ref().map(|memory| &memory.values()[range])
    }

    /// Returns the same values as [`values`](Self::values), mutable. If tensors are views of the bucket, its
    /// memory is copied first.
    pub fn slots(&mut self, bucket: usize, range: Range<usize>) -> Option<&mut [f32]> {
        self.wide[bucket].as_mut().map(|memory| &mut memory.own()[range])
    }

    /// Returns the values in `range` of a bucket as a flex tensor that shares the bucket's memory; `None` in
    /// the same case as [`values`](Self::values).
    pub fn tensor(&mut self, bucket: usize, range: Range<usize>, shape: Vec<usize>) -> Option<FlexTensor> {
        let memory = self.wide[bucket].as_mut()?;
        let layout = Layout::contiguous(shape.into());
        let layout = Layout::new(layout.shape().clone(), layout.strides().to_vec(), range.start);
        Some(FlexTensor::from_arc(memory.shared(), layout, DType::F32))
    }

    /// Returns whether a bucket is sent as a 16-bit copy.
    pub fn is_narrow(&self, bucket: usize) -> bool {
        self.narrow[bucket].is_some()
    }

    /// Returns the bucket as it is sent: its buffer itself, or a 16-bit copy. `None` if the bucket is already
    /// in flight.
    pub fn pack(&mut self, bucket: usize) -> Option<Wire> {
        match (self.narrow[bucket].take(), &self.wide[bucket]) {
            (Some(mut narrow), Some(wide)) => {
                narrow.narrow(wide.values());
                Some(narrow)
            }
            _ => self.wide[bucket].take().map(|memory| Wire::F32(memory.into_own())),
        }
    }

    /// Takes back the buffer that [`pack`](Self::pack) returned, after it was summed over ranks.
    pub fn unpack(&mut self, bucket: usize, wire: Wire) {
        match (wire, &mut self.wide[bucket]) {
            (Wire::F32(values), memory) => *memory = Some(Memory::Own(values)),
            (narrow, Some(wide)) => {
                narrow.widen(wide.own());
                self.narrow[bucket] = Some(narrow);
            }
            _ => unreachable!("a bucket comes back as it left"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_has_one_place() {
        let lengths = [10, 200, 30, 5, 1000, 7];
        let order = [5, 4, 3, 2, 1, 0];
        let plan = BucketPlan::new(&lengths, &order, (20, 240), 0, 4);
        let mut seen: Vec<usize> = plan.buckets().iter().flat_map(|b| b.params.clone()).collect();
        assert_eq!(seen, order);
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
        for (param, &length) in lengths.iter().enumerate() {
            let (bucket, range) = plan.place(param).unwrap();
            assert_eq!(range.len(), length);
            assert!(range.end <= plan.buckets()[bucket].len);
        }
        assert_eq!(plan.buckets()[0].params, [5], "the first bucket is small");
        assert_eq!(plan.buckets()[1].params, [4], "a large parameter has its own");
        let last = plan.buckets().last().unwrap();
        assert!(last.padded >= last.len + CONTROL && last.padded.is_multiple_of(4));
    }

    #[test]
    fn without_parameters_there_is_a_bucket_for_the_control_values() {
        let plan = BucketPlan::new(&[], &[], (20, 240), 0, 2);
        assert_eq!(plan.buckets().len(), 1);
        assert_eq!(plan.buckets()[0].padded, CONTROL.next_multiple_of(2));
    }

    #[test]
    fn tensors_share_a_buckets_memory_until_it_is_written_again() {
        let mut memory = Memory::Own(vec![1.0, 2.0, 3.0]);
        let address = memory.values().as_ptr();
        let tensor = FlexTensor::from_arc(memory.shared(), Layout::contiguous(vec![3].into()), DType::F32);
        assert_eq!((memory.values(), memory.values().as_ptr()), (&[1.0, 2.0, 3.0][..], address));
        memory.own()[0] = 7.0;
        assert_eq!(
            (tensor.as_slice::<f32>(), memory.values()),
            (Some(&[1.0, 2.0, 3.0][..]), &[7.0, 2.0, 3.0][..])
        );
        let address = memory.values().as_ptr();
        drop((tensor, memory.shared()));
        memory.own()[1] = 8.0;
        assert_eq!((memory.values(), memory.values().as_ptr()), (&[7.0, 8.0, 3.0][..], address));
    }
}
