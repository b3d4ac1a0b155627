//! Gradients that a program has computed by itself.

use burn::module::Module;
use burn::optim::GradientsParams;

use super::{GradientSync, MicroBatch};
use crate::CommError;
use crate::ddp::arrival::{self, Probe};
use crate::ddp::collector::{Source, each};
use crate::ddp::hook::Taken;

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
        if !self.begin_contribution(own, total)? {
            return Ok(());
        }
        self.add_rest(&gradients, module, &[])
    }

    /// As [`contribute`](Self::contribute), and the only gradients of this rank in the step: `taken` are
    /// those that were reduced during a hooked backward, and where `gradients` has others by now, these are
    /// averaged in their place.
    #[cfg(feature = "train")]
    pub(crate) fn contribute_all<M: Module + 'static>(
        &mut self,
        gradients: GradientsParams,
        module: &M,
        own: usize,
        total: usize,
        taken: Option<Vec<Option<Taken>>>,
    ) -> Result<(), CommError> {
        if taken.is_none() && !self.begin_contribution(own, total)? {
            return Ok(());
        }
        self.add_rest(&gradients, module, &taken.unwrap_or_default())?;
        let module = module.clone();
        self.buckets()?.own = Some(Box::new(move |skip, take| {
            each(Source::Program(&gradients), &module, skip, take);
        }));
        Ok(())
    }

    /// Begins a backward that the program has run by itself; `false` without samples.
    fn begin_contribution(&mut self, own: usize, total: usize) -> Result<bool, CommError> {
        self.begin_share(own, total)?;
        if own == 0 {
            return Ok(false);
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
        Ok(true)
    }

    /// Adds the gradients that were not `taken`, and replaces those that are not what was taken.
    fn add_rest<M: Module>(
        &mut self,
        gradients: &GradientsParams,
        module: &M,
        taken: &[Option<Taken>],
    ) -> Result<(), CommError> {
        let buckets = self.buckets()?;
        each(Source::Program(gradients), module, &|_| false, &mut |param, values| match (
            taken.get(param).and_then(Option::as_ref),
            values,
        ) {
            (Some(taken), Some(values)) if taken.is(values) => {}
            (Some(_), values) => buckets.replace(param, values),
            (None, Some(values)) => buckets.add(param, values),
            (None, None) => {}
        });
        self.end_backward(MicroBatch::Last)
    }

    /// Begins a step, unless one is in progress, for `own` of its `total` samples.
    pub(crate) fn begin_share(&mut self, own: usize, total: usize) -> Result<(), CommError> {
        self.begin()?;
        let (rank, host) = (self.world.rank(), self.world.host());
        self.samples = (self.samples.0.saturating_add(own), total);
        match own > total {
            true => Err(CommError::Samples { rank, host: host.to_owned(), own, total }),
            false => Ok(()),
        }
    }
}
