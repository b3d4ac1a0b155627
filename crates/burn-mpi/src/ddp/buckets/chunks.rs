//! What a rank updates: its chunk of each bucket if [`SyncOptions::shard`](crate::SyncOptions::shard) is set,
//! otherwise all values. A part is what the chunk of a bucket has of one parameter.

use burn::backend::flex::FlexTensor;

use super::Buckets;
use crate::ddp::buffers::{BucketPlan, Buffers, Part};
use crate::{CommError, Operation, chunk_range};

impl Buckets {
    /// Replaces the plan in a step of which no bucket has started, and keeps the step's gradients.
    pub fn repack(&mut self, plan: BucketPlan) {
        let mut buffers = Buffers::new(&plan, self.options.wire);
        for param in (0..self.uses.len()).filter(|&param| self.step.written[param]) {
            if let (Some((from, range)), Some((to, slots))) = (self.plan.place(param), plan.place(param))
                && let (Some(gradient), Some(slots)) =
                    (self.buffers.values(from, range), buffers.slots(to, slots))
            {
                slots.copy_from_slice(gradient);
            }
        }
        (self.plan, self.buffers) = (plan, buffers);
        self.set_parts();
    }

    /// Finds out which values this rank updates by the current plan.
    pub(super) fn set_parts(&mut self) {
        self.parts = if self.options.shard {
            self.plan.parts(self.collective.world_size(), self.rank)
        } else {
            self.plan.parts(1, 0)
        };
    }

    /// Returns the values that this rank updates, in visit order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns this rank's parts with their averaged gradients. Leaves out parameters without a gradient on
    /// any rank.
    pub fn gradients_of_parts(&mut self) -> Vec<(&Part, &mut [f32])> {
        let mut parts: Vec<&Part> = self.parts.iter().filter(|part| !self.absent[part.param]).collect();
        parts.sort_by_key(|part| (part.bucket, part.slots.start));
        let mut found = Vec::with_capacity(parts.len());
        let mut parts = parts.into_iter().peekable();
        for (bucket, slots) in self.buffers.all_slots().enumerate() {
            let Some((mut at, mut rest)) = slots else { continue };
            while let Some(part) = parts.next_if(|part| part.bucket == bucket) {
                let (gradient, after) = rest[part.slots.start - at..].split_at_mut(part.slots.len());
                (at, rest) = (part.slots.end, after);
                found.push((part, gradient));
            }
        }
        found.sort_by_key(|(part, _)| part.param);
        found
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
        while self.step.started < count {
            self.start_next()?;
        }
        let sums = self.sum(tail.to_vec())?;
        for bucket in 0..count {
            let wire = self.wait(bucket)?;
            let padded = self.plan.buckets()[bucket].padded;
            let chunk = chunk_range(padded, self.collective.world_size(), self.rank);
            self.unpack(bucket, wire, chunk.start);
        }
        self.times.exposed += (self.clock.now() - began).saturating_sub(self.times.copy - copied);
        Ok(sums)
    }

    /// Starts to gather all ranks' chunks of a bucket. Does nothing if this rank has the whole bucket.
    pub fn start_gather(&mut self, bucket: usize) -> Result<(), CommError> {
        if self.is_scattered()
            && let Some(wire) = self.buffers.pack_wide(bucket)
        {
            let length = self.plan.buckets()[bucket].padded;
            self.start(bucket, Operation::all_gather(bucket, &wire, length), wire)?;
        }
        Ok(())
    }

    /// Waits for all gathers.
    pub fn finish_gathers(&mut self) -> Result<(), CommError> {
        if !self.is_scattered() {
            return Ok(());
        }
        let began = self.clock.now();
        for bucket in 0..self.plan.buckets().len() {
            let wire = self.wait(bucket)?;
            self.buffers.unpack(bucket, wire, 0);
        }
        self.times.exposed += self.clock.now() - began;
        Ok(())
    }

    /// Returns whether this rank has only a chunk of each bucket after the buckets are reduced.
    pub(super) fn is_scattered(&self) -> bool {
        self.options.shard && self.collective.world_size() > 1
    }
}
