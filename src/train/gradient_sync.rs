//! The average of all ranks' gradients.
//!
//! A step's loss is the mean over all ranks' samples of that step. A rank
//! computes the mean over its own, so its gradients count by its share of the
//! samples: each is scaled on its way into the bucket, and the sum over ranks
//! is the gradient of the whole. A rank with no samples left sends zeros.

use std::time::{Duration, Instant};

use crate::comm::bucket::{BucketPlan, CONTROL};
use crate::comm::{Collective, CommError, Reduction, Wire};
use crate::model::ParamLayout;

/// Sizes of buckets, in bytes of f32.
#[derive(Debug, Clone, Copy)]
pub struct BucketSizes {
    /// The first bucket.
    pub first: usize,
    /// The others.
    pub others: usize,
}

/// What all ranks said at the end of a step, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Signals {
    /// Ranks whose loss is not a finite number.
    pub not_finite: f32,
    /// Ranks that were asked to stop.
    pub stop: f32,
}

/// Collects this rank's gradients in buckets and averages them with the other
/// ranks'.
pub struct GradientSync {
    collective: Box<dyn Collective>,
    reduction: Reduction,
    plan: BucketPlan,
    /// Bucket of index i, where it is not in flight.
    buffers: Vec<Option<Vec<f32>>>,
    /// Parameters that a bucket still waits for, in this step.
    missing: Vec<usize>,
    /// Buckets started in this step; always the first ones, on every rank.
    started: usize,
    weight: f32,
    exposed: Duration,
}

impl GradientSync {
    /// Buckets for the trainable parameters of `layout`, in reverse visit
    /// order, since backward goes from the last layer to the first.
    pub fn new(
        collective: Box<dyn Collective>,
        reduction: Reduction,
        layout: &ParamLayout,
        sizes: BucketSizes,
    ) -> Self {
        let lengths: Vec<usize> = layout.specs().iter().map(|s| s.range.len()).collect();
        let trainable = |&param: &usize| layout.specs()[param].trainable;
        let order: Vec<usize> = (0..lengths.len()).rev().filter(trainable).collect();
        let world_size = collective.world_size();
        let plan = BucketPlan::new(&lengths, &order, sizes.first / 4, sizes.others / 4, world_size);
        let buffers = plan.buckets().iter().map(|b| Some(vec![0.0; b.padded])).collect();
        Self {
            collective,
            reduction,
            missing: Vec::new(),
            started: 0,
            weight: 1.0,
            exposed: Duration::ZERO,
            buffers,
            plan,
        }
    }

    /// Begins a step in which this rank has `own` of `total` samples.
    pub fn begin(&mut self, own: usize, total: usize) {
        self.weight = own as f32 / total.max(1) as f32;
        self.started = 0;
        self.missing.clear();
        self.missing.extend(self.plan.buckets().iter().map(|bucket| bucket.params.len()));
    }

    /// Takes the gradient of parameter `param`.
    ///
    /// # Errors
    /// When a bucket is full and the transport fails.
    pub fn arrive(&mut self, param: usize, gradient: &[f32]) -> Result<(), CommError> {
        let (bucket, range) = self.plan.place(param);
        let weight = self.weight;
        if let Some(buffer) = &mut self.buffers[bucket] {
            let slots = buffer[range].iter_mut();
            slots.zip(gradient).for_each(|(slot, value)| *slot = value * weight);
        }
        self.missing[bucket] -= 1;
        self.start_full_buckets()
    }

    /// Ends the step: gradients that have not arrived count as zero, `mine`
    /// goes along, and every bucket is waited for.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn finish(&mut self, mine: Signals) -> Result<Signals, CommError> {
        self.zero_missing();
        let last = self.buffers.len() - 1;
        let control = self.plan.buckets()[last].len;
        if let Some(buffer) = &mut self.buffers[last] {
            buffer[control..control + CONTROL].copy_from_slice(&[mine.not_finite, mine.stop]);
        }
        let started = Instant::now();
        if self.collective.world_size() > 1 {
            self.reduce_rest(last)?;
        }
        self.exposed += started.elapsed();
        let sums = self.buffers[last].as_deref().map(|b| [b[control], b[control + 1]]);
        let [not_finite, stop] = sums.unwrap_or_default();
        Ok(Signals { not_finite, stop })
    }

    /// The averaged gradient of `param`, after [`finish`](Self::finish), where
    /// it lies in its bucket.
    pub fn gradient(&self, param: usize) -> &[f32] {
        let (bucket, range) = self.plan.place(param);
        match &self.buffers[bucket] {
            Some(buffer) => &buffer[range],
            None => &[],
        }
    }

    /// Time in which this rank did nothing but wait for other ranks' gradients,
    /// since the start.
    pub fn exposed(&self) -> Duration {
        self.exposed
    }

    /// Starts the buckets that are full. They start in order on every rank, as
    /// MPI matches collectives by order; the last one waits for `finish`,
    /// since it carries the signals.
    fn start_full_buckets(&mut self) -> Result<(), CommError> {
        let last = self.buffers.len() - 1;
        while self.collective.world_size() > 1 && self.started < last && self.missing[self.started] == 0 {
            self.start_next()?;
        }
        Ok(())
    }

    fn start_next(&mut self) -> Result<(), CommError> {
        let bucket = self.started;
        self.started += 1;
        if let Some(buffer) = self.buffers[bucket].take() {
            self.collective.start(bucket, Wire::F32(buffer), self.reduction)?;
        }
        Ok(())
    }

    fn reduce_rest(&mut self, last: usize) -> Result<(), CommError> {
        while self.started < last {
            self.start_next()?;
        }
        // Nothing is left to overlap the last bucket with, so it takes the
        // blocking call, which is faster than a non-blocking one and a wait.
        if let Some(buffer) = self.buffers[last].take() {
            let mut buffer = Wire::F32(buffer);
            self.collective.all_reduce(&mut buffer, self.reduction)?;
            self.put_back(last, buffer);
        }
        for bucket in 0..last {
            let buffer = self.collective.wait(bucket)?;
            self.put_back(bucket, buffer);
        }
        Ok(())
    }

    fn put_back(&mut self, bucket: usize, buffer: Wire) {
        if let Wire::F32(values) = buffer {
            self.buffers[bucket] = Some(values);
        }
    }

    fn zero_missing(&mut self) {
        for (bucket, missing) in self.missing.iter_mut().enumerate() {
            // A rank with no batch brings no gradient at all; a network brings
            // all of its gradients or none.
            if *missing > 0 {
                if let Some(buffer) = &mut self.buffers[bucket] {
                    buffer.fill(0.0);
                }
                *missing = 0;
            }
        }
    }
}
