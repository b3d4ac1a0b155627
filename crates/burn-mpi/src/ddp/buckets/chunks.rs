//! What a rank updates: its chunk of each bucket if [`SyncOptions::shard`](crate::SyncOptions::shard) is set,
//! otherwise all values. A part is what the chunk of a bucket has of one parameter.

use std::ops::Range;

use burn::backend::flex::FlexTensor;

use super::Buckets;
use crate::collective::wire::Element;
use crate::ddp::buffers::{BucketPlan, Buffers, Part};
use crate::ddp::options::WireType;
use crate::{CommError, Operation, Wire, chunk_range};

/// Maximum number of buckets in flight during backward. Each has a buffer to send and a buffer to receive,
/// while the gradients and activations of backward still need memory.
const IN_BACKWARD: usize = 2;

/// Maximum number of buckets in flight after backward.
const AFTER_BACKWARD: usize = 4;

impl Buckets {
    /// Replaces the plan in a step of which no bucket has started, and keeps the step's gradients. Frees each
    /// old bucket as soon as its gradients are copied: all old and new buckets together would need twice the
    /// memory of the gradients.
    pub fn repack(&mut self, plan: BucketPlan) {
        let mut buffers = self.new_buffers(&plan);
        let mut remaining: Vec<usize> =
            self.plan.buckets().iter().map(|bucket| bucket.params.len()).collect();
        for &param in plan.buckets().iter().flat_map(|bucket| &bucket.params) {
            let (Some((from, range)), Some((to, slots))) = (self.plan.place(param), plan.place(param)) else {
                continue;
            };
            if buffers.has_no_memory(to) {
                buffers.unpack(to, self.collective.buffer(Element::F32, plan.buckets()[to].padded), 0);
            }
            if self.step.written[param]
                && let Some(gradient) = self.buffers.values(from, range)
                && let Some(slots) = buffers.slots(to, slots)
            {
                slots.copy_from_slice(gradient);
            }
            remaining[from] -= 1;
            if remaining[from] == 0 {
                self.recycle(from);
            }
        }
        (self.plan, self.buffers) = (plan, buffers);
        self.set_parts();
    }

    /// Returns buffers for the buckets of `plan`. If the optimizer state is sharded, or there is one rank, a
    /// bucket gets memory only when it needs it.
    pub(super) fn new_buffers(&self, plan: &BucketPlan) -> Buffers {
        if self.is_scattered() || self.is_alone() {
            Buffers::empty(plan.buckets().len())
        } else {
            Buffers::allocated(plan, self.options.wire)
        }
    }

    /// Gives memory to a bucket that has none.
    #[inline]
    pub(super) fn allocate(&mut self, bucket: usize) {
        if self.buffers.has_no_memory(bucket) {
            let memory = self.collective.buffer(Element::F32, self.plan.buckets()[bucket].padded);
            self.buffers.unpack(bucket, memory, 0);
        }
    }

    /// Releases the memory of a bucket.
    fn recycle(&mut self, bucket: usize) {
        if let Some(memory) = self.buffers.pack_wide(bucket).filter(|memory| !memory.is_empty()) {
            self.collective.recycle(memory);
        }
    }

    /// Returns the whole bucket as it is sent, and releases its other memory; `None` if it is already in
    /// flight.
    pub(super) fn pack_whole(&mut self, bucket: usize) -> Option<Wire> {
        self.allocate(bucket);
        if self.options.wire == WireType::F32 {
            return self.buffers.pack_wide(bucket);
        }
        let length = self.plan.buckets()[bucket].padded;
        let mut narrow = self.collective.buffer(self.options.wire.element(), length);
        narrow.narrow(self.buffers.values(bucket, 0..length)?);
        self.recycle(bucket);
        Some(narrow)
    }

    /// Finds out which values this rank updates by the current plan.
    pub(super) fn set_parts(&mut self) {
        self.parts = if self.options.shard {
            self.plan.parts(self.collective.world_size(), self.rank)
        } else {
            self.plan.parts(1, 0)
        };
        self.parts_by_slot = (0..self.parts.len()).collect();
        self.parts_by_slot.sort_by_key(|&index| (self.parts[index].bucket, self.parts[index].slots.start));
    }

    /// Returns the values that this rank updates, in visit order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns this rank's parts with their averaged gradients. Before each part is the number of values in
    /// the parts before it. Leaves out parameters without a gradient on any rank.
    pub fn gradients_of_parts(&mut self) -> Vec<(usize, &Part, &mut [f32])> {
        let mut found: Vec<Option<&mut [f32]>> = Vec::new();
        found.resize_with(self.parts.len(), || None);
        let mut order = self.parts_by_slot.iter().peekable();
        for (bucket, slots) in self.buffers.all_slots().enumerate() {
            let Some((mut at, mut rest)) = slots else { continue };
            while let Some(&index) = order.next_if(|&&index| self.parts[index].bucket == bucket) {
                let slots = &self.parts[index].slots;
                let (gradient, after) = rest[slots.start - at..].split_at_mut(slots.len());
                (at, rest) = (slots.end, after);
                found[index] = Some(gradient);
            }
        }
        let mut gradients = Vec::with_capacity(self.parts.len());
        let mut start = 0;
        for (part, gradient) in self.parts.iter().zip(found) {
            if let Some(gradient) = gradient
                && !self.absent[part.param]
            {
                gradients.push((start, part, gradient));
            }
            start += part.range.len();
        }
        gradients
    }

    /// Returns the values of `part` in its bucket, mutable; `None` as for [`gradient`](Self::gradient).
    pub fn part_mut(&mut self, part: &Part) -> Option<&mut [f32]> {
        self.buffers.slots(part.bucket, part.slots.clone())
    }

    /// Returns the values of `part` as a flex tensor of one dimension that shares the bucket's memory; `None`
    /// as for [`gradient`](Self::gradient).
    pub fn part_tensor(&mut self, part: &Part) -> Option<FlexTensor> {
        self.buffers.tensor(part.bucket, part.slots.clone(), vec![part.slots.len()])
    }

    /// Reduce-scatters every remaining bucket, so that this rank has the sums of its chunks. Returns the sums
    /// of `tail` over ranks, which all ranks need.
    pub(super) fn reduce_chunks(&mut self, tail: &[f32]) -> Result<Vec<f32>, CommError> {
        if !self.is_scattered() {
            return Ok(tail.to_vec());
        }
        let began = self.clock.now();
        let copied = self.times.copy;
        let count = self.plan.buckets().len();
        while self.step.scattered < count {
            while self.step.started < count.min(self.step.scattered + AFTER_BACKWARD) {
                self.start_next()?;
            }
            self.take_chunk()?;
        }
        let sums = self.sum(tail.to_vec())?;
        self.times.exposed += (self.clock.now() - began).saturating_sub(self.times.copy - copied);
        Ok(sums)
    }

    /// Returns whether another bucket can start during backward. Without shares, any number can: their
    /// memory is allocated anyway.
    pub(super) fn can_start(&self) -> bool {
        !self.is_scattered() || self.step.started < self.step.scattered + IN_BACKWARD
    }

    /// Takes this rank's chunks of the buckets that are complete, so that later buckets can use the memory of
    /// these buckets.
    pub(super) fn take_chunks(&mut self) -> Result<(), CommError> {
        while self.step.scattered < self.step.started && self.collective.is_done(self.step.scattered) {
            self.take_chunk()?;
        }
        Ok(())
    }

    /// Waits for the next bucket, and takes this rank's chunk of its sums.
    fn take_chunk(&mut self) -> Result<(), CommError> {
        let bucket = self.step.scattered;
        let wire = self.wait(bucket)?;
        let padded = self.plan.buckets()[bucket].padded;
        let chunk = chunk_range(padded, self.collective.world_size(), self.rank);
        self.unpack(bucket, wire, chunk.start);
        self.step.scattered += 1;
        Ok(())
    }

    /// Gathers all ranks' chunks of every bucket, and calls `take` with the index of each bucket while it has
    /// all values. Afterwards, buckets have no values until the next step. If this rank has whole buckets
    /// anyway, only calls `take`, once, with all buckets.
    pub fn gather(&mut self, take: &mut dyn FnMut(&Self, Range<usize>)) -> Result<(), CommError> {
        let count = self.plan.buckets().len();
        if !self.is_scattered() {
            self.copying(|this| take(this, 0..count));
            return Ok(());
        }
        let mut started = 0;
        for bucket in 0..count {
            while started < count.min(bucket + AFTER_BACKWARD) {
                self.start_gather(started)?;
                started += 1;
            }
            let began = self.clock.now();
            let wire = self.wait(bucket)?;
            self.buffers.unpack(bucket, wire, 0);
            self.times.exposed += self.clock.now() - began;
            self.copying(|this| take(this, bucket..bucket + 1));
            self.recycle(bucket);
        }
        Ok(())
    }

    fn start_gather(&mut self, bucket: usize) -> Result<(), CommError> {
        self.copying(|this| {
            let Some(wire) = this.buffers.pack_wide(bucket) else { return Ok(()) };
            let gather = Operation::all_gather(bucket, &wire, this.plan.buckets()[bucket].padded);
            this.start(bucket, gather, wire)
        })
    }

    /// Returns whether this rank has only a chunk of each bucket after the buckets are reduced.
    #[inline]
    pub(super) fn is_scattered(&self) -> bool {
        self.options.shard && !self.is_alone()
    }
}

/// Returns the values of `wire` as f32.
pub(super) fn widened(wire: Wire) -> Wire {
    if let Wire::F32(_) = wire {
        return wire;
    }
    let mut values = vec![0.0; wire.len()];
    wire.widen(&mut values);
    Wire::F32(values)
}
