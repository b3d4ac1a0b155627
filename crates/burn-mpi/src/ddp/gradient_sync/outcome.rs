//! Results of steps: averaged gradients, buffers, times and a report.

use burn::module::Module;

use super::GradientSync;
use crate::ddp::buckets::Buckets;
use crate::ddp::report::{BucketReport, CommTimes, NoOverlap, Overlap, SyncReport};
use crate::{CommError, MissingGradient, module};

impl GradientSync {
    /// Averages over ranks the tensors that get no gradients, such as batch norm's
    /// running statistics, which differ between ranks. All ranks must call it with
    /// the same module.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn average_buffers<M: Module>(&self, module: M) -> Result<M, CommError> {
        module::average_buffers(&self.world, module)
    }

    /// The averaged gradient of parameter `param`, its index in visit order, in its
    /// bucket: after [`reduce`](Self::reduce) or [`finish`](Self::finish), until the
    /// next step begins.
    ///
    /// # Errors
    /// [`CommError::NoGradient`] names the parameter and the reason.
    pub fn gradient(&self, param: usize) -> Result<&[f32], CommError> {
        let buckets = self.finished(param)?;
        buckets.gradient(param).ok_or_else(|| self.missing(param, MissingGradient::NoStep))
    }

    /// The same, mutable.
    ///
    /// # Errors
    /// As [`gradient`](Self::gradient).
    pub fn gradient_mut(&mut self, param: usize) -> Result<&mut [f32], CommError> {
        self.finished(param)?;
        let slots = self.buckets.as_mut().and_then(|buckets| buckets.gradient_mut(param));
        slots.ok_or(CommError::Interrupted("its buckets are gone"))
    }

    /// The buckets, if they have an average for `param`.
    fn finished(&self, param: usize) -> Result<&Buckets, CommError> {
        let reason = match (self.layout.specs().get(param), &self.buckets) {
            (None, _) => MissingGradient::NoParameter,
            (Some(spec), _) if !spec.trainable => MissingGradient::Frozen,
            (_, Some(buckets)) if self.averaged && buckets.absent[param] => MissingGradient::Unused,
            (_, Some(buckets)) if self.averaged => return Ok(buckets),
            _ => MissingGradient::NoStep,
        };
        Err(self.missing(param, reason))
    }

    fn missing(&self, param: usize, reason: MissingGradient) -> CommError {
        let name = self.layout.specs().get(param).map(|spec| spec.name.clone());
        CommError::NoGradient { parameter: name.unwrap_or_else(|| format!("number {param}")), reason }
    }

    /// The error of a gradient whose length differs from that in the buckets.
    pub(super) fn other_module(&self, param: usize) -> CommError {
        let frozen = self.layout.specs().get(param).is_some_and(|spec| !spec.trainable);
        self.missing(param, if frozen { MissingGradient::Frozen } else { MissingGradient::OtherShape })
    }

    /// Communication times so far.
    pub fn times(&self) -> CommTimes {
        self.buckets.as_ref().map_or_else(CommTimes::default, |buckets| buckets.times)
    }

    /// The buckets, their times so far, and whether they overlap with backward.
    pub fn report(&self) -> SyncReport {
        let layout = self.layout.specs();
        let bytes_of_value = self.options.wire.bytes();
        let buckets = self.buckets.as_ref().map_or(&[][..], |buckets| buckets.plan.buckets());
        let overlap = match () {
            () if self.world.size() == 1 => Overlap::Inactive(NoOverlap::OneRank),
            () if !self.options.overlap => Overlap::Inactive(NoOverlap::Off),
            () if buckets.len() == 1 => Overlap::Inactive(NoOverlap::OneBucket),
            () if !self.hooked_device => Overlap::Inactive(NoOverlap::Device),
            () if self.arrival.is_none() => Overlap::Inactive(NoOverlap::NotLearned),
            () => Overlap::Active,
        };
        SyncReport {
            steps: self.steps,
            buckets: buckets
                .iter()
                .map(|bucket| BucketReport {
                    parameters: bucket.params.iter().map(|&param| layout[param].name.clone()).collect(),
                    bytes: bucket.len * bytes_of_value,
                })
                .collect(),
            wire: self.options.wire,
            overlap,
            times: self.times(),
            late_steps: self.late_steps,
            incomplete_steps: self.incomplete_steps,
        }
    }
}
