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

use crate::ddp::options::WireType;
use crate::{Wire, chunk_range};

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
    /// equal chunks. The buffer of the last bucket also has room for the values that are sent with it (see
    /// [`BucketPlan::new`]).
    pub padded: usize,
}

impl BucketPlan {
    /// Packs parameters into buckets, in `order`. `lengths` has the number of values of each parameter. A
    /// bucket takes at most `capacity` values, and the first bucket also at most `first`. A parameter that
    /// exceeds the limit gets a separate bucket. The last bucket also has room for `tail` values, such as
    /// the control values, which are sent together with the gradients.
    pub fn new(
        lengths: &[usize],
        order: &[usize],
        (first, capacity): (usize, usize),
        tail: usize,
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
            let tail = if index == last { tail } else { 0 };
            // A buffer is never empty, so no collective has to be left out.
            bucket.padded = (bucket.len + tail).max(1).next_multiple_of(world_size);
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

    /// Returns the part of parameter `param` in the chunk of `rank` of `ranks`; `None` if the chunk has no
    /// value of the parameter.
    pub fn part(&self, param: usize, ranks: usize, rank: usize) -> Option<Part> {
        let (bucket, place) = self.place(param)?;
        let chunk = chunk_range(self.buckets[bucket].padded, ranks, rank);
        let slots = place.start.max(chunk.start)..place.end.min(chunk.end);
        let range = (slots.start < slots.end).then(|| slots.start - place.start..slots.end - place.start)?;
        Some(Part { param, bucket, slots, range })
    }

    /// Returns the parts of all parameters in the chunks of `rank` of `ranks`, in visit order.
    pub fn parts(&self, ranks: usize, rank: usize) -> Vec<Part> {
        (0..self.places.len()).filter_map(|param| self.part(param, ranks, rank)).collect()
    }
}

/// The values of one parameter that one rank updates. A parameter has at most one part on each rank, because
/// a rank has one chunk of each bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The parameter, by its index in visit order.
    pub param: usize,
    /// The parameter's bucket.
    pub bucket: usize,
    /// Range of the values in the bucket.
    pub slots: Range<usize>,
    /// Range of the values in the parameter, in row-major order.
    pub range: Range<usize>,
}

/// Values of a bucket.
enum Memory {
    Own(Vec<f32>),
    /// Gradient tensors are views of this memory, until the next step.
    Shared(Arc<Bytes>),
    /// The memory of the gradient that backward has computed, until the next step. The gradient is the only
    /// one of its bucket.
    Gradient(Arc<Bytes>),
}

impl Memory {
    fn values(&self) -> &[f32] {
        match self {
            Self::Own(values) => values,
            Self::Shared(bytes) | Self::Gradient(bytes) => bytemuck::cast_slice(bytes),
        }
    }

    /// Returns the values as an owned buffer. The buffer is a copy if tensors are still views of the memory.
    fn into_own(self) -> Vec<f32> {
        let bytes = match self {
            Self::Own(values) => return values,
            Self::Shared(bytes) | Self::Gradient(bytes) => Arc::try_unwrap(bytes),
        };
        let copy = |bytes: &[u8]| bytemuck::cast_slice(bytes).to_vec();
        bytes.map_or_else(
            |bytes| copy(&bytes),
            |bytes| bytes.try_into_vec().unwrap_or_else(|bytes| copy(&bytes)),
        )
    }

    /// Returns the values, mutable. If tensors are still views of the memory, it is copied first.
    fn slots(&mut self) -> &mut [f32] {
        if let Self::Shared(bytes) | Self::Gradient(bytes) = self
            && Arc::get_mut(bytes).is_none()
        {
            *self = Self::Own(self.values().to_vec());
        }
        match self {
            Self::Own(values) => values,
            Self::Shared(bytes) | Self::Gradient(bytes) => {
                bytemuck::cast_slice_mut(Arc::get_mut(bytes).expect("memory without views"))
            }
        }
    }

    fn shared(&mut self) -> Arc<Bytes> {
        if let Self::Own(values) = self {
            *self = Self::Shared(Arc::new(Bytes::from_elems(std::mem::take(values))));
        }
        match self {
            Self::Shared(bytes) | Self::Gradient(bytes) => bytes.clone(),
            Self::Own(_) => unreachable!("it has become a shared one"),
        }
    }
}

/// A buffer for each bucket of a plan.
///
/// If the optimizer state is sharded, a bucket has memory for all its values only while it is filled, reduced
/// or gathered. In between, it has this rank's chunk, or no memory. With one rank, a bucket has one gradient,
/// and its memory is that of the gradient if possible.
pub(super) struct Buffers {
    /// For each bucket, the index of the first value in its f32 buffer. It is above 0 while a buffer has only
    /// this rank's chunk.
    starts: Vec<usize>,
    /// The f32 buffers. If gradients are sent as f32, a buffer is `None` while it is in flight, because the
    /// transport owns it.
    wide: Vec<Option<Memory>>,
    /// The 16-bit copies. A copy is `None` while it is in flight. If gradients are sent as f32, all copies
    /// are `None`.
    narrow: Vec<Option<Wire>>,
}

impl Buffers {
    /// Allocates zeros for each bucket of `plan`.
    pub fn allocated(plan: &BucketPlan, wire: WireType) -> Self {
        let sizes = plan.buckets().iter().map(|bucket| bucket.padded);
        Self {
            starts: vec![0; plan.buckets().len()],
            wide: sizes.clone().map(|size| Some(Memory::Own(vec![0.0; size]))).collect(),
            narrow: sizes
                .map(|size| (wire != WireType::F32).then(|| Wire::zeros(wire.element(), size)))
                .collect(),
        }
    }

    /// Returns `count` buckets without memory, which [`unpack`](Self::unpack) can give them.
    pub fn empty(count: usize) -> Self {
        let wide = (0..count).map(|_| Some(Memory::Own(Vec::new()))).collect();
        Self { starts: vec![0; count], wide, narrow: vec![const { None }; count] }
    }

    /// Makes `gradient`, a contiguous f32 tensor, the values of a bucket, without a copy. Returns `false` if
    /// the memory of `gradient` has other values too.
    pub fn adopt(&mut self, bucket: usize, gradient: &FlexTensor) -> bool {
        let is_whole =
            gradient.as_slice::<f32>().is_some_and(|values| size_of_val(values) == gradient.bytes().len());
        if is_whole {
            self.wide[bucket] = Some(Memory::Gradient(gradient.data_arc()));
        }
        is_whole
    }

    /// Releases the memory of gradients that buckets have adopted.
    pub fn release(&mut self) {
        for memory in self.wide.iter_mut().flatten() {
            if let Memory::Gradient(_) = memory {
                *memory = Memory::Own(Vec::new());
            }
        }
    }

    /// Returns whether a bucket has no memory, and is not in flight either.
    pub fn has_no_memory(&self, bucket: usize) -> bool {
        self.wide[bucket].as_ref().is_some_and(|memory| memory.values().is_empty())
    }

    /// Returns `range` of a bucket as a range of its f32 buffer; `None` if it begins before the buffer.
    fn within(&self, bucket: usize, range: Range<usize>) -> Option<Range<usize>> {
        let start = self.starts[bucket];
        Some(range.start.checked_sub(start)?..range.end.checked_sub(start)?)
    }

    /// Returns the values in `range` of a bucket; `None` while the f32 buffer of the bucket is in flight, or
    /// if it has only a chunk, which does not contain the range.
    pub fn values(&self, bucket: usize, range: Range<usize>) -> Option<&[f32]> {
        self.wide[bucket].as_ref()?.values().get(self.within(bucket, range)?)
    }

    /// Returns the same values as [`values`](Self::values), mutable. If tensors are views of the bucket, its
    /// memory is copied first.
    pub fn slots(&mut self, bucket: usize, range: Range<usize>) -> Option<&mut [f32]> {
        let range = self.within(bucket, range)?;
        self.wide[bucket].as_mut()?.slots().get_mut(range)
    }

    /// Returns the f32 buffer of each bucket with the index of its first value, mutable; `None` for a bucket
    /// in flight.
    pub fn all_slots(&mut self) -> impl Iterator<Item = Option<(usize, &mut [f32])>> {
        let starts = self.starts.iter().copied();
        starts.zip(&mut self.wide).map(|(start, memory)| Some((start, memory.as_mut()?.slots())))
    }

    /// Returns the values in `range` of a bucket as a flex tensor that shares the bucket's memory; `None` in
    /// the same case as [`values`](Self::values).
    pub fn tensor(&mut self, bucket: usize, range: Range<usize>, shape: Vec<usize>) -> Option<FlexTensor> {
        let range = self.within(bucket, range)?;
        let memory = self.wide[bucket].as_mut().filter(|memory| range.end <= memory.values().len())?;
        let layout = Layout::contiguous(shape.into());
        let layout = Layout::new(layout.shape().clone(), layout.strides().to_vec(), range.start);
        Some(FlexTensor::from_arc(memory.shared(), layout, DType::F32))
    }

    /// Returns the bucket as it is sent: its buffer itself, or a 16-bit copy. `None` if the bucket is already
    /// in flight.
    pub fn pack(&mut self, bucket: usize) -> Option<Wire> {
        match (self.narrow[bucket].take(), &self.wide[bucket]) {
            (Some(mut narrow), Some(wide)) => {
                narrow.resize(wide.values().len());
                narrow.narrow(wide.values());
                Some(narrow)
            }
            _ => self.pack_wide(bucket),
        }
    }

    /// Returns the f32 buffer of the bucket, to send it; `None` if it is already in flight.
    pub fn pack_wide(&mut self, bucket: usize) -> Option<Wire> {
        self.wide[bucket].take().map(|memory| Wire::F32(memory.into_own()))
    }

    /// Takes back the buffer that [`pack`](Self::pack) or [`pack_wide`](Self::pack_wide) returned, after the
    /// operation, or another f32 buffer in its place. `start` is the index of its first value in the bucket:
    /// the buffer is the whole bucket, or this rank's chunk.
    pub fn unpack(&mut self, bucket: usize, wire: Wire, start: usize) {
        self.starts[bucket] = start;
        match (wire, &mut self.wide[bucket]) {
            (Wire::F32(values), memory) => *memory = Some(Memory::Own(values)),
            (narrow, Some(wide)) => {
                narrow.widen(wide.slots());
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
        let plan = BucketPlan::new(&lengths, &order, (20, 240), CONTROL, 4);
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
        let plan = BucketPlan::new(&[], &[], (20, 240), CONTROL, 2);
        assert_eq!(plan.buckets().len(), 1);
        assert_eq!(plan.buckets()[0].padded, CONTROL.next_multiple_of(2));
    }

    #[test]
    fn tensors_share_a_buckets_memory_until_it_is_written_again() {
        let mut memory = Memory::Own(vec![1.0, 2.0, 3.0]);
        let address = memory.values().as_ptr();
        let tensor = FlexTensor::from_arc(memory.shared(), Layout::contiguous(vec![3].into()), DType::F32);
        assert_eq!((memory.values(), memory.values().as_ptr()), (&[1.0, 2.0, 3.0][..], address));
        memory.slots()[0] = 7.0;
        assert_eq!(
            (tensor.as_slice::<f32>(), memory.values()),
            (Some(&[1.0, 2.0, 3.0][..]), &[7.0, 2.0, 3.0][..])
        );
        let address = memory.values().as_ptr();
        drop((tensor, memory.shared()));
        memory.slots()[1] = 8.0;
        assert_eq!((memory.values(), memory.values().as_ptr()), (&[7.0, 8.0, 3.0][..], address));
    }
}
