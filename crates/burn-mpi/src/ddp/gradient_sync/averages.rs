//! Reads the averaged gradients of a step that has ended.

use burn::module::Module;
use burn::optim::GradientsParams;

use super::GradientSync;
use crate::ddp::buckets::Buckets;
use crate::ddp::collector::register;
use crate::{CommError, MissingGradient};

impl GradientSync {
    /// Returns the averaged gradients of the step that [`reduce`](Self::reduce) has ended, as
    /// [`finish`](Self::finish) does. A program that clips them with [`clip_norm`](Self::clip_norm) calls
    /// `reduce`, `clip_norm` and `gradients` instead of `finish`.
    ///
    /// # Errors
    /// [`CommError::NoGradient`] as in [`finish`](Self::finish), and if no step has ended.
    /// [`CommError::OnRank`] if a frozen clone of a parameter comes before it, because Burn's optimizers would
    /// update the clone.
    pub fn gradients<M: Module>(&mut self, module: &M) -> Result<GradientsParams, CommError> {
        self.given = true;
        if let Some(reason) = &self.layout.shadowed {
            return Err(self.world.wrong(reason.clone()));
        }
        register(module, |param, shape| {
            if self.options.shard {
                return Err(self.missing(param, MissingGradient::Sharded));
            }
            if !self.has_gradient(param, &shape)? {
                return Ok(None);
            }
            let gradient = self.buckets()?.gradient_tensor(param, shape);
            gradient.map(Some).ok_or_else(|| self.missing(param, MissingGradient::NoStep))
        })
    }

    /// Returns whether a rank has a gradient of the trainable parameter `param`, of this shape, in the step
    /// that has ended.
    ///
    /// # Errors
    /// [`CommError::NoGradient`] if no step has ended, or the module differs from the one that this
    /// `GradientSync` was made for.
    pub(in crate::ddp) fn has_gradient(&self, param: usize, shape: &[usize]) -> Result<bool, CommError> {
        if self.layout.specs().get(param).is_some_and(|spec| spec.tied_to.is_some()) {
            return Ok(false);
        }
        match self.finished(param) {
            Err(CommError::NoGradient { reason: MissingGradient::Unused, .. }) => return Ok(false),
            finished => finished.map(drop)?,
        }
        // With another shape, the range in the bucket would have gradients of other parameters.
        if self.layout.specs()[param].shape != shape {
            return Err(self.other_module(param));
        }
        Ok(true)
    }

    /// Returns the averaged gradient of the parameter with index `param` in visit order, in the memory of its
    /// bucket. It is available after [`reduce`](Self::reduce) or [`finish`](Self::finish), until the next
    /// step begins.
    ///
    /// # Errors
    /// [`CommError::NoGradient`] names the parameter and the reason.
    pub fn gradient(&self, param: usize) -> Result<&[f32], CommError> {
        let buckets = self.whole(param)?;
        buckets.gradient(param).ok_or_else(|| self.missing(param, MissingGradient::NoStep))
    }

    /// Returns the averaged gradient as [`gradient`](Self::gradient) does, mutable.
    ///
    /// # Errors
    /// The errors of [`gradient`](Self::gradient).
    pub fn gradient_mut(&mut self, param: usize) -> Result<&mut [f32], CommError> {
        self.whole(param)?;
        let slots = self.buckets.as_mut().and_then(|buckets| buckets.gradient_mut(param));
        slots.ok_or(CommError::Interrupted("the buckets of this GradientSync are in flight"))
    }

    /// Returns the buckets if they have the whole average for `param`.
    fn whole(&self, param: usize) -> Result<&Buckets, CommError> {
        match self.finished(param)? {
            buckets if !buckets.options.shard => Ok(buckets),
            _ => Err(self.missing(param, MissingGradient::Sharded)),
        }
    }

    /// Returns the buckets if the ranks have an average for `param`.
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

    /// Returns the buckets if they have the averages of a step.
    pub(in crate::ddp) fn reduced(&mut self) -> Result<&mut Buckets, CommError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if !self.averaged {
            return Err(self.missing(self.first_trainable(), MissingGradient::NoStep));
        }
        self.buckets()
    }

    pub(in crate::ddp) fn missing(&self, param: usize, reason: MissingGradient) -> CommError {
        let name = self.layout.specs().get(param).map(|spec| spec.name.clone());
        CommError::NoGradient { parameter: name.unwrap_or_else(|| format!("number {param}")), reason }
    }

    /// Returns the first trainable parameter, as an example in errors; 0 if there is none.
    pub(in crate::ddp) fn first_trainable(&self) -> usize {
        self.layout.specs().iter().position(|spec| spec.trainable).unwrap_or(0)
    }

    /// Returns the error for a gradient whose length differs from the length of its place in the buckets.
    pub(super) fn other_module(&self, param: usize) -> CommError {
        let frozen = self.layout.specs().get(param).is_some_and(|spec| !spec.trainable);
        self.missing(param, if frozen { MissingGradient::Frozen } else { MissingGradient::OtherShape })
    }
}
