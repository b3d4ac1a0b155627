//! Gradient buckets: filled during backward, reduced as they fill, read in place by
//! the optimizer.
//!
//! Ranks may differ in everything but this: in each step every rank issues the same
//! collectives, of the same kind, for the same buckets, in the same order. What
//! differs between ranks decides when a bucket starts, never how.

mod buffers;
mod reduce;

use std::collections::BTreeMap;
use std::time::Duration;

use self::buffers::Buffers;
use super::hook::GradientSink;
use super::options::SyncOptions;
use super::plan::BucketPlan;
use super::report::CommTimes;
use super::watch::SyncWatch;
use crate::clock::Clock;
use crate::{Collective, CommError};

/// Sums over ranks that are sent with the gradients of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Signals {
    /// Ranks with a NaN or infinite loss.
    pub not_finite: f32,
    /// Ranks that received a stop request.
    pub stop: f32,
}

/// Visits all of a rank's gradients but those to skip, as [`each`](super::collector::each) does.
type OwnGradients = Box<dyn Fn(&dyn Fn(usize) -> bool, &mut dyn FnMut(usize, Option<&[f32]>))>;

/// All buckets of one rank.
pub(crate) struct Buckets {
    pub collective: Box<dyn Collective>,
    pub options: SyncOptions,
    pub plan: BucketPlan,
    pub times: CommTimes,
    /// Receives events; none outside a profile.
    pub watch: Option<SyncWatch>,
    /// Uses of each parameter in the network; its gradient is final after as many
    /// registrations.
    pub uses: Vec<usize>,
    /// Parameters without a gradient on any rank in the last step.
    pub absent: Vec<bool>,
    buffers: Buffers,
    /// Number of parameters that each bucket still waits for.
    missing: Vec<usize>,
    /// Number of buckets started; always the first ones, on every rank.
    started: usize,
    /// Parameters with a gradient in this step.
    written: Vec<bool>,
    /// Parameters that no bucket waits for any longer in this step.
    sealed: Vec<bool>,
    /// This rank's backward calls in this step.
    backwards: usize,
    weight: f32,
    /// The sum of the weights of this rank's backward calls in this step; in f64, since a step may have
    /// thousands, whose sum in f32 drifts from 1.
    share: f64,
    /// This rank's gradients that came after their bucket had started, scaled by its share of the samples.
    late: BTreeMap<usize, Vec<f32>>,
    /// Whether a parameter's gradient is another one than its bucket was started with.
    replaced: Vec<bool>,
    /// All of this rank's gradients in this step, not scaled, for those that a rank has replaced.
    pub own: Option<OwnGradients>,
    /// Since when some bucket has been in flight during backward.
    in_flight_since: Option<Duration>,
    clock: Clock,
    failure: Option<CommError>,
    /// A parameter whose gradient fits in no bucket: the module has changed.
    pub unexpected: Option<usize>,
}

impl Buckets {
    pub fn new(
        collective: Box<dyn Collective>,
        options: SyncOptions,
        plan: BucketPlan,
        params: usize,
        clock: Clock,
    ) -> Self {
        Self {
            collective,
            buffers: Buffers::new(&plan, options.wire),
            options,
            plan,
            times: CommTimes::default(),
            watch: None,
            uses: vec![1; params],
            absent: vec![false; params],
            missing: Vec::new(),
            started: 0,
            written: vec![false; params],
            sealed: vec![false; params],
            backwards: 0,
            weight: 1.0,
            share: 0.0,
            late: BTreeMap::new(),
            replaced: vec![false; params],
            own: None,
            in_flight_since: None,
            clock,
            failure: None,
            unexpected: None,
        }
    }

    /// Repacks the gradients. Between steps only.
    pub fn set_plan(&mut self, plan: BucketPlan) {
        self.buffers = Buffers::new(&plan, self.options.wire);
        self.plan = plan;
    }

    /// Whether a bucket can start before the end of a backward: the last one cannot,
    /// since it carries the signals.
    pub fn can_overlap(&self) -> bool {
        self.options.overlap && self.collective.world_size() > 1 && self.plan.buckets().len() > 1
    }

    /// Begins a step.
    pub fn begin(&mut self) {
        self.started = 0;
        self.backwards = 0;
        self.share = 0.0;
        self.written.fill(false);
        self.sealed.fill(false);
        self.late.clear();
        self.replaced.fill(false);
        self.own = None;
        self.missing.clear();
        self.missing.extend(self.plan.buckets().iter().map(|bucket| bucket.params.len()));
    }

    /// Begins a backward whose gradients are scaled by `weight`.
    pub fn begin_backward(&mut self, weight: f32) {
        self.weight = weight;
        self.share += f64::from(weight);
        self.backwards += 1;
    }

    /// Adds to the gradient of `param`. A gradient that comes after its bucket has
    /// started is kept aside, and reduced at the end of the step.
    pub fn add(&mut self, param: usize, gradient: &[f32]) {
        let (bucket, range) = self.plan.place(param);
        let weight = self.weight;
        if range.len() != gradient.len() {
            self.unexpected.get_or_insert(param);
            return;
        }
        self.copying(|this| {
            let first = !std::mem::replace(&mut this.written[param], true);
            match this.buffers.slots(bucket, range) {
                // One rank's share is all of a step's samples.
                Some(slots) if bucket >= this.started && first && weight == 1.0 => {
                    slots.copy_from_slice(gradient);
                }
                Some(slots) if bucket >= this.started => {
                    let slots = slots.iter_mut().zip(gradient);
                    match first {
                        true => slots.for_each(|(slot, value)| *slot = value * weight),
                        false => slots.for_each(|(slot, value)| *slot += value * weight),
                    }
                }
                _ => {
                    let sum = this.late.entry(param).or_insert_with(|| vec![0.0; gradient.len()]);
                    sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value * weight);
                }
            }
        });
    }

    /// Puts `gradient`, if any, in the place of what was added for `param` in this step. If its bucket has
    /// started, all ranks reduce theirs again at the end of the step.
    pub fn replace(&mut self, param: usize, gradient: Option<&[f32]>) {
        let (bucket, range) = self.plan.place(param);
        match self.buffers.slots(bucket, range.clone()) {
            Some(slots) if bucket >= self.started => slots.fill(0.0),
            _ => self.replaced[param] = true,
        }
        self.written[param] = false;
        match gradient {
            Some(gradient) if self.replaced[param] && gradient.len() == range.len() => {
                self.written[param] = true
            }
            Some(gradient) => self.add(param, gradient),
            None => {}
        }
    }

    /// Marks `param` as final in this step. Without a gradient so far, it counts as
    /// zero.
    pub fn seal(&mut self, param: usize) {
        self.mark(param);
        self.start_marked();
    }

    /// Marks all parameters as final in this step.
    pub fn seal_all(&mut self) {
        for bucket in 0..self.plan.buckets().len() {
            for at in 0..self.plan.buckets()[bucket].params.len() {
                self.mark(self.plan.buckets()[bucket].params[at]);
            }
        }
        self.start_marked();
    }

    fn mark(&mut self, param: usize) {
        if self.plan.holds(param) && !std::mem::replace(&mut self.sealed[param], true) {
            let (bucket, range) = self.plan.place(param);
            self.missing[bucket] -= 1;
            if let (false, Some(slots)) = (self.written[param], self.buffers.slots(bucket, range)) {
                slots.fill(0.0);
            }
        }
    }

    /// Starts full buckets; an error is returned at the end of the step.
    fn start_marked(&mut self) {
        if let Err(error) = self.start_full() {
            self.failure.get_or_insert(error);
        }
    }

    /// The averaged gradient of `param` in its bucket, after `finish`; `None` for a
    /// parameter that is in no bucket, or while its bucket is in flight.
    pub fn gradient(&self, param: usize) -> Option<&[f32]> {
        let (bucket, range) = self.plan.place(param);
        self.buffers.values(bucket, range).filter(|_| self.plan.holds(param))
    }

    /// The same, mutable.
    pub fn gradient_mut(&mut self, param: usize) -> Option<&mut [f32]> {
        let (bucket, range) = self.plan.place(param);
        self.buffers.slots(bucket, range).filter(|_| self.plan.holds(param))
    }
}

impl GradientSink for Buckets {
    fn is_final(&self, param: usize, n: usize) -> bool {
        n == self.uses[param]
    }

    fn take(&mut self, param: usize, values: &[f32]) {
        self.add(param, values);
        self.seal(param);
    }

    fn between(&mut self) {
        if self.started > 0
            && let Err(error) = self.progress()
        {
            self.failure.get_or_insert(error);
        }
    }
}
