//! Gradients on their way: filled as backward finishes them, reduced as they
//! fill, read by the optimizer where they lie.
//!
//! Ranks may differ in everything but this: in each step every rank issues the
//! same collectives, of the same kind, for the same buckets, in the same order.
//! What a rank has seen decides when a bucket starts, never how.

use std::time::Instant;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::irregular::{Irregular, LateGradients, all_reduce};
use crate::ddp::hook::GradientSink;
use crate::ddp::plan::{BucketPlan, CONTROL};
use crate::ddp::report::{CommTimes, Flights};
use crate::ddp::wire_type::WireType;
use crate::{Collective, CommError, Reduction, Wire};

/// Sums over ranks that travel with the gradients of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Signals {
    /// Ranks with a NaN or infinite loss.
    pub not_finite: f32,
    /// Ranks that were asked to stop.
    pub stop: f32,
}

/// All buckets of one rank.
pub(crate) struct Buckets {
    pub collective: Box<dyn Collective>,
    pub reduction: Reduction,
    pub wire: WireType,
    pub plan: BucketPlan,
    pub times: CommTimes,
    /// Times that each parameter is used in the network; its gradient is final
    /// when it has been registered as often.
    pub uses: Vec<usize>,
    /// Parameters without a gradient on any rank in the last step.
    pub absent: Vec<bool>,
    /// Whether buckets start while backward runs, rather than all in `finish`.
    overlap: bool,
    /// The f32 buffers; one that travels as f32 is away until it is back.
    buffers: Vec<Option<Vec<f32>>>,
    /// The 16-bit buffers, where the wire is narrower.
    narrow: Vec<Option<Wire>>,
    /// Parameters that a bucket still waits for.
    missing: Vec<usize>,
    /// Buckets started; always the first ones, on every rank.
    started: usize,
    /// Parameters with a gradient in this step.
    written: Vec<bool>,
    /// Parameters that no bucket waits for any more in this step.
    sealed: Vec<bool>,
    /// This rank's backward calls in this step.
    backwards: usize,
    weight: f32,
    late: LateGradients,
    flights: Flights,
    failure: Option<CommError>,
}

impl Buckets {
    pub fn new(
        collective: Box<dyn Collective>,
        reduction: Reduction,
        wire: WireType,
        overlap: bool,
        plan: BucketPlan,
        lengths: Vec<usize>,
    ) -> Self {
        let params = lengths.len();
        let mut buckets = Self {
            collective,
            reduction,
            wire,
            times: CommTimes::default(),
            uses: vec![1; params],
            absent: vec![false; params],
            overlap,
            buffers: Vec::new(),
            narrow: Vec::new(),
            missing: Vec::new(),
            started: 0,
            written: vec![false; params],
            sealed: vec![false; params],
            backwards: 0,
            weight: 1.0,
            late: LateGradients::new(lengths),
            flights: Flights::default(),
            failure: None,
            plan: plan.clone(),
        };
        buckets.set_plan(plan);
        buckets
    }

    /// Packs the gradients anew. Between steps only.
    pub fn set_plan(&mut self, plan: BucketPlan) {
        let sizes = plan.buckets().iter().map(|bucket| bucket.padded);
        self.buffers = sizes.clone().map(|size| Some(vec![0.0; size])).collect();
        self.narrow = sizes
            .map(|size| match self.wire {
                WireType::F32 => None,
                WireType::Bf16 => Some(Wire::Bf16(vec![bf16::ZERO; size])),
                WireType::F16 => Some(Wire::F16(vec![f16::ZERO; size])),
            })
            .collect();
        self.plan = plan;
    }

    /// Sets whether buckets start while backward runs. Between steps, on all
    /// ranks.
    pub fn set_overlap(&mut self, overlap: bool) {
        self.overlap = overlap;
    }

    /// Whether a bucket can start before the end of a backward: the last one
    /// cannot, since it carries the signals.
    pub fn can_overlap(&self) -> bool {
        self.overlap && self.collective.world_size() > 1 && self.buffers.len() > 1
    }

    /// Begins a step.
    pub fn begin(&mut self) {
        self.started = 0;
        self.backwards = 0;
        self.written.fill(false);
        self.sealed.fill(false);
        self.late.clear();
        self.missing.clear();
        self.missing.extend(self.plan.buckets().iter().map(|bucket| bucket.params.len()));
    }

    /// Begins a backward whose gradients count `weight`.
    pub fn begin_backward(&mut self, weight: f32) {
        self.weight = weight;
        self.backwards += 1;
    }

    /// Adds to the gradient of `param`. What comes after its bucket has started
    /// is kept aside, and reduced at the end of the step.
    pub fn add(&mut self, param: usize, gradient: &[f32]) {
        let began = Instant::now();
        let (bucket, range) = self.plan.place(param);
        let weight = self.weight;
        let first = !std::mem::replace(&mut self.written[param], true);
        match &mut self.buffers[bucket] {
            Some(buffer) if bucket >= self.started => {
                let slots = buffer[range].iter_mut().zip(gradient);
                match first {
                    true => slots.for_each(|(slot, value)| *slot = value * weight),
                    false => slots.for_each(|(slot, value)| *slot += value * weight),
                }
            }
            _ => self.late.add(param, gradient, weight),
        }
        self.times.copy += began.elapsed();
    }

    /// No bucket waits for `param` any more in this step. Without a gradient so
    /// far, it counts as zero.
    pub fn seal(&mut self, param: usize) {
        if !std::mem::replace(&mut self.sealed[param], true) {
            let (bucket, range) = self.plan.place(param);
            self.missing[bucket] -= 1;
            if let (false, Some(buffer)) = (self.written[param], &mut self.buffers[bucket]) {
                buffer[range].fill(0.0);
            }
        }
        if let Err(error) = self.start_full() {
            self.failure.get_or_insert(error);
        }
    }

    /// No bucket waits for anything any more in this step.
    pub fn seal_all(&mut self) {
        for bucket in 0..self.buffers.len() {
            for at in 0..self.plan.buckets()[bucket].params.len() {
                self.seal(self.plan.buckets()[bucket].params[at]);
            }
        }
    }

    /// Ends the step: gradients that have not come count as zero, `mine` goes
    /// along, and every bucket is waited for.
    /// `averaged` becomes its mean over the ranks with a backward.
    pub fn finish(&mut self, mine: Signals, averaged: &mut [f32]) -> Result<(Signals, Irregular), CommError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.times.hidden += self.flights.landed();
        let incomplete = self.clear_unwritten();
        let irregular = self.late.any() || (self.backwards > 0 && incomplete);
        let last = self.buffers.len() - 1;
        let control = self.plan.buckets()[last].len;
        let flag = |set: bool| if set { 1.0 } else { 0.0 };
        let signals = [mine.not_finite, mine.stop, flag(irregular), flag(self.backwards > 0)];
        if let Some(buffer) = &mut self.buffers[last] {
            let (control, carried) = buffer[control..].split_at_mut(CONTROL);
            control.copy_from_slice(&signals);
            carried.fill(0.0);
            if self.backwards > 0 {
                carried[..averaged.len()].copy_from_slice(averaged);
            }
        }
        if self.collective.world_size() > 1 {
            self.reduce(last)?;
        }
        let sums = self.buffers[last].as_deref().map_or(&signals[..], |buffer| &buffer[control..]);
        let signals = Signals { not_finite: sums[0], stop: sums[1] };
        let with_backward = sums[3];
        let irregular = sums[2] > 0.0 || with_backward == 0.0;
        self.average(averaged, last, control + CONTROL, with_backward)?;
        // Without a backward on any rank, no parameter has a gradient.
        let irregular = match irregular {
            true => self.settle()?,
            false => Irregular::default(),
        };
        self.absent.fill(false);
        irregular.absent.iter().for_each(|&param| self.absent[param] = true);
        Ok((signals, irregular))
    }

    /// Reads `averaged` from where its sums are: at `at` of the `last` bucket, after
    /// its reduction, if that is f32.
    fn average(&mut self, averaged: &mut [f32], last: usize, at: usize, ranks: f32) -> Result<(), CommError> {
        if averaged.is_empty() || ranks == 0.0 {
            return Ok(());
        }
        let alone = self.collective.world_size() == 1;
        let sums = match &self.buffers[last] {
            Some(buffer) if alone || self.narrow[last].is_none() => &buffer[at..],
            _ => {
                let own = if self.backwards > 0 { averaged.to_vec() } else { vec![0.0; averaged.len()] };
                &all_reduce(self.collective.as_mut(), self.reduction, own)?
            }
        };
        averaged.iter_mut().zip(sums).for_each(|(mean, sum)| *mean = sum / ranks);
        Ok(())
    }

    /// The averaged gradient of `param` in its bucket, after `finish`.
    pub fn gradient(&self, param: usize) -> &[f32] {
        let (bucket, range) = self.plan.place(param);
        self.buffers[bucket].as_ref().map_or(&[], |buffer| &buffer[range])
    }

    /// The same, to be changed there.
    pub fn gradient_mut(&mut self, param: usize) -> &mut [f32] {
        let (bucket, range) = self.plan.place(param);
        self.buffers[bucket].as_mut().map_or(&mut [], |buffer| &mut buffer[range])
    }

    /// Starts the buckets that are full, in order, as MPI matches collectives
    /// by order; the last one waits for `finish`, since it carries the signals.
    fn start_full(&mut self) -> Result<(), CommError> {
        if !self.can_overlap() {
            return Ok(());
        }
        let last = self.buffers.len() - 1;
        while self.started < last && self.missing[self.started] == 0 {
            self.start_next()?;
            self.flights.took_off();
        }
        self.progress()
    }

    fn start_next(&mut self) -> Result<(), CommError> {
        let bucket = self.started;
        self.started += 1;
        match self.pack(bucket) {
            Some(wire) => self.collective.start(bucket, wire, self.reduction),
            None => Ok(()),
        }
    }

    fn progress(&mut self) -> Result<(), CommError> {
        self.collective.progress()?;
        if self.collective.in_flight() == 0 {
            self.times.hidden += self.flights.landed();
        }
        Ok(())
    }

    /// Reduces every bucket that is still here. With overlap all but the last
    /// are started and then waited for, also those for which nothing is left to
    /// overlap: another rank may have started them during its backward, and
    /// MPI matches a started collective with no blocking one.
    fn reduce(&mut self, last: usize) -> Result<(), CommError> {
        let began = Instant::now();
        let copied = self.times.copy;
        while self.overlap && self.started < last {
            self.start_next()?;
        }
        let in_flight = self.started;
        while self.started <= last {
            let bucket = self.started;
            self.started += 1;
            if let Some(mut wire) = self.pack(bucket) {
                self.collective.all_reduce(&mut wire, self.reduction)?;
                self.unpack(bucket, wire);
            }
        }
        for bucket in 0..in_flight {
            let wire = self.collective.wait(bucket)?;
            self.unpack(bucket, wire);
        }
        self.times.exposed += began.elapsed().saturating_sub(self.times.copy - copied);
        Ok(())
    }

    /// Reduces what some rank has besides its buckets, and learns which
    /// parameters have no gradient on any rank. Every rank comes here in the
    /// same step, since the signals said so to all.
    fn settle(&mut self) -> Result<Irregular, CommError> {
        let began = Instant::now();
        let irregular = self.late.exchange(self.collective.as_mut(), self.reduction, &self.written)?;
        for (param, sum) in self.late.sums(self.collective.as_mut(), self.reduction, &irregular)? {
            self.gradient_mut(param).iter_mut().zip(sum).for_each(|(slot, value)| *slot += value);
        }
        self.times.exposed += began.elapsed();
        Ok(irregular)
    }

    /// The bucket as it travels: its buffer itself, or a narrower copy.
    fn pack(&mut self, bucket: usize) -> Option<Wire> {
        let began = Instant::now();
        let wire = match (self.narrow[bucket].take(), &self.buffers[bucket]) {
            (Some(Wire::Bf16(mut narrow)), Some(wide)) => {
                narrow.convert_from_f32_slice(wide);
                Some(Wire::Bf16(narrow))
            }
            (Some(Wire::F16(mut narrow)), Some(wide)) => {
                narrow.convert_from_f32_slice(wide);
                Some(Wire::F16(narrow))
            }
            _ => self.buffers[bucket].take().map(Wire::F32),
        };
        self.times.copy += began.elapsed();
        wire
    }

    fn unpack(&mut self, bucket: usize, wire: Wire) {
        let began = Instant::now();
        match (wire, &mut self.buffers[bucket]) {
            (Wire::F32(values), buffer) => *buffer = Some(values),
            (Wire::Bf16(narrow), Some(wide)) => {
                narrow.convert_to_f32_slice(wide);
                self.narrow[bucket] = Some(Wire::Bf16(narrow));
            }
            (Wire::F16(narrow), Some(wide)) => {
                narrow.convert_to_f32_slice(wide);
                self.narrow[bucket] = Some(Wire::F16(narrow));
            }
            _ => unreachable!("a bucket comes back as it left"),
        }
        self.times.copy += began.elapsed();
    }

    /// Writes zeros where this rank has no gradient, because it has no samples
    /// in this step or does not use the parameter; returns whether there is such
    /// a parameter.
    fn clear_unwritten(&mut self) -> bool {
        let mut incomplete = false;
        for (bucket, spec) in self.plan.buckets().iter().enumerate() {
            for &param in spec.params.iter().filter(|&&param| !self.written[param]) {
                incomplete = true;
                if let (true, Some(buffer)) = (bucket >= self.started, &mut self.buffers[bucket]) {
                    buffer[self.plan.place(param).1].fill(0.0);
                }
            }
        }
        incomplete
    }
}

impl GradientSink for Buckets {
    fn gradient(&mut self, param: usize, n: usize, values: &[f32]) -> bool {
        let is_final = n == self.uses[param];
        if is_final {
            self.add(param, values);
            self.seal(param);
        }
        is_final
    }

    fn between(&mut self) {
        if self.started > 0
            && let Err(error) = self.progress()
        {
            self.failure.get_or_insert(error);
        }
    }
}
