//! Gradient buckets: each bucket is a buffer of several gradients. Backward fills it, one all-reduce sums it
//! over all ranks, and the optimizer reads it in place. With [`SyncOptions::shard`], a reduce-scatter sums it
//! instead, and each rank has the sums of its chunk. With one rank, each gradient has a bucket of its own,
//! which takes the gradient's memory instead of a copy.
//!
//! A parameter is sealed once its gradient is final, that is, once backward no longer changes it in this
//! step. When all parameters of a bucket are sealed, the bucket is full, and its all-reduce starts while
//! backward goes on. Buckets start in order, because MPI matches collectives by order. The last bucket waits
//! for the end of the step: it also carries the [`Signals`] and other values that all ranks need. With
//! [`SyncOptions::shard`], a separate all-reduce sums these values, because a reduce-scatter would give them
//! to one rank only, and few buckets are in flight, because each needs memory.
//!
//! In each step, every rank starts the same collectives, of the same kind, for the same buckets, in the same
//! order. Ranks may have different samples and take different branches. Such differences change only the time
//! at which a bucket starts.
//!
//! A rank may use a parameter more often than expected, or not at all, or change a gradient after its bucket
//! is full. In each of these cases, the rank sets a flag in the last bucket. If at least one rank has set
//! the flag, all ranks make a second all-reduce ([`Irregular`]).

mod chunks;
mod late;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

pub(crate) use self::late::Irregular;
use crate::clock::Clock;
use crate::collective::operation::Call;
use crate::ddp::buckets::chunks::widened;
use crate::ddp::buffers::{BucketPlan, Buffers, CONTROL, Part};
use crate::ddp::compressed::Compressor;
use crate::ddp::options::{SyncOptions, WireType};
use crate::ddp::report::CommTimes;
use crate::ddp::report::{SyncEvent, SyncWatch};
use crate::{Collective, CommError, Operation, SharedError, Wire};

/// Values that are summed over ranks together with the gradients of a step. A rank passes 0 or 1, and the sum
/// is a number of ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Signals {
    /// Number of ranks with a NaN or infinite loss.
    pub not_finite: f32,
    /// Number of ranks that received a stop request.
    pub stop: f32,
}

/// Calls a function with each of a rank's gradients, as [`each`](super::collector::each) does.
type OwnGradients = Box<dyn Fn(&mut dyn FnMut(usize, Option<FlexTensor>))>;

/// All buckets of one rank.
pub(crate) struct Buckets {
    pub collective: Box<dyn Collective>,
    pub options: SyncOptions,
    pub plan: BucketPlan,
    pub times: CommTimes,
    /// Receives events; `None` if nobody asked for them.
    pub watch: Option<SyncWatch>,
    /// Number of times that the model uses each parameter. Autodiff registers a parameter's gradient once for
    /// each use, and the gradient is final after the last registration.
    pub uses: Vec<usize>,
    /// The parameters that are tied to an earlier one, which has their gradient.
    pub tied: Vec<usize>,
    /// For each parameter, true if no rank had a gradient of it in the last step.
    pub absent: Vec<bool>,
    /// Number of bytes of all buffers that this rank has passed to collectives.
    pub sent: u64,
    /// Sums the buckets by a compression; `None` if they are sent as they are.
    pub compressor: Option<Compressor>,
    /// This rank.
    rank: usize,
    /// The values that this rank updates: its chunk of each bucket if the state is sharded, otherwise all.
    parts: Vec<Part>,
    /// Indices of `parts` in the order of their buckets and slots.
    parts_by_slot: Vec<usize>,
    pub(super) buffers: Buffers,
    /// The step in progress, or the last one.
    pub step: Step,
    pub(super) clock: Clock,
}

/// This rank's part of the current step.
#[derive(Default)]
pub(crate) struct Step {
    /// Number of buckets that backward has filled; a gradient that comes later is late. A full bucket starts
    /// at once, or as soon as a few others are complete. The sums must not depend on when it starts.
    full: usize,
    /// Number of buckets started. Buckets start in the order of the plan.
    pub(super) started: usize,
    /// Number of buckets of which this rank has its chunk of the sums. Only if the optimizer state is
    /// sharded.
    pub(super) scattered: usize,
    /// Whether each parameter has a gradient in this step.
    written: Vec<bool>,
    /// Whether each parameter is sealed: its bucket no longer waits for it.
    sealed: Vec<bool>,
    /// Number of backward calls in this step.
    backwards: usize,
    /// Factor that scales the gradients of the current backward: the backward's share of the step's samples.
    weight: f32,
    /// Sum of the weights of all backward calls. It is an f64, because a step may have thousands of calls,
    /// whose rounding errors would add up in f32.
    share: f64,
    /// Gradients that came after their bucket had started, by parameter. Each is scaled by its backward's
    /// share of the step's samples.
    late: BTreeMap<usize, Vec<f32>>,
    /// Whether the program has replaced a gradient after a bucket took it.
    replaced: bool,
    /// This rank's gradients, not scaled; `None` unless the program can replace gradients. If a rank has
    /// replaced a gradient, all ranks reduce all gradients again.
    pub own: Option<OwnGradients>,
    /// Start of the current period of backward in which at least one bucket is in flight; `None` outside such
    /// a period.
    in_flight_since: Option<Duration>,
    failure: Option<CommError>,
    /// The first parameter whose gradient fits in no bucket, because the module has changed.
    pub unexpected: Option<usize>,
}

impl Buckets {
    pub fn new(
        collective: Box<dyn Collective>,
        options: SyncOptions,
        plan: BucketPlan,
        params: usize,
        rank: usize,
        clock: Clock,
    ) -> Self {
        let mut buckets = Self {
            collective,
            rank,
            parts: Vec::new(),
            parts_by_slot: Vec::new(),
            buffers: Buffers::empty(0),
            options,
            plan,
            times: CommTimes::default(),
            watch: None,
            uses: vec![1; params],
            tied: Vec::new(),
            absent: vec![false; params],
            sent: 0,
            compressor: None,
            step: Step::default(),
            clock,
        };
        buckets.set_parts();
        buckets.buffers = buckets.new_buffers(&buckets.plan);
        buckets
    }

    /// Calls the watch, if there is one.
    #[inline]
    pub fn notify(&self, event: SyncEvent) {
        if let Some(watch) = self.watch {
            watch(event);
        }
    }

    /// Replaces the plan, and allocates buffers for it. Call it between steps only.
    pub fn set_plan(&mut self, plan: BucketPlan) {
        self.buffers = self.new_buffers(&plan);
        if let Some(compressor) = &mut self.compressor {
            compressor.set_plan(&plan);
        }
        self.plan = plan;
        self.set_parts();
    }

    /// Returns whether buckets can start before the end of a backward: overlap is enabled, and there are
    /// several ranks and several buckets. The last bucket always waits for the end, because it carries the
    /// signals.
    pub fn can_overlap(&self) -> bool {
        self.options.overlap && !self.is_alone() && self.plan.buckets().len() > 1
    }

    /// Returns whether there is one rank, which sends nothing.
    #[inline]
    pub(super) fn is_alone(&self) -> bool {
        self.collective.world_size() == 1
    }

    /// Begins a step.
    pub fn begin(&mut self) {
        let Step { mut written, mut sealed, .. } = std::mem::take(&mut self.step);
        for flags in [&mut written, &mut sealed] {
            flags.clear();
            flags.resize(self.uses.len(), false);
        }
        self.step = Step { written, sealed, ..Step::default() };
        self.buffers.release();
        if self.is_scattered() {
            self.buffers = self.new_buffers(&self.plan);
        }
    }

    /// Takes the final gradient of `param`, and starts the buckets that are now full. Call it at most once
    /// per parameter in a backward.
    pub fn take(&mut self, param: usize, values: &[f32]) {
        self.add(param, values);
        self.mark(param);
        self.start_full();
    }

    /// Makes progress on the buckets in flight during backward.
    pub fn poll(&mut self) {
        if self.step.started == 0 || self.step.failure.is_some() {
            return;
        }
        match self.collective.poll() {
            Ok(in_flight) => {
                self.notify(SyncEvent::InFlight(in_flight));
                if in_flight == 0 {
                    self.note_finished();
                }
                if self.is_scattered() {
                    self.step.failure = self.take_chunks().err();
                    self.start_next_full();
                }
            }
            Err(error) => self.step.failure = Some(error),
        }
    }

    /// Begins a backward whose gradients are scaled by `weight`. If `is_probe` is true, the number of uses of
    /// each parameter is not known yet, and no gradient counts as final before the end of this backward.
    pub fn begin_backward(&mut self, weight: f32, is_probe: bool) {
        if is_probe {
            self.uses.fill(usize::MAX);
        }
        self.step.weight = weight;
        self.step.share += f64::from(weight);
        self.step.backwards += 1;
    }

    /// Adds `gradient`, a contiguous f32 tensor, as [`add`](Self::add) does. With one rank, a gradient that is
    /// neither scaled nor summed becomes the memory of its bucket.
    pub fn add_tensor(&mut self, param: usize, gradient: &FlexTensor) {
        let values = values_in(gradient);
        if self.is_alone()
            && self.step.weight == 1.0
            && !self.step.written[param]
            && self.length(param) == values.len()
            && let Some((bucket, _)) = self.plan.place(param)
            && self.buffers.adopt(bucket, gradient)
        {
            self.step.written[param] = true;
        } else {
            self.add(param, values);
        }
    }

    /// Adds `gradient`, scaled, to the gradient of `param` in its bucket. A gradient that comes after its
    /// bucket is full is kept aside, and reduced at the end of the step.
    pub fn add(&mut self, param: usize, gradient: &[f32]) {
        let fits = |(_, range): &(usize, Range<usize>)| range.len() == gradient.len();
        let Some((bucket, range)) = self.plan.place(param).filter(fits) else {
            // Burn has the gradient of a tied parameter for each of its fields.
            if !self.tied.contains(&param) {
                self.step.unexpected.get_or_insert(param);
            }
            return;
        };
        self.copying(|this| {
            let is_late = bucket < this.step.full.max(this.step.started);
            if !is_late {
                this.allocate(bucket);
            }
            let Step { weight, written, late, .. } = &mut this.step;
            let weight = *weight;
            let first = !std::mem::replace(&mut written[param], true);
            match this.buffers.slots(bucket, range).filter(|_| !is_late) {
                // This rank has all samples of the step, so the gradient is not scaled.
                Some(slots) if first && weight == 1.0 => {
                    on_threads(slots, gradient, |slots, gradient| slots.copy_from_slice(gradient));
                }
                Some(slots) => on_threads(slots, gradient, |slots, gradient| {
                    let slots = slots.iter_mut().zip(gradient);
                    if first {
                        slots.for_each(|(slot, value)| *slot = value * weight)
                    } else {
                        slots.for_each(|(slot, value)| *slot += value * weight)
                    }
                }),
                None => {
                    let sum = late.entry(param).or_insert_with(|| vec![0.0; gradient.len()]);
                    sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value * weight);
                }
            }
        });
    }

    /// Records that the program has changed the gradient of `param` after a bucket took it. `gradient` is the
    /// new gradient; `None` if the program removed the gradient. All ranks then reduce all gradients again at
    /// the end of the step.
    pub fn replace(&mut self, param: usize, gradient: Option<&[f32]>) {
        if gradient.is_some_and(|gradient| gradient.len() != self.length(param)) {
            self.step.unexpected.get_or_insert(param);
        }
        self.step.written[param] = gradient.is_some();
        self.step.replaced = true;
    }

    /// Number of values of `param`'s gradient; 0 if the parameter gets no gradient.
    fn length(&self, param: usize) -> usize {
        self.plan.place(param).map_or(0, |(_, range)| range.len())
    }

    /// Marks all parameters as final in this step, and starts the full buckets.
    pub fn seal_all(&mut self) {
        (0..self.uses.len()).for_each(|param| self.mark(param));
        self.start_full();
    }

    /// Marks `param` as final in this step. If it has no gradient so far, its gradient counts as zero.
    fn mark(&mut self, param: usize) {
        if let Some((bucket, range)) = self.plan.place(param)
            && !std::mem::replace(&mut self.step.sealed[param], true)
            && !self.step.written[param]
        {
            self.fill_zeros(bucket, range);
        }
    }

    /// Returns the averaged gradient of `param` in its bucket. Call it after `finish`. Returns `None` for a
    /// parameter that is in no bucket, or while its bucket is in flight.
    pub fn gradient(&self, param: usize) -> Option<&[f32]> {
        let (bucket, range) = self.plan.place(param)?;
        self.buffers.values(bucket, range)
    }

    /// Returns the averaged gradient of `param` as a flex tensor that shares the bucket's memory; `None` as
    /// for [`gradient`](Self::gradient).
    pub fn gradient_tensor(&mut self, param: usize, shape: Vec<usize>) -> Option<FlexTensor> {
        let (bucket, range) = self.plan.place(param)?;
        self.buffers.tensor(bucket, range, shape)
    }

    /// Returns the averaged gradient of `param`, mutable; `None` as for [`gradient`](Self::gradient).
    pub fn gradient_mut(&mut self, param: usize) -> Option<&mut [f32]> {
        let (bucket, range) = self.plan.place(param)?;
        self.buffers.slots(bucket, range)
    }

    /// Ends the step: sends `mine` with the last bucket, and waits for all buckets. Missing gradients count
    /// as zero. Overwrites `averaged` with its mean over the ranks that ran a backward in this step.
    pub fn finish(&mut self, mine: Signals, averaged: &mut [f32]) -> Result<(Signals, Irregular), CommError> {
        if let Some(failure) = self.step.failure.take() {
            return Err(failure);
        }
        self.note_finished();
        let incomplete = self.clear_unwritten();
        let (moved, has_backward) =
            (!self.step.late.is_empty() || self.step.replaced, self.step.backwards > 0);
        let irregular = flag(moved || (has_backward && incomplete));
        let mut tail =
            vec![mine.not_finite, mine.stop, irregular, flag(has_backward), self.step.share as f32];
        tail.extend(averaged.iter().map(|value| if has_backward { *value } else { 0.0 }));
        // A 16-bit bucket rounds the values that it carries.
        let wire = if self.options.shard { WireType::F32 } else { self.options.wire };
        let sums = if self.options.shard { self.reduce_chunks(&tail)? } else { self.reduce(&tail)? };
        let (irregular, with_backward, share) = (sums[2] > 0.0, sums[3], sums[4]);
        if with_backward > 0.0 && (share - 1.0).abs() > share_tolerance(wire) {
            // `GradientSync::reduce_with` adds the samples, which are not known here.
            return Err(CommError::Shared(SharedError::Shares { share, samples: Vec::new() }));
        }
        if !averaged.is_empty() && with_backward > 0.0 {
            // Values that a bucket has rounded are summed again as f32.
            let sums = if self.is_alone() || wire == WireType::F32 {
                &sums[CONTROL..]
            } else {
                &self.sum(tail.split_off(CONTROL))?
            };
            averaged.iter_mut().zip(sums).for_each(|(mean, sum)| *mean = sum / with_backward);
        }
        // If no rank ran a backward, no parameter has a gradient, and `reduce_late` records this.
        let irregular =
            if irregular || with_backward == 0.0 { self.reduce_late()? } else { Irregular::default() };
        // This rank's gradients are kept until here, because another rank may have replaced one of its
        // gradients.
        self.step.own = None;
        self.absent.fill(false);
        irregular.absent.iter().for_each(|&param| self.absent[param] = true);
        Ok((Signals { not_finite: sums[0], stop: sums[1] }, irregular))
    }

    /// Counts and starts the buckets that are full now, and makes progress on the buckets in flight. The last
    /// bucket waits for `finish`, because it carries the signals.
    fn start_full(&mut self) {
        let last = self.plan.buckets().len() - 1;
        let is_full = |this: &Self| {
            this.plan.buckets()[this.step.full].params.iter().all(|&param| this.step.sealed[param])
        };
        while self.can_overlap() && self.step.full < last && is_full(self) {
            self.step.full += 1;
        }
        self.start_next_full();
        self.poll();
    }

    /// Starts full buckets, in order, because MPI matches collectives by order. An error is kept and returned
    /// at the end of the step.
    fn start_next_full(&mut self) {
        while self.step.started < self.step.full && self.step.failure.is_none() && self.can_start() {
            self.step.failure = self.start_next().err();
            self.step.in_flight_since.get_or_insert_with(|| self.clock.now());
        }
    }

    pub(super) fn start_next(&mut self) -> Result<(), CommError> {
        let bucket = self.step.started;
        self.step.started += 1;
        let sum = if self.options.shard { Operation::reduce_scatter } else { Operation::all_reduce };
        match self.first_round(bucket).or_else(|| self.pack(bucket)) {
            Some(wire) => self.start(bucket, sum(bucket, &wire, self.options.reduction), wire),
            None => Ok(()),
        }
    }

    pub(super) fn start(&mut self, bucket: usize, operation: Operation, wire: Wire) -> Result<(), CommError> {
        let bytes = (wire.bytes().len() / wire.len().max(1) * operation.length) as u64;
        // A reduce-scatter and an all-gather together are an all-reduce.
        self.sent += if operation.call == Call::AllReduce { bytes } else { bytes / 2 };
        self.notify(SyncEvent::BucketBegin(bucket));
        self.collective.start(operation, wire)?;
        self.notify(SyncEvent::BucketEnd(bucket));
        Ok(())
    }

    pub(super) fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        self.notify(SyncEvent::BucketBegin(bucket));
        let wire = self.collective.wait(bucket)?;
        self.notify(SyncEvent::BucketEnd(bucket));
        Ok(wire)
    }

    /// Ends the current period in which buckets are in flight during backward, and adds it to the hidden
    /// time.
    fn note_finished(&mut self) {
        if let Some(since) = self.step.in_flight_since.take() {
            self.times.hidden += self.clock.now() - since;
        }
    }

    /// Reduces every remaining bucket. The last bucket carries `tail`, whose sums over ranks are returned. If
    /// overlap is enabled, first starts all buckets except the last, and then waits for them, even though
    /// backward has ended: another rank may have started these buckets during its backward, and MPI does not
    /// match a non-blocking collective with a blocking one.
    fn reduce(&mut self, tail: &[f32]) -> Result<Vec<f32>, CommError> {
        if self.is_alone() {
            return Ok(tail.to_vec());
        }
        let last = self.plan.buckets().len() - 1;
        let start = self.plan.buckets()[last].len;
        let range = start..start + tail.len();
        if let Some(slots) = self.buffers.slots(last, range.clone()) {
            slots.copy_from_slice(tail);
        }
        self.reduce_whole(last)?;
        Ok(self.buffers.values(last, range).unwrap_or(tail).to_vec())
    }

    fn reduce_whole(&mut self, last: usize) -> Result<(), CommError> {
        if self.compressor.is_some() {
            return self.exchange(last);
        }
        let began = self.clock.now();
        let copied = self.times.copy;
        while self.options.overlap && self.step.started < last {
            self.start_next()?;
        }
        let in_flight = self.step.started;
        while self.step.started <= last {
            let bucket = self.step.started;
            self.step.started += 1;
            if let Some(mut wire) = self.pack(bucket) {
                self.sent += wire.bytes().len() as u64;
                self.notify(SyncEvent::BucketBegin(bucket));
                self.collective.all_reduce(&mut wire, self.options.reduction)?;
                self.notify(SyncEvent::BucketEnd(bucket));
                self.unpack(bucket, wire, 0);
            }
        }
        for bucket in 0..in_flight {
            let wire = self.wait(bucket)?;
            self.unpack(bucket, wire, 0);
        }
        self.times.exposed += (self.clock.now() - began).saturating_sub(self.times.copy - copied);
        Ok(())
    }

    /// Sums `values` over ranks. Sends f32, even if gradients are sent in a 16-bit type.
    fn sum(&mut self, values: Vec<f32>) -> Result<Vec<f32>, CommError> {
        if self.is_alone() {
            return Ok(values);
        }
        let mut wire = Wire::F32(values);
        self.sent += wire.bytes().len() as u64;
        self.collective.all_reduce(&mut wire, self.options.reduction)?;
        match wire {
            Wire::F32(values) => Ok(values),
            _ => unreachable!("a buffer comes back as it left"),
        }
    }

    /// Writes zeros for the gradients that this rank lacks into the buckets that have not started. Returns
    /// whether this rank lacks a gradient. A rank lacks a gradient if it has no samples in this step or does
    /// not use the parameter.
    fn clear_unwritten(&mut self) -> bool {
        let mut incomplete = false;
        for param in 0..self.step.written.len() {
            if let Some((bucket, range)) = self.plan.place(param).filter(|_| !self.step.written[param]) {
                incomplete = true;
                if bucket >= self.step.started {
                    self.fill_zeros(bucket, range);
                }
            }
        }
        incomplete
    }

    fn fill_zeros(&mut self, bucket: usize, range: Range<usize>) {
        self.allocate(bucket);
        if let Some(slots) = self.buffers.slots(bucket, range) {
            slots.fill(0.0);
        }
    }

    /// Returns the bucket as it is sent; `None` if it is already in flight.
    fn pack(&mut self, bucket: usize) -> Option<Wire> {
        self.copying(|this| {
            if this.is_scattered() {
                return this.pack_whole(bucket);
            }
            this.buffers.pack(bucket)
        })
    }

    /// Takes back a bucket after its reduction. `start` is the index of its first value.
    pub(super) fn unpack(&mut self, bucket: usize, wire: Wire, start: usize) {
        self.copying(|this| {
            let wire = if this.is_scattered() { widened(wire) } else { wire };
            this.buffers.unpack(bucket, wire, start);
        });
    }

    /// Runs `body`, which copies values into or out of buckets, and adds its time to the copy time.
    pub(super) fn copying<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let began = self.clock.now();
        self.notify(SyncEvent::CopyBegin);
        let result = body(self);
        self.notify(SyncEvent::CopyEnd);
        self.times.copy += self.clock.now() - began;
        result
    }
}

/// Returns the values of a contiguous f32 tensor.
pub(super) fn values_in(gradient: &FlexTensor) -> &[f32] {
    gradient.as_slice().unwrap_or_default()
}

/// Number of values that a thread copies at a time.
const PART: usize = 1 << 15;

/// Calls `copy` for parts of both slices. If this thread belongs to a rayon pool, as after
/// `burn_fused::use_threads`, the threads of the pool share the parts of a large gradient.
fn on_threads(slots: &mut [f32], gradient: &[f32], copy: impl Fn(&mut [f32], &[f32]) + Sync) {
    let shares = slots.len() >= 2 * PART && rayon::current_thread_index().is_some();
    if shares && rayon::current_num_threads() > 1 {
        let parts = slots.par_chunks_mut(PART).zip(gradient.par_chunks(PART));
        parts.for_each(|(slots, gradient)| copy(slots, gradient));
    } else {
        copy(slots, gradient);
    }
}

/// Converts a flag into a number that can be summed over ranks.
fn flag(is_set: bool) -> f32 {
    f32::from(u8::from(is_set))
}

/// Tolerance for the sum of all ranks' shares of a step, which should be 1. The shares are summed in the type
/// in which gradients are sent, and bf16 has only 8 bits of precision.
pub(super) fn share_tolerance(wire: WireType) -> f32 {
    if wire == WireType::F32 { 1e-4 } else { 0.05 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{Options, run};
    use crate::{Backend, SyncOptions, Transport, connect};

    #[test]
    fn the_shares_of_many_micro_batches_are_all_of_the_step() {
        let sums = run(2, &Options::default(), |world| {
            let collective = connect(world, Backend::Mpi, &Transport::default())?;
            let (plan, clock) =
                (BucketPlan::new(&[], &[], (1, 1), CONTROL, 2), world.member().activity.clock.clone());
            let mut buckets = Buckets::new(collective, SyncOptions::default(), plan, 0, world.rank(), clock);
            let mut finish = |samples: usize| {
                buckets.begin();
                (0..samples).for_each(|_| buckets.begin_backward(1.0 / 200_000.0, false));
                buckets.finish(Signals::default(), &mut [])
            };
            let short = finish(99_900).unwrap_err().to_string();
            finish(100_000)?;
            Ok::<_, CommError>(short)
        });
        assert!(sums.unwrap().iter().all(|short| short.contains("0.999 times")));
    }
}
