//! Reduction of full buckets: which start when, and the final wait.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Buckets, Signals};
use crate::ddp::plan::CONTROL;
use crate::ddp::watch::SyncEvent;
use crate::ddp::wire_type::WireType;
use crate::{CommError, Operation, SharedError, Wire};

/// How far the sum of all ranks' shares of a step may be from 1: it is summed in the type of the gradients, of
/// which bf16 has 8 bits.
fn share_tolerance(wire: WireType) -> f32 {
    if wire == WireType::F32 { 1e-4 } else { 0.05 }
}

/// What does not fit the bucket plan in a step, the same on every rank.
///
/// A bucket starts when each of its parameters has been registered as often as
/// the plan expects. A network may use a parameter more often than that, on one
/// rank only, or run another backward after the last one. The difference is then
/// kept aside and reduced at the end of the step, on all ranks. A program may change a gradient after its
/// bucket has started, on one rank only: it is then reduced again as a whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Irregular {
    /// Parameters with a late gradient on some rank.
    pub late: Vec<usize>,
    /// Whether a gradient was replaced on some rank after its bucket had started.
    pub replaced: bool,
    /// Parameters without a gradient on any rank.
    pub absent: Vec<usize>,
}

impl Buckets {
    /// Ends the step: missing gradients count as zero, `mine` is sent along, and
    /// all buckets are waited for. `averaged` becomes its mean over the ranks with
    /// a backward.
    pub fn finish(&mut self, mine: Signals, averaged: &mut [f32]) -> Result<(Signals, Irregular), CommError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.note_finished();
        let incomplete = self.clear_unwritten();
        let moved = !self.late.is_empty() || self.replaced.contains(&true);
        let irregular = moved || (self.backwards > 0 && incomplete);
        let last = self.plan.buckets().len() - 1;
        let control = self.plan.buckets()[last].len;
        let flag = |set: bool| if set { 1.0 } else { 0.0 };
        let signals =
            [mine.not_finite, mine.stop, flag(irregular), flag(self.backwards > 0), self.share as f32];
        let controls = control..control + CONTROL;
        if let Some(slots) = self.buffers.slots(last, controls.clone()) {
            slots.copy_from_slice(&signals);
        }
        let carried = self.carried(averaged.len());
        if let Some(slots) = self.buffers.slots(last, carried.clone()) {
            match self.backwards > 0 {
                true => slots.copy_from_slice(averaged),
                false => slots.fill(0.0),
            }
        }
        if self.collective.world_size() > 1 {
            self.reduce(last)?;
        }
        let sums = self.buffers.values(last, controls).unwrap_or(&signals);
        let signals = Signals { not_finite: sums[0], stop: sums[1] };
        let (irregular, with_backward, share) = (sums[2] > 0.0, sums[3], sums[4]);
        if with_backward > 0.0 && (share - 1.0).abs() > share_tolerance(self.options.wire) {
            // The samples are added where they are known.
            return Err(CommError::Shared(SharedError::Shares { share, samples: Vec::new() }));
        }
        self.average(averaged, with_backward)?;
        // Without a backward on any rank, no parameter has a gradient.
        let irregular = match irregular || with_backward == 0.0 {
            true => self.reduce_late()?,
            false => Irregular::default(),
        };
        // Not before: another rank may have replaced a gradient.
        self.own = None;
        self.absent.fill(false);
        irregular.absent.iter().for_each(|&param| self.absent[param] = true);
        Ok((signals, irregular))
    }

    /// The range in the last bucket of `values` that are averaged with the
    /// signals.
    fn carried(&self, values: usize) -> Range<usize> {
        let buckets = self.plan.buckets();
        let start = buckets[buckets.len() - 1].len + CONTROL;
        start..start + values
    }

    /// Reads `averaged` from its sums over `ranks`: in the last bucket after its
    /// reduction, if that is f32, and else by a separate all-reduce.
    fn average(&mut self, averaged: &mut [f32], ranks: f32) -> Result<(), CommError> {
        if averaged.is_empty() || ranks == 0.0 {
            return Ok(());
        }
        let last = self.plan.buckets().len() - 1;
        let exact = self.collective.world_size() == 1 || !self.buffers.is_narrow(last);
        let sums = match self.buffers.values(last, self.carried(averaged.len())) {
            Some(sums) if exact => sums,
            _ => {
                let own = if self.backwards > 0 { averaged.to_vec() } else { vec![0.0; averaged.len()] };
                &self.sum(own)?
            }
        };
        averaged.iter_mut().zip(sums).for_each(|(mean, sum)| *mean = sum / ranks);
        Ok(())
    }

    /// Starts the full buckets, in order, because MPI matches collectives by
    /// order; the last one waits for `finish`, since it carries the signals.
    pub(super) fn start_full(&mut self) -> Result<(), CommError> {
        if !self.can_overlap() {
            return Ok(());
        }
        let last = self.plan.buckets().len() - 1;
        while self.started < last && self.missing[self.started] == 0 {
            self.start_next()?;
            self.in_flight_since.get_or_insert_with(|| self.clock.now());
        }
        self.progress()
    }

    fn start_next(&mut self) -> Result<(), CommError> {
        let bucket = self.started;
        self.started += 1;
        if let Some(wire) = self.pack(bucket) {
            self.tell(SyncEvent::BucketBegin(bucket));
            self.collective.start(bucket, Operation::AllReduce(self.options.reduction), wire)?;
            self.tell(SyncEvent::BucketEnd(bucket));
        }
        Ok(())
    }

    pub(super) fn progress(&mut self) -> Result<(), CommError> {
        let in_flight = self.collective.poll()?;
        self.tell(SyncEvent::InFlight(in_flight));
        if in_flight == 0 {
            self.note_finished();
        }
        Ok(())
    }

    /// No bucket is in flight any longer.
    fn note_finished(&mut self) {
        if let Some(since) = self.in_flight_since.take() {
            self.times.hidden += self.clock.now() - since;
        }
    }

    /// Reduces every remaining bucket. With overlap all but the last are started
    /// and then waited for, even if nothing is left to overlap: another rank may
    /// have started them during its backward, and MPI does not match a
    /// non-blocking collective with a blocking one.
    fn reduce(&mut self, last: usize) -> Result<(), CommError> {
        let began = self.clock.now();
        let copied = self.times.copy;
        while self.options.overlap && self.started < last {
            self.start_next()?;
        }
        let in_flight = self.started;
        while self.started <= last {
            let bucket = self.started;
            self.started += 1;
            if let Some(mut wire) = self.pack(bucket) {
                self.tell(SyncEvent::BucketBegin(bucket));
                self.collective.all_reduce(&mut wire, self.options.reduction)?;
                self.tell(SyncEvent::BucketEnd(bucket));
                self.unpack(bucket, wire);
            }
        }
        for bucket in 0..in_flight {
            self.tell(SyncEvent::BucketBegin(bucket));
            let wire = self.collective.wait(bucket)?;
            self.tell(SyncEvent::BucketEnd(bucket));
            self.unpack(bucket, wire);
        }
        self.times.exposed += (self.clock.now() - began).saturating_sub(self.times.copy - copied);
        Ok(())
    }

    /// Reduces late and replaced gradients of any rank, and determines which parameters have no
    /// gradient on any rank. Every rank runs it in the same step, because all have
    /// the same signals.
    fn reduce_late(&mut self) -> Result<Irregular, CommError> {
        let began = self.clock.now();
        let params = self.written.len();
        let late = (0..params).map(|param| self.late.contains_key(&param));
        let flags = late.chain(self.written.iter().copied()).chain(self.replaced.iter().copied());
        let ranks = self.sum(flags.map(|flag| f32::from(u8::from(flag))).collect())?;
        let [late, written, replaced] = [0, 1, 2].map(|kind| &ranks[kind * params..][..params]);
        let chosen = |flags: &[f32]| (0..params).filter(|&param| flags[param] > 0.0).collect::<Vec<_>>();
        let (late, replaced) = (chosen(late), chosen(replaced));
        let sums = std::mem::take(&mut self.late);
        self.reduce_again(&late, sums, |slot, sum| *slot += sum)?;
        let own = self.own_gradients(&replaced);
        self.reduce_again(&replaced, own, |slot, sum| *slot = sum)?;
        self.times.exposed += self.clock.now() - began;
        let absent = (0..params).filter(|&param| written[param] == 0.0).collect();
        Ok(Irregular { late, replaced: !replaced.is_empty(), absent })
    }

    /// This rank's gradients of `params`, scaled by its share of the samples.
    fn own_gradients(&mut self, params: &[usize]) -> BTreeMap<usize, Vec<f32>> {
        let mut gradients = BTreeMap::new();
        if let (false, Some(each)) = (params.is_empty(), self.own.take()) {
            each(&|param| params.binary_search(&param).is_err(), &mut |param, values| {
                let scaled = values.map(|values| values.iter().map(|value| value * self.weight).collect());
                gradients.extend(scaled.map(|scaled| (param, scaled)));
            });
        }
        gradients
    }

    /// Sums this rank's `gradients` of `params` over ranks, zeros where it has none, and puts them into their
    /// buckets.
    fn reduce_again(
        &mut self,
        params: &[usize],
        gradients: BTreeMap<usize, Vec<f32>>,
        put: impl Fn(&mut f32, f32),
    ) -> Result<(), CommError> {
        let mut own = Vec::new();
        for param in params {
            match gradients.get(param) {
                Some(values) => own.extend_from_slice(values),
                None => own.resize(own.len() + self.plan.place(*param).1.len(), 0.0),
            }
        }
        if own.is_empty() {
            return Ok(());
        }
        let sums = self.sum(own)?;
        let mut rest = &sums[..];
        for &param in params {
            let slots = self.gradient_mut(param).unwrap_or_default();
            let (sums, after) = rest.split_at(slots.len());
            rest = after;
            slots.iter_mut().zip(sums).for_each(|(slot, sum)| put(slot, *sum));
        }
        Ok(())
    }

    /// Sums `values` over ranks. Always sent as f32, whatever the gradients' type: such
    /// steps are rare.
    fn sum(&mut self, values: Vec<f32>) -> Result<Vec<f32>, CommError> {
        if self.collective.world_size() == 1 {
            return Ok(values);
        }
        let mut wire = Wire::F32(values);
        self.collective.all_reduce(&mut wire, self.options.reduction)?;
        match wire {
            Wire::F32(values) => Ok(values),
            _ => unreachable!("a buffer comes back as it left"),
        }
    }

    /// Writes zeros for gradients that this rank lacks, because it has no samples
    /// in this step or does not use the parameter; returns whether there is such a
    /// parameter.
    fn clear_unwritten(&mut self) -> bool {
        let mut incomplete = false;
        for (bucket, spec) in self.plan.buckets().iter().enumerate() {
            for &param in spec.params.iter().filter(|&&param| !self.written[param]) {
                incomplete = true;
                let slots = self.buffers.slots(bucket, self.plan.place(param).1);
                if let (true, Some(slots)) = (bucket >= self.started, slots) {
                    slots.fill(0.0);
                }
            }
        }
        incomplete
    }

    /// The bucket as sent.
    fn pack(&mut self, bucket: usize) -> Option<Wire> {
        self.copying(|this| this.buffers.pack(bucket))
    }

    fn unpack(&mut self, bucket: usize, wire: Wire) {
        self.copying(|this| this.buffers.unpack(bucket, wire));
    }

    /// Runs `body`, which copies gradients, and adds its time.
    pub(super) fn copying<T>(&mut self, body: impl FnOnce(&mut Self) -> T) -> T {
        let began = self.clock.now();
        self.tell(SyncEvent::CopyBegin);
        let result = body(self);
        self.tell(SyncEvent::CopyEnd);
        self.times.copy += self.clock.now() - began;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::plan::BucketPlan;
    use crate::threads::{Options, run};
    use crate::{Backend, SyncOptions, Transport, connect};

    #[test]
    fn the_shares_of_many_micro_batches_are_all_of_the_step() {
        let sums = run(2, &Options::default(), |world| {
            let collective = connect(world, Backend::Mpi, &Transport::default())?;
            let (plan, clock) = (BucketPlan::new(&[], &[], 1, 1, 2), world.member().activity.clock.clone());
            let mut buckets = Buckets::new(collective, SyncOptions::default(), plan, 0, clock);
            let mut finish = |samples: usize| {
                buckets.begin();
                (0..samples).for_each(|_| buckets.begin_backward(1.0 / 200_000.0));
                buckets.finish(Signals::default(), &mut [])
            };
            let short = finish(99_900).unwrap_err().to_string();
            finish(100_000)?;
            Ok::<_, CommError>(short)
        });
        assert!(sums.unwrap().iter().all(|short| short.contains("are 0.999 times its total")));
    }
}
