//! Gradients that a program has computed by itself.

use burn::module::Module;
use burn::optim::GradientsParams;

use super::{GradientSync, MicroBatch};
use crate::CommError;
use crate::ddp::arrival::{self, Probe};
use crate::ddp::collector::{Source, collect};

impl GradientSync {
    /// Adds gradients of the mean loss over `own` of the `total` samples of a step, which Burn's
    /// `backward` has returned, as the last ones of this rank in the step. Nothing overlaps with
    /// that backward; [`backward`](Self::backward) does. With no samples they are not used.
    ///
    /// ```no_run
    /// # use burn::{module::Module, optim::GradientsParams, tensor::Tensor};
    /// # use burn_mpi::{CommError, GradientSync};
    /// # fn step<M: Module>(sync: &mut GradientSync, model: &M, loss: Tensor<1>)
    /// # -> Result<GradientsParams, CommError> {
    /// let gradients = GradientsParams::from_grads(loss.backward(), model);
    /// sync.contribute(gradients, model, 8, 16)?;
    /// sync.finish(model)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    pub fn contribute<M: Module>(
        &mut self,
        gradients: GradientsParams,
        module: &M,
        own: usize,
        total: usize,
    ) -> Result<(), CommError> {
        self.begin_share(own, total)?;
        if own == 0 {
            return Ok(());
        }
        let probing = self.arrival.is_none();
        if probing {
            // All gradients are final at once; the order only has to be the same on all ranks.
            self.probe = Probe::new(arrival::unknown(&self.layout), self.layout.specs().len());
        }
        let buckets = self.buckets()?;
        buckets.begin_backward(own as f32 / total as f32);
        if probing {
            buckets.uses.fill(usize::MAX);
        }
        collect(Source::Program(gradients), module, &[], &mut |param, values| buckets.add(param, values));
        self.end_backward(MicroBatch::Last)
    }

    /// Begins a step, unless one is in progress, for `own` of its `total` samples.
    pub(super) fn begin_share(&mut self, own: usize, total: usize) -> Result<(), CommError> {
        self.begin()?;
        let (rank, host) = (self.world.rank(), self.world.host());
        match own > total {
            true => Err(CommError::Samples { rank, host: host.to_owned(), own, total }),
            false => Ok(()),
        }
    }
}
