//! `GradientSync`: averages gradients over all ranks.
//!
//! The loss of a step is the mean over the samples of all ranks. A rank computes the mean over its own
//! samples, so its gradients are weighted by its share of the samples. A gradient is scaled when it is copied
//! into its bucket, a buffer of several gradients that is sent at once. The sum over ranks is then the
//! gradient of the whole step. A rank without samples sends zeros.
//!
//! The first step determines the order in which gradients become final, and how often each parameter is used
//! ([`super::arrival`]). If a rank uses a parameter more often in a later step, that step needs a second
//! all-reduce, and the next step packs the buckets again.

mod averages;
mod compression;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Gradients, Tensor};

use crate::compress::powersgd::LowRank;
use crate::ddp::arrival::Probe;
use crate::ddp::buckets::{Buckets, Signals, values_in};
use crate::ddp::buffers::{BucketPlan, CONTROL};
use crate::ddp::collector::{collect, each};
use crate::ddp::compressed::Compressor;
use crate::ddp::hook::{HookedBackward, Taken};
use crate::ddp::options::{SyncOptions, bucket_limits};
use crate::ddp::report::{BucketReport, CommTimes, NoOverlap, Overlap, SyncEvent, SyncReport, SyncWatch};
use crate::ddp::{arrival, hook};
use crate::module::AT_START;
use crate::{ArrivalOrder, Collective, CommError, MissingGradient, ParamLayout, SharedError, World, module};

/// Position of a backward call among this rank's calls in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MicroBatch {
    /// More calls follow in this step: the gradients are not sent yet.
    More,
    /// The last or the only call of the step: buckets are reduced during this call. If no call of a step is
    /// the last, they are reduced in [`finish`](GradientSync::finish), without overlap.
    Last,
}

/// Collects this rank's gradients and averages them with the other ranks'.
///
/// Ranks may have different samples, micro-batches and branches, and a rank may have no samples. The only
/// requirement is that every rank calls [`finish`](Self::finish) (or [`average`](Self::average)) once per
/// step.
///
/// ```no_run
/// # use burn::{module::Module, optim::GradientsParams, tensor::Tensor};
/// # use burn_mpi::{CommError, World};
/// # use burn_mpi::{GradientSync, MicroBatch};
/// # fn step<M: Module>(sync: &mut GradientSync, model: &M, losses: [Tensor<1>; 2])
/// # -> Result<GradientsParams, CommError> {
/// // Two micro-batches of 8 samples here, 64 samples on all ranks together.
/// sync.backward(&losses[0], model, 8, 64, MicroBatch::More)?;
/// sync.backward(&losses[1], model, 8, 64, MicroBatch::Last)?;
/// sync.finish(model)
/// # }
/// ```
pub struct GradientSync {
    pub(super) world: World,
    pub(super) options: SyncOptions,
    pub(super) layout: ParamLayout,
    pub(super) arrival: Option<ArrivalOrder>,
    /// Whether the last step has changed the order, so that the next step makes a new plan.
    adopt_next: bool,
    /// The order in which autodiff registered the gradients of this rank's last backward that had a [`hook`].
    probe: Probe,
    /// The error that makes averaging impossible: ranks have different modules or options, or a step has
    /// failed. `None` if averaging is possible.
    pub(super) broken: Option<CommError>,
    /// Whether a step is in progress.
    in_step: bool,
    /// Samples of this rank's backward calls in the step, and the step's total that the last call passed.
    samples: (usize, usize),
    /// Whether the buckets hold the averages of a step.
    pub(super) averaged: bool,
    /// Whether the averages of the step were returned as Burn's gradients.
    pub(super) given: bool,
    /// Number of values that [`reduce_with`](Self::reduce_with) can average together with the gradients.
    carried: usize,
    /// Whether the module's device supports the [`hook`]. False once a backward could not be hooked.
    hooked_device: bool,
    steps: usize,
    late_steps: usize,
    incomplete_steps: usize,
    /// `None` during a backward, and for good after a backward that panicked.
    pub(super) buckets: Option<Box<Buckets>>,
}

impl GradientSync {
    /// Prepares to average the gradients of a module over `collective`. `layout` is the layout of the module.
    /// All ranks must call `new`. If their layouts or options differ, the first step returns the error; also
    /// if the compression of `options` has too high a rank.
    pub fn new(
        world: &World,
        collective: Box<dyn Collective>,
        layout: &ParamLayout,
        options: SyncOptions,
    ) -> Self {
        let plan = plan_of(layout, None, &options, 0, world.size());
        let params = layout.specs().len();
        let clock = world.member().activity.clock.clone();
        let mut buckets = Buckets::new(collective, options, plan, params, world.rank(), clock);
        buckets.tied = layout.tied();
        let compression = options.compression.map(|power_sgd| LowRank::new(power_sgd, options.wire, layout));
        let compression = match compression.transpose() {
            Ok(Some(_)) if options.shard => Err(CommError::Compression(WITH_SHARES.to_owned())),
            other => other.map_err(CommError::Shared),
        };
        let broken = compare(world, layout, &options).and(compression.map(|compression| {
            // With one rank, nothing is sent.
            let compression = compression.filter(|_| world.size() > 1);
            buckets.compressor =
                compression.map(|compression| Compressor::new(Box::new(compression), &buckets.plan));
        }));
        Self {
            world: world.clone(),
            layout: layout.clone(),
            arrival: None,
            adopt_next: false,
            probe: Probe::default(),
            broken: broken.err(),
            in_step: false,
            samples: (0, 0),
            averaged: false,
            given: false,
            carried: 0,
            hooked_device: true,
            steps: 0,
            late_steps: 0,
            incomplete_steps: 0,
            options,
            buckets: Some(Box::new(buckets)),
        }
    }

    /// Prepares to average the gradients of `module`, as [`new`](Self::new) does for its layout.
    pub fn of_module<M: Module>(
        world: &World,
        collective: Box<dyn Collective>,
        module: &M,
        options: SyncOptions,
    ) -> Self {
        Self::new(world, collective, &ParamLayout::of_module(module), options)
    }

    /// Runs a whole step of one micro-batch: [`backward`](Self::backward) from `loss`, and then
    /// [`finish`](Self::finish). `loss` is the mean over `own` samples of this rank. The step has `total`
    /// samples on all ranks together. If `own` is 0, the loss is not used.
    ///
    /// # Errors
    /// The errors of [`backward`](Self::backward) and [`finish`](Self::finish).
    pub fn average<M: Module>(
        &mut self,
        loss: &Tensor<1>,
        module: &M,
        own: usize,
        total: usize,
    ) -> Result<GradientsParams, CommError> {
        if own > 0 {
            self.backward(loss, module, own, total, MicroBatch::Last)?;
        }
        self.finish(module)
    }

    /// Runs backward from `loss`, the mean over `own` samples of this rank. The step has `total` samples on
    /// all ranks together. A step may have any number of calls, and a different number on each rank; their
    /// gradients are summed. The first call after [`finish`](Self::finish) begins a step and discards the
    /// gradients of the previous step. If `own` is 0, the loss is not used.
    ///
    /// # Errors
    /// - [`CommError::OnRank`] if `own` exceeds `total`, or if the fields of a tied parameter have become
    ///   different tensors (see [`tie_parameters`](crate::tie_parameters)).
    /// - [`CommError::NoGradient`] names a parameter whose gradient does not fit the buckets, because the
    ///   module has changed.
    /// - [`CommError::Module`] if ranks are threads that share the autodiff graph of the module.
    /// - [`CommError::Interrupted`] after a backward that panicked.
    /// - The error that makes averaging impossible, if ranks average different modules or an earlier step has
    ///   failed. If the transport fails during this call, [`finish`](Self::finish) returns its error.
    pub fn backward<M: Module>(
        &mut self,
        loss: &Tensor<1>,
        module: &M,
        own: usize,
        total: usize,
        which: MicroBatch,
    ) -> Result<(), CommError> {
        if !self.begin_share(own, total)? {
            return Ok(());
        }
        let (gradients, taken) = self.hooked_backward(loss, module, which)?;
        let buckets = self.buckets()?;
        collect(gradients, module, &taken, &mut |param, gradient| buckets.add_tensor(param, &gradient));
        buckets.notify(SyncEvent::CollectEnd);
        self.end_backward(which)
    }

    /// Runs a backward after [`begin_share`](Self::begin_share). Buckets may be reduced meanwhile. Returns
    /// all gradients, and for each parameter the gradient that a bucket took (`None` if no bucket took it).
    pub(crate) fn hooked_backward<M: Module>(
        &mut self,
        loss: &Tensor<1>,
        module: &M,
        which: MicroBatch,
    ) -> Result<(Gradients, Vec<Option<Taken>>), CommError> {
        if let (0, Some(seat)) = (self.steps, self.world.seat()) {
            seat.check_nodes(hook::nodes(module))?;
        }
        self.check_ties(module)?;
        let probing = self.arrival.is_none();
        let buckets = self.buckets.take().ok_or(PANICKED)?;
        let overlaps = which == MicroBatch::Last && buckets.can_overlap();
        let hooked = if probing || overlaps { hook::backward(loss, module, buckets) } else { Err(buckets) };
        let (buckets, gradients, taken) = match hooked {
            Ok((gradients, HookedBackward { buckets, registered, taken, .. })) => {
                self.probe = Probe::new(registered, self.layout.specs().len());
                (buckets, gradients, taken)
            }
            Err(buckets) => {
                self.hooked_device &= !(probing || overlaps);
                if probing {
                    self.probe = self.probe_in_any_order();
                }
                (buckets, loss.backward(), Vec::new())
            }
        };
        buckets.notify(SyncEvent::BackwardEnd);
        self.buckets = Some(buckets);
        Ok((gradients, taken))
    }

    /// Checks that the fields of a tied parameter are one tensor.
    fn check_ties<M: Module>(&self, module: &M) -> Result<(), CommError> {
        let Some(param) = hook::untied(module, &self.layout) else { return Ok(()) };
        let first = self.layout.specs()[param].tied_to.unwrap_or_default();
        let [field, first] = [param, first].map(|param| &self.layout.specs()[param].name);
        Err(self.world.wrong(format!(
            "{field} is tied to {first}, but is another tensor: Burn's optimizers update only one of them; call \
             burn_mpi::tie_parameters after each step"
        )))
    }

    /// Ends a backward, after all its gradients are in buckets.
    fn end_backward(&mut self, which: MicroBatch) -> Result<(), CommError> {
        let probing = self.arrival.is_none();
        let buckets = self.buckets()?;
        if let Some(param) = buckets.step.unexpected.take() {
            return Err(self.other_module(param));
        }
        if which == MicroBatch::Last && !probing {
            buckets.seal_all();
        }
        Ok(())
    }

    /// Ends the step on every rank and returns the averaged gradients for Burn's optimizers. On flex, the
    /// gradients share the memory of the buckets. If they still exist when the next step begins, that step
    /// copies the buckets first. If no rank has a gradient of a parameter, the result has no gradient of it,
    /// as after Burn's `backward`.
    ///
    /// # Errors
    /// - If the transport fails, or ranks average different modules. Every later step returns the same error.
    /// - [`SharedError::Diverged`](crate::SharedError::Diverged) in the first step, if ranks begin with
    ///   different weights. Every later step returns the same error.
    /// - [`SharedError::Shares`](crate::SharedError::Shares) on all ranks, if the samples of their backward
    ///   calls do not add up to the total of the step.
    /// - [`CommError::NoGradient`], which names the parameter, if a trainable parameter of `module` was
    ///   frozen, had another shape or did not exist when this `GradientSync` was made. The same error if
    ///   [`SyncOptions::shard`] is set, because no rank has the whole gradients.
    /// - [`CommError::Interrupted`] after a backward that panicked.
    pub fn finish<M: Module>(&mut self, module: &M) -> Result<GradientsParams, CommError> {
        if self.steps == 0 && self.broken.is_none() {
            self.check_weights(module);
        }
        if self.options.shard && self.broken.is_none() {
            return Err(self.missing(self.first_trainable(), MissingGradient::Sharded));
        }
        self.reduce(Signals::default())?;
        self.gradients(module)
    }

    /// Compares the weights of `module` across ranks. If they differ, no step is possible.
    pub(super) fn check_weights<M: Module>(&mut self, module: &M) {
        self.broken = module::check_equal(&self.world, module, false, AT_START).err();
    }

    /// Ends the step as [`finish`](Self::finish) does, and leaves the gradients in their buckets. Returns the
    /// sum of `mine` over ranks.
    ///
    /// # Errors
    /// - If the transport fails, or ranks average different modules. Every later step returns the same error.
    /// - [`SharedError::Shares`](crate::SharedError::Shares) as in [`finish`](Self::finish).
    /// - [`CommError::Interrupted`] after a backward that panicked.
    pub fn reduce(&mut self, mine: Signals) -> Result<Signals, CommError> {
        self.reduce_with(mine, &mut [])
    }

    /// Ends the step as [`reduce`](Self::reduce) does. Overwrites `averaged` with its mean over the ranks
    /// that ran a backward in this step; the mean has the same bits on every rank. `averaged` is sent as f32
    /// with the signals, or, if a bucket carries the signals in a narrower type, in a separate all-reduce.
    ///
    /// # Errors
    /// The errors of [`reduce`](Self::reduce).
    ///
    /// # Panics
    /// If there are more values than [`carry`](Self::carry) reserved.
    pub fn reduce_with(&mut self, mine: Signals, averaged: &mut [f32]) -> Result<Signals, CommError> {
        assert!(
            averaged.len() <= self.carried,
            "{} values to average, but GradientSync::carry reserved only {}",
            averaged.len(),
            self.carried
        );
        self.begin()?;
        if self.options.shard && self.arrival.is_none() {
            // The order decides which values a rank updates, so it is learned before the first update.
            self.learn()?;
            if std::mem::take(&mut self.adopt_next) {
                let (plan, arrival) = (self.plan(), self.arrival.clone());
                let buckets = self.buckets()?;
                buckets.repack(plan);
                arrival.into_iter().for_each(|arrival| buckets.uses = arrival.uses);
            }
        }
        let result = self.buckets()?.finish(mine, averaged);
        self.in_step = false;
        if let Err(CommError::Shared(SharedError::Shares { share, .. })) = result {
            let samples = self.world.gather(&self.samples)?;
            return Err(CommError::Shared(SharedError::Shares { share, samples }));
        }
        // After another error, the transport may still have the buckets, so no further step is possible.
        let (signals, irregular) = result.inspect_err(|error| self.broken = Some(error.clone()))?;
        self.averaged = true;
        self.steps += 1;
        let late = !irregular.late.is_empty() || irregular.replaced;
        self.late_steps += usize::from(late);
        self.incomplete_steps += usize::from(irregular != Default::default() && !late);
        if late || (self.arrival.is_none() && !self.options.shard) {
            self.learn()?;
        }
        Ok(signals)
    }

    /// Learns the order in which gradients become final, and how often parameters are used, from what all
    /// ranks have recorded. If it differs from the known one, the next step makes a new plan.
    fn learn(&mut self) -> Result<(), CommError> {
        // `merge` needs each different probe once: nearly all ranks have the same one.
        let probes = self.world.gather_distinct(&std::mem::take(&mut self.probe))?;
        let probes: Vec<Probe> = probes.into_iter().map(|(_, probe)| probe).collect();
        let mut learned = arrival::merge(&self.layout, &probes, self.arrival.as_ref());
        if let (true, Some(learned), Some(known)) = (self.options.shard, &mut learned, &self.arrival) {
            // Another order would change which values a rank updates, and it has the state of the old ones.
            learned.order.clone_from(&known.order);
        }
        self.adopt_next = learned.is_some() && learned != self.arrival;
        self.arrival = learned.or(self.arrival.take());
        Ok(())
    }

    /// Begins a step, unless one is in progress.
    fn begin(&mut self) -> Result<(), CommError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if std::mem::replace(&mut self.in_step, true) {
            return Ok(());
        }
        (self.averaged, self.given) = (false, false);
        self.samples = (0, 0);
        if std::mem::take(&mut self.adopt_next) {
            self.replan()?;
        }
        self.buckets()?.begin();
        Ok(())
    }

    fn buckets(&mut self) -> Result<&mut Buckets, CommError> {
        self.buckets.as_deref_mut().ok_or(PANICKED)
    }

    /// Adds `gradients`, which Burn's `backward` has returned. Their loss is the mean over `own` samples of
    /// this rank. The step has `total` samples on all ranks together. `gradients` must be the last gradients
    /// of this rank in the step. Unlike in [`backward`](Self::backward), no bucket is sent while the
    /// gradients are computed. If `own` is 0, `gradients` is not used.
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
    /// The errors of [`backward`](Self::backward).
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
        self.check_ties(module)?;
        self.add_rest(&gradients, module, &[])
    }

    /// Adds `gradients` as [`contribute`](Self::contribute) does, as the only gradients of this rank in the
    /// step. `taken` are the gradients that buckets took during a hooked backward, if there was one. If
    /// `gradients` differs from `taken`, all gradients are averaged again.
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
        self.buckets()?.step.own = Some(Box::new(move |take| each(&gradients, &module, &|_| false, take)));
        Ok(())
    }

    /// Begins to add the gradients of a backward that the program has run itself. Returns `false` if `own` is
    /// 0.
    fn begin_contribution(&mut self, own: usize, total: usize) -> Result<bool, CommError> {
        let has_samples = self.begin_share(own, total)?;
        if has_samples && self.arrival.is_none() {
            self.probe = self.probe_in_any_order();
        }
        Ok(has_samples)
    }

    /// Returns the probe of a backward of which all gradients are final at once. Their order only has to be
    /// the same on all ranks.
    fn probe_in_any_order(&self) -> Probe {
        Probe::new(arrival::unknown(&self.layout), self.layout.specs().len())
    }

    /// Adds the gradients that were not `taken`, and replaces the gradients that have changed since they were
    /// taken.
    fn add_rest<M: Module>(
        &mut self,
        gradients: &GradientsParams,
        module: &M,
        taken: &[Option<Taken>],
    ) -> Result<(), CommError> {
        let buckets = self.buckets()?;
        each(gradients, module, &|_| false, &mut |param, gradient| match (
            taken.get(param).and_then(Option::as_ref),
            gradient,
        ) {
            (Some(taken), Some(gradient)) if taken.has_bits_of(values_in(&gradient)) => {}
            (Some(_), gradient) => buckets.replace(param, gradient.as_ref().map(values_in)),
            (None, Some(gradient)) => buckets.add_tensor(param, &gradient),
            (None, None) => {}
        });
        self.end_backward(MicroBatch::Last)
    }

    /// Begins a step, unless one is in progress, and then a backward over `own` samples of this rank. The
    /// step has `total` samples on all ranks together. If `own` is 0, begins no backward and returns `false`.
    pub(crate) fn begin_share(&mut self, own: usize, total: usize) -> Result<bool, CommError> {
        self.begin()?;
        self.samples = (self.samples.0.saturating_add(own), total);
        if own > total {
            let reason = format!(
                "passes {own} samples of its own to a step that has only {total} samples on all ranks; pass as total \
                 the samples of all ranks"
            );
            return Err(self.world.wrong(reason));
        }
        if own > 0 {
            let is_probe = self.arrival.is_none();
            self.buckets()?.begin_backward(own as f32 / total as f32, is_probe);
        }
        Ok(own > 0)
    }

    /// Returns `module` with its float buffers averaged over ranks. A buffer is a tensor that gets no
    /// gradients. The running statistics of batch norm, for example, differ between ranks. A `running_var`
    /// beside a `running_mean` becomes the variance over the samples of all ranks, if ranks have equally
    /// many. All ranks must call it with the same module.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn average_buffers<M: Module>(&self, module: M) -> Result<M, CommError> {
        module::average_buffers(&self.world, module)
    }

    /// Returns the communication times so far.
    pub fn times(&self) -> CommTimes {
        self.buckets.as_ref().map_or_else(CommTimes::default, |buckets| buckets.times)
    }

    /// Returns the bytes that this rank has passed to all-reduces so far, as [`SyncReport::sent`] has them.
    pub fn bytes_sent(&self) -> u64 {
        self.buckets.as_ref().map_or(0, |buckets| buckets.sent)
    }

    /// Returns the buckets, the times so far, and whether buckets are reduced during backward.
    pub fn report(&self) -> SyncReport {
        let layout = self.layout.specs();
        let bytes_of_value = self.options.wire.bytes();
        // With one rank, each gradient has a bucket of its own. The report has the buckets of several ranks.
        let plan = self.buckets.as_ref().map(|_| self.plan_for(self.world.size().max(2)));
        let buckets = plan.as_ref().map_or(&[][..], BucketPlan::buckets);
        let overlap = if self.world.size() == 1 {
            Overlap::Inactive(NoOverlap::OneRank)
        } else if !self.options.overlap {
            Overlap::Inactive(NoOverlap::Off)
        } else if buckets.len() == 1 {
            Overlap::Inactive(NoOverlap::OneBucket)
        } else if !self.hooked_device {
            Overlap::Inactive(NoOverlap::Device)
        } else if self.arrival.is_none() {
            Overlap::Inactive(NoOverlap::NotLearned)
        } else {
            Overlap::Active
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
            sent: self.bytes_sent(),
            is_compressed: self.buckets.as_ref().is_some_and(|buckets| buckets.compressor.is_some()),
            late_steps: self.late_steps,
            incomplete_steps: self.incomplete_steps,
        }
    }

    /// Restores the order in which gradients became final in an earlier run, so that a resumed run is
    /// bit-identical. Call it between steps only.
    ///
    /// # Errors
    /// [`CommError::Arrival`] if `arrival` is not an order of this module's parameters;
    /// [`CommError::Interrupted`] after a backward that panicked.
    pub fn adopt(&mut self, arrival: ArrivalOrder) -> Result<(), CommError> {
        arrival.check(&self.layout)?;
        self.arrival = Some(arrival);
        self.adopt_next = false;
        self.replan()
    }

    /// Reserves space for a number of `values` that [`reduce_with`](Self::reduce_with) averages. Call it
    /// between steps only, with the same number on all ranks.
    ///
    /// # Errors
    /// [`CommError::Interrupted`] after a backward that panicked.
    pub fn carry(&mut self, values: usize) -> Result<(), CommError> {
        self.carried = values;
        self.replan()
    }

    /// Makes a new bucket plan, in the order in which gradients are known to become final.
    fn replan(&mut self) -> Result<(), CommError> {
        let plan = self.plan();
        let buckets = self.buckets.as_deref_mut().ok_or(PANICKED)?;
        self.arrival.as_ref().inspect(|arrival| buckets.uses.clone_from(&arrival.uses));
        buckets.set_plan(plan);
        self.averaged = false;
        Ok(())
    }

    fn plan(&self) -> BucketPlan {
        self.plan_for(self.world.size())
    }

    fn plan_for(&self, ranks: usize) -> BucketPlan {
        plan_of(&self.layout, self.arrival.as_ref(), &self.options, self.carried, ranks)
    }

    /// Returns the order in which gradients become final, as learned in the first step or set by
    /// [`adopt`](Self::adopt); `None` until then.
    pub fn arrival(&self) -> Option<&ArrivalOrder> {
        self.arrival.as_ref()
    }

    /// Calls `watch` at each [`SyncEvent`] from now on; `None`, the default, calls nothing. Call it between
    /// steps only. Ranks may have different watches.
    ///
    /// # Errors
    /// [`CommError::Interrupted`] after a backward that panicked.
    pub fn watch(&mut self, watch: Option<SyncWatch>) -> Result<(), CommError> {
        self.buckets()?.watch = watch;
        Ok(())
    }

    /// Ends the averaging, and returns the transport for another use, such as
    /// [`LocalUpdates`](crate::LocalUpdates). The buckets are released. Every later step returns an error.
    /// Call it between steps, on all ranks.
    ///
    /// # Errors
    /// [`CommError::Interrupted`] after a backward that panicked; the error of an earlier step that failed.
    pub fn take_collective(&mut self) -> Result<Box<dyn Collective>, CommError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let buckets = self.buckets.take().ok_or(PANICKED)?;
        self.broken = Some(CommError::Interrupted("the transport of this GradientSync was taken"));
        Ok(buckets.collective)
    }

    /// Sets whether buckets are reduced during backward. Call it between steps, on all ranks.
    ///
    /// # Errors
    /// [`CommError::Interrupted`] after a backward that panicked.
    pub fn set_overlap(&mut self, overlap: bool) -> Result<(), CommError> {
        self.options.overlap = overlap;
        self.buckets()?.options.overlap = overlap;
        Ok(())
    }
}

/// Why the options of a `GradientSync` cannot be combined.
const WITH_SHARES: &str = "SyncOptions::shard and a compression cannot be combined: leave out one of them";

/// The error after the buckets were lost in a backward.
pub(super) const PANICKED: CommError =
    CommError::Interrupted("an earlier backward of this GradientSync panicked; make another GradientSync");

/// Returns the bucket plan of a module with `layout`, with room for `carried` values. With one rank, nothing
/// is sent: each gradient has a bucket of its own, so that the bucket can have the gradient's memory.
fn plan_of(
    layout: &ParamLayout,
    arrival: Option<&ArrivalOrder>,
    options: &SyncOptions,
    carried: usize,
    world_size: usize,
) -> BucketPlan {
    let lengths: Vec<usize> = layout.specs().iter().map(|spec| spec.range.len()).collect();
    let order = arrival.map_or_else(|| arrival::unknown(layout), |arrival| arrival.order.clone());
    let (limits, tail) = match world_size {
        1 => ((0, 0), 0),
        // A sharded bucket carries no other values, so its chunks do not depend on their number.
        _ if options.shard => (bucket_limits(layout.trainable(), options), 0),
        _ => (bucket_limits(layout.trainable(), options), CONTROL + carried),
    };
    BucketPlan::new(&lengths, &order, limits, tail, world_size)
}

/// Checks that all ranks average the same module in the same way.
fn compare(world: &World, layout: &ParamLayout, options: &SyncOptions) -> Result<(), CommError> {
    module::check_same(world, layout)?;
    world.check_equal("SyncOptions", &format!("{options:?}"))?;
    match layout.wide() {
        Some(reason) if options.shard => Err(CommError::Sharded(format!(
            "{reason}, and ranks send their updated shares as f32; use f32, or SyncOptions without shard"
        ))),
        _ => Ok(()),
    }
}
