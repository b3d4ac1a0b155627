//! Compression of gradients: fewer bytes for each step, at the cost of an approximate average.
//!
//! [`Compression`] is the interface: the gradients of a bucket are summed over ranks in one or several
//! all-reduces of other, shorter values. [`PowerSgd`](powersgd::PowerSgd) is the built-in compression.
//! `ddp::compressed` sends the values.

mod orthogonal;
pub(crate) mod powersgd;
mod products;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ddp::buffers::BucketPlan;

/// Replaces the all-reduce of a bucket's gradients by all-reduces of other, usually fewer values.
/// [`GradientSync::compress_with`](crate::GradientSync::compress_with) takes an implementation.
/// [`PowerSgd`](crate::PowerSgd) is one.
///
/// In each step, [`GradientSync`](crate::GradientSync) makes these calls for each bucket:
/// 1. [`begin`](Self::begin), as soon as the bucket's gradients are final, gives the values of round 0. They
///    are summed over ranks while backward continues.
/// 2. [`next`](Self::next), at the end of the step, gets the sums of a round, and gives the values of the
///    next round, if there is one. Later rounds of several buckets overlap with each other.
/// 3. [`finish`](Self::finish) gets the sums of the last round, and writes the averaged gradients.
///
/// All values are summed by one non-blocking all-reduce for each bucket and round, in the summation order and
/// type of [`SyncOptions`](crate::SyncOptions): a 16-bit type rounds them. Gradients are already scaled by
/// the rank's share of the step's samples, so the average is the sum over ranks. A rank without samples has
/// zeros. With one rank, nothing is sent, and no function is called.
///
/// Requirements:
/// - **Ranks make equal decisions.** What `begin` and `next` return, and the number of values, must be equal
///   on all ranks. `finish` must write the same bits on all ranks. So they may depend on sums, on the bucket
///   and on options, but not on this rank's gradients.
/// - **`begin` and `next` keep what lasts longer than a step unchanged.** A step can end without `finish`: if
///   a rank has changed a gradient after it was sent, all gradients are averaged again without compression;
///   if the samples do not add up, the step fails. So `finish` alone changes state, such as an error memory.
/// - State belongs to parameters rather than buckets, because buckets change after the first step.
///
/// Gradients that are added after their bucket was sent are summed without compression, and added to what
/// `finish` wrote.
///
/// ```
/// use burn_mpi::{Compression, GradientBucket};
///
/// /// Sends every other value: even ones in one step, odd ones in the next. The others count as zero.
/// struct EveryOther(usize);
///
/// impl Compression for EveryOther {
///     fn name(&self) -> String {
///         "every other value".to_owned()
///     }
///
///     fn begin(&mut self, _: &GradientBucket<'_>, gradients: &mut [f32], send: &mut Vec<f32>) -> bool {
///         send.extend(gradients.iter().skip(self.0).step_by(2));
///         true
///     }
///
///     fn finish(&mut self, bucket: &GradientBucket<'_>, averages: &mut [f32], sums: &[f32]) {
///         averages.fill(0.0);
///         averages.iter_mut().skip(self.0).step_by(2).zip(sums).for_each(|(average, sum)| *average = *sum);
///         if bucket.is_last() {
///             self.0 = 1 - self.0;
///         }
///     }
/// }
/// ```
pub trait Compression {
    /// The name and the options, which must be equal on all ranks.
    fn name(&self) -> String;

    /// Begins to sum the gradients of `bucket`: appends the values of round 0 to `send`, which is empty.
    /// `gradients` are this rank's, in the bucket's layout; changes to them are kept until
    /// [`finish`](Self::finish).
    ///
    /// Returns `false` if the bucket is to be summed without compression; no other function is then called
    /// for it in this step.
    fn begin(&mut self, bucket: &GradientBucket<'_>, gradients: &mut [f32], send: &mut Vec<f32>) -> bool;

    /// Continues after `round`, from 0: `values` are its sums over ranks. To begin another round, replaces
    /// `values` by the values to sum next, and returns `true`. The default returns `false`: there is only one
    /// round.
    fn next(
        &mut self,
        bucket: &GradientBucket<'_>,
        gradients: &mut [f32],
        round: usize,
        values: &mut Vec<f32>,
    ) -> bool {
        let _ = (bucket, gradients, round, values);
        false
    }

    /// Ends the sum: overwrites `gradients` with the averages. `sums` are the sums of the last round. It is
    /// called for the buckets in their order. A parameter without a gradient on any rank, as
    /// [`has_gradient`](GradientBucket::has_gradient) says, is not updated in this step, whatever is written.
    fn finish(&mut self, bucket: &GradientBucket<'_>, gradients: &mut [f32], sums: &[f32]);

    /// Returns what [`restore`](Self::restore) needs to continue with the same bits. The default is empty.
    fn state(&self) -> CompressionState {
        CompressionState::default()
    }

    /// Continues from a `state`.
    ///
    /// # Errors
    /// If the state is of another compression or of another module. The default accepts an empty state alone.
    fn restore(&mut self, state: CompressionState) -> Result<(), String> {
        let is_empty = state == CompressionState::default();
        is_empty.then_some(()).ok_or_else(|| format!("{} has no state", self.name()))
    }
}

/// State of a [`Compression`] between two steps, on one rank.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CompressionState {
    /// Values that are equal on all ranks. Of [`PowerSgd`](crate::PowerSgd): for each compressed parameter,
    /// in visit order, the orthonormal columns that the next step begins with.
    pub shared: Vec<f32>,
    /// Values of this rank alone. Of [`PowerSgd`](crate::PowerSgd): for each compressed parameter, in visit
    /// order, the error memory, in the shape of the parameter.
    pub own: Vec<f32>,
}

/// A bucket: several gradients, one after the other, that are summed together.
#[derive(Debug, Clone, Copy)]
pub struct GradientBucket<'a> {
    plan: &'a BucketPlan,
    index: usize,
    /// For each parameter, the number of ranks with a gradient of it; `None` if it is not known to be 0 for
    /// any.
    with_gradient: Option<&'a [f32]>,
}

impl<'a> GradientBucket<'a> {
    pub(crate) fn new(plan: &'a BucketPlan, index: usize, with_gradient: Option<&'a [f32]>) -> Self {
        Self { plan, index, with_gradient }
    }

    /// Index of the bucket in the order in which buckets start, and in
    /// [`SyncReport::buckets`](crate::SyncReport::buckets).
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns whether it is the last bucket of the step.
    pub fn is_last(&self) -> bool {
        self.index + 1 == self.plan.buckets().len()
    }

    /// Returns the parameters of the bucket: for each, its index in visit order, and the range of its
    /// gradient in the bucket. The ranges follow one after the other.
    pub fn params(&self) -> impl Iterator<Item = (usize, Range<usize>)> + use<'a> {
        let plan = self.plan;
        let params = plan.buckets()[self.index].params.iter();
        params.filter_map(|&param| Some((param, plan.place(param)?.1)))
    }

    /// Returns whether at least one rank has a gradient of the parameter with index `param` in this step.
    /// Only [`Compression::finish`] knows: earlier, the result is `true`.
    pub fn has_gradient(&self, param: usize) -> bool {
        self.with_gradient.is_none_or(|ranks| ranks[param] > 0.0)
    }
}
