//! Steps that need a second all-reduce, because a rank has late, replaced or missing gradients.

use std::collections::BTreeMap;

use super::{Buckets, flag, values_in};
use crate::CommError;
use crate::ddp::buffers::Part;

impl Buckets {
    /// Reduces the late gradients of all ranks, and all gradients again if a rank has replaced a gradient.
    /// Also determines for which parameters no rank has a gradient. Every rank calls this function in the
    /// same step, because all ranks decide by the same sums.
    ///
    /// If a rank has replaced a gradient, compressed buckets are not decompressed, so that the compression's
    /// error memory stays as it was: the sums of the replaced gradients are exact.
    pub(super) fn reduce_late(&mut self) -> Result<Irregular, CommError> {
        let began = self.clock.now();
        let compressed = self.times.compress;
        let params = self.step.written.len();
        let late = (0..params).map(|param| self.step.late.contains_key(&param));
        let flags = late.chain(self.step.written.iter().copied()).chain([self.step.replaced]);
        let ranks = self.sum(flags.map(flag).collect())?;
        let late: Vec<usize> = (0..params).filter(|&param| ranks[param] > 0.0).collect();
        let absent = (0..params).filter(|&param| ranks[params + param] == 0.0).collect();
        let replaced = ranks[2 * params] > 0.0;
        if !replaced {
            self.decompress_all(&ranks[params..2 * params]);
        }
        let sums = std::mem::take(&mut self.step.late);
        self.reduce_again(&late, sums, |slot, sum| *slot += sum)?;
        if replaced {
            let held: Vec<usize> = (0..params).filter(|&param| self.plan.place(param).is_some()).collect();
            let own = self.own_gradients();
            self.reduce_again(&held, own, |slot, sum| *slot = sum)?;
        }
        let compressed = self.times.compress - compressed;
        self.times.exposed += (self.clock.now() - began).saturating_sub(compressed);
        Ok(Irregular { late, replaced, absent })
    }

    /// Returns this rank's gradients, scaled by its share of the samples.
    fn own_gradients(&mut self) -> BTreeMap<usize, Vec<f32>> {
        let mut gradients = BTreeMap::new();
        if let Some(each) = self.step.own.take() {
            each(&mut |param, values| {
                let scaled = values
                    .map(|values| values_in(&values).iter().map(|value| value * self.step.weight).collect());
                gradients.extend(scaled.map(|scaled| (param, scaled)));
            });
        }
        gradients
    }

    /// Sums the `gradients` of `params` over ranks. Calls `put(slot, sum)` for each value: `slot` is the
    /// value's place in its bucket. A gradient that this rank does not have counts as zeros.
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
                None => own.resize(own.len() + self.length(*param), 0.0),
            }
        }
        if own.is_empty() {
            return Ok(());
        }
        let sums = self.sum(own)?;
        let mut rest = &sums[..];
        for &param in params {
            let (sums, after) = rest.split_at(self.length(param));
            rest = after;
            // This rank may have only a part of the parameter's gradient, or no value of it.
            if let Ok(at) = self.parts.binary_search_by_key(&param, |part| part.param) {
                let Part { bucket, slots, range, .. } = self.parts[at].clone();
                let slots = self.buffers.slots(bucket, slots).unwrap_or_default();
                slots.iter_mut().zip(&sums[range]).for_each(|(slot, sum)| put(slot, *sum));
            }
        }
        Ok(())
    }
}

/// Deviations of a step from what the buckets expect. They are the same on every rank.
///
/// A bucket starts when the gradient of each of its parameters has been registered as often as
/// [`Buckets::uses`] says. If a rank uses a parameter more often, or runs another backward after its
/// [`MicroBatch::Last`](super::gradient_sync::MicroBatch::Last), the additional gradient is kept aside, and
/// reduced on all ranks at the end of the step. If a program changes a gradient on one rank after its bucket
/// has started, all gradients are reduced again.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Irregular {
    /// Parameters with a late gradient on at least one rank.
    pub late: Vec<usize>,
    /// Whether at least one rank replaced a gradient after its bucket had started.
    pub replaced: bool,
    /// Parameters without a gradient on any rank.
    pub absent: Vec<usize>,
}
