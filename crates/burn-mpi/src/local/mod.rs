//! `LocalUpdates`: each rank trains its own copy of the parameters, and ranks average the changes every H
//! steps.
//!
//! A synchronisation of a fragment, a part of the parameters, has two ends. At its start, each rank takes the
//! change of its parameters since the last synchronisation, and starts an all-reduce of it. At its end, after
//! a delay of D local steps, all ranks compute the same new values from the averaged change, and merge them
//! into their own parameters.
//!
//! The steps at which fragments start and end depend only on the options. All ranks therefore start and wait
//! for the same all-reduces in the same order, whatever their samples and their speed.

mod fragments;
mod message;
mod options;
mod state;

use burn::module::Module;
use burn::tensor::{Gradients, Tensor};

use self::fragments::{Exchange, Fragment, divide};
use self::message::{digest, narrowed, scale_for, widened};
pub use self::options::{LocalError, LocalOptions, Outer};
pub use self::state::{FragmentState, LocalState};
use crate::calling::calling;
use crate::collective::polled::Polled;
use crate::ddp::hook;
use crate::ddp::report::CommTimes;
use crate::module;
use crate::{Collective, CommError, ParamLayout, SharedError, Wire, WireType, World};

/// Trains with local updates: ranks train on their own for [`every`](LocalOptions::every) steps, and then
/// average the changes of their parameters. Local SGD, DiLoCo and Streaming DiLoCo are settings of
/// [`LocalOptions`].
///
/// Any optimizer of Burn can make the local steps. The only requirement is that every rank calls
/// [`step_module`](Self::step_module) (or [`step`](Self::step)) once per step, also a rank without samples,
/// and [`finish_module`](Self::finish_module) (or [`finish`](Self::finish)) at the end. A rank that leaves
/// earlier, with a fragment in flight, keeps other ranks waiting.
///
/// ```no_run
/// # use burn::{module::Module, optim::{GradientsParams, ModuleOptimizer}, tensor::Tensor};
/// # use burn_mpi::{Collective, CommError, LocalOptions, LocalUpdates, Outer, World};
/// # fn train<M: Module>(world: &World, collective: Box<dyn Collective>, mut model: M,
/// #     mut optimizer: ModuleOptimizer, loss_of: fn(&M, usize) -> (Tensor<1>, usize),
/// # ) -> Result<M, CommError> {
/// let outer = Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 };
/// let options = LocalOptions::default().with_every(20).with_outer(outer);
/// let mut local = LocalUpdates::of_module(world, collective, &model, options)?;
/// for step in 0..1000 {
///     let (loss, samples) = loss_of(&model, step);
///     let gradients = GradientsParams::from_grads(local.backward(&loss), &model);
///     model = optimizer.step(1e-3, model, gradients);
///     model = local.step_module(model, samples)?;
/// }
/// local.finish_module(model)
/// # }
/// ```
///
/// # What is computed
/// The change of rank r since the last synchronisation is `params - anchor`. The anchor has the values after
/// the last synchronisation, equal on all ranks. The mean change is weighted by samples: a rank counts by the
/// samples that it has trained since the fragment's last synchronisation started. With `every: 1`, plain SGD
/// and no outer optimizer, the result equals averaged gradients within rounding, also if shards are uneven or
/// empty. The mean change updates the anchor, directly or through the outer optimizer ([`Outer`]).
///
/// Without a `delay`, the anchor replaces the parameters. With a `delay`, the all-reduce runs during the next
/// `delay` local steps, and the parameters become `merge * params + (1 - merge) * anchor` (Douillard et al.,
/// "Streaming DiLoCo with overlapping communication", arXiv 2501.18512, 2025, algorithm 2). The outer
/// optimizer starts from the anchor, as in torchft's `local_sgd.py`. With `merge` above 0, a rank's own
/// parameters at the last synchronisation differ from the anchor and between ranks, and so would the results
/// of an outer optimizer that starts from them.
///
/// All ranks compute the same bits. At each synchronisation, ranks compare digests of the anchor; a difference
/// is an error that names the rank.
///
/// Values without gradients, such as the running statistics of batch norm, are not changed;
/// [`average_buffers`](Self::average_buffers) averages them.
pub struct LocalUpdates {
    world: World,
    layout: ParamLayout,
    options: LocalOptions,
    transfers: Polled,
    fragments: Vec<Fragment>,
    /// Number of local steps so far.
    steps: usize,
    /// For each fragment, this rank's samples since the start of the last synchronisation. While it is in
    /// progress, also the samples that it counts.
    samples: Vec<u64>,
    /// The error that makes further steps impossible; `None` if they are possible.
    broken: Option<CommError>,
}

impl LocalUpdates {
    /// Prepares local updates over `collective`. `layout` is the layout of the module, and `params` are the
    /// module's values in this layout ([`ParamLayout::read`]), equal on all ranks. All ranks must call `new`.
    ///
    /// # Errors
    /// On all ranks: [`SharedError::Diverged`] if modules, values or options differ between ranks;
    /// [`SharedError::LocalUpdates`] if options are wrong, or the module has fewer parameters than fragments;
    /// [`CommError::Module`] if a parameter is f64. Other errors come from the transport.
    ///
    /// # Panics
    /// If the length of `params` is not that of `layout`.
    pub fn new(
        world: &World,
        collective: Box<dyn Collective>,
        layout: &ParamLayout,
        params: &[f32],
        options: LocalOptions,
    ) -> Result<Self, CommError> {
        check_length(layout, params);
        let _calling = calling("the start of local updates");
        module::check_same(world, layout)?;
        if let Some(reason) = layout.wide() {
            return Err(CommError::Module(format!("{reason}, and local updates keep parameters as f32")));
        }
        world.check_equal("LocalOptions", &format!("{options:?}"))?;
        // Options and layout are equal on all ranks, and so are these errors.
        let parts = options.check().and_then(|()| divide(layout, options.fragments)).map_err(shared)?;
        check_equal_params(world, layout, params)?;
        let fragment = |ranges| Fragment::new(ranges, params, options.outer);
        Ok(Self {
            world: world.clone(),
            layout: layout.clone(),
            transfers: Polled::new(world, collective),
            samples: vec![0; parts.len()],
            fragments: parts.into_iter().map(fragment).collect(),
            options,
            steps: 0,
            broken: None,
        })
    }

    /// Prepares local updates of `module`, as [`new`](Self::new) does for its layout and values.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new). [`CommError::OnRank`] if a frozen clone of a parameter comes before it,
    /// because Burn's optimizers would update the clone.
    pub fn of_module<M: Module>(
        world: &World,
        collective: Box<dyn Collective>,
        module: &M,
        options: LocalOptions,
    ) -> Result<Self, CommError> {
        let layout = ParamLayout::of_module(module);
        if let Some(reason) = &layout.shadowed {
            return Err(world.wrong(reason.clone()));
        }
        Self::new(world, collective, &layout, &layout.read(module), options)
    }

    /// Runs the backward of `loss` as Burn does. Meanwhile, fragments in flight make progress, on backends
    /// with a gradient hook: flex, ndarray, libtorch and CUDA. Burn's own `loss.backward()` is also possible;
    /// fragments then make progress only in [`step`](Self::step) and in [`poll`](crate::poll).
    pub fn backward(&self, loss: &Tensor<1>) -> Gradients {
        hook::polled_backward(loss)
    }

    /// Returns whether the next [`step`](Self::step) reads or changes parameters, because a synchronisation
    /// starts or ends. The result is equal on all ranks.
    pub fn is_due(&self) -> bool {
        let next = self.steps.saturating_add(1);
        self.options.starting_at(next).is_some() || self.due(next).is_some()
    }

    /// Ends a local step, after the local optimizer has changed `params`, the values in the module's layout.
    /// `samples` is the number of samples that this rank has trained in the step, possibly 0. Starts and ends
    /// the synchronisations of this step, and returns whether `params` was changed. If
    /// [`is_due`](Self::is_due) was false, `params` is not used, and may be empty.
    ///
    /// # Errors
    /// - [`SharedError::Diverged`] on all ranks, if the values of a fragment's last synchronisation differ
    ///   between ranks.
    /// - The transport's errors.
    ///
    /// Every later call returns the same error.
    ///
    /// # Panics
    /// If `params` is used and has another length than the layout.
    pub fn step(&mut self, params: &mut [f32], samples: usize) -> Result<bool, CommError> {
        self.guarded(|this| {
            this.transfers.poll();
            this.steps = this.steps.saturating_add(1);
            this.samples.iter_mut().for_each(|sum| *sum = sum.saturating_add(samples as u64));
            // Another fragment may be due in the step at which a fragment starts. The one that starts is sent
            // before this rank waits.
            if let Some(fragment) = this.options.starting_at(this.steps) {
                check_length(&this.layout, params);
                this.start(fragment, params)?;
            }
            let due = this.due(this.steps);
            if let Some(fragment) = due {
                check_length(&this.layout, params);
                this.complete(fragment, params)?;
            }
            Ok(due.is_some())
        })
    }

    /// Ends a local step as [`step`](Self::step) does, and returns `module` with the new values. The module is
    /// read only in steps in which a synchronisation starts or ends.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    ///
    /// # Panics
    /// If `module` does not have the layout of the module that local updates were made for.
    pub fn step_module<M: Module>(&mut self, module: M, samples: usize) -> Result<M, CommError> {
        if !self.is_due() {
            return self.step(&mut [], samples).map(|_| self.layout.tie(module));
        }
        self.changed(module, |this, params| this.step(params, samples))
    }

    /// Replaces `params`, the values in the module's layout, by their mean over ranks, for example to test
    /// between synchronisations. A rank counts by its samples since the last synchronisation; if there are
    /// none on any rank, all ranks count the same. The training continues from the values before the call, so
    /// keep a copy. All ranks must call it after the same step. Sends all parameters as f32.
    ///
    /// # Errors
    /// The transport's errors; every later call returns the same error.
    ///
    /// # Panics
    /// If the length of `params` is not that of the layout.
    pub fn average(&mut self, params: &mut [f32]) -> Result<(), CommError> {
        check_length(&self.layout, params);
        self.guarded(|this| {
            let _calling = calling("average of local updates");
            let (ranks, rank) = (this.world.size(), this.world.rank());
            let samples: Vec<Vec<u64>> = this.world.gather(&this.samples)?;
            // The operations of fragments in flight have the numbers below.
            let number = |fragment: usize| this.fragments.len() + fragment;
            for (at, fragment) in this.fragments.iter().enumerate() {
                let total: u64 = samples.iter().map(|samples| samples[at]).sum();
                let share =
                    if total == 0 { 1.0 / ranks as f32 } else { samples[rank][at] as f32 / total as f32 };
                let mut change = Vec::with_capacity(fragment.anchor.len());
                this.transfers.copying(|| fragment.append_change(params, share, &mut change));
                this.transfers.start(number(at), Wire::F32(change), this.options.reduction)?;
            }
            for (at, fragment) in this.fragments.iter().enumerate() {
                let sum = widened(this.transfers.wait(number(at))?);
                this.transfers.copying(|| fragment.set(params, &sum));
            }
            Ok(())
        })
    }

    /// Returns `module` with its trainable parameters averaged as [`average`](Self::average) does.
    ///
    /// # Errors
    /// The errors of [`average`](Self::average).
    ///
    /// # Panics
    /// If `module` does not have the layout of the module that local updates were made for.
    pub fn average_module<M: Module>(&mut self, module: M) -> Result<M, CommError> {
        self.changed(module, |this, params| this.average(params).map(|()| true))
    }

    /// Ends all synchronisations in progress before their step, and then averages `params` as
    /// [`average`](Self::average) does, without the outer optimizer. All ranks end with equal values, from
    /// which the training can continue. All ranks must call it after the same step.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    ///
    /// # Panics
    /// If the length of `params` is not that of the layout.
    pub fn finish(&mut self, params: &mut [f32]) -> Result<(), CommError> {
        check_length(&self.layout, params);
        self.guarded(|this| {
            for fragment in this.in_progress() {
                this.complete(fragment, params)?;
            }
            this.average(params)?;
            this.samples.fill(0);
            this.fragments.iter_mut().for_each(|fragment| fragment.adopt(params));
            this.check_anchors("the weights at the end of local updates")
        })
    }

    /// Returns `module` with its trainable parameters averaged as [`finish`](Self::finish) does.
    ///
    /// # Errors
    /// The errors of [`finish`](Self::finish).
    ///
    /// # Panics
    /// If `module` does not have the layout of the module that local updates were made for.
    pub fn finish_module<M: Module>(&mut self, module: M) -> Result<M, CommError> {
        self.changed(module, |this, params| this.finish(params).map(|()| true))
    }

    /// Returns `module` with its float buffers averaged over ranks, as
    /// [`GradientSync::average_buffers`](crate::GradientSync::average_buffers) does. All ranks must call it.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn average_buffers<M: Module>(&self, module: M) -> Result<M, CommError> {
        module::average_buffers(&self.world, module)
    }

    /// Returns the number of local steps so far.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Returns the communication times so far. Hidden is the time in which a fragment was in flight while
    /// this rank did not wait.
    pub fn times(&self) -> CommTimes {
        self.transfers.times()
    }

    /// Returns the bytes that this rank has passed to all-reduces so far.
    pub fn bytes_sent(&self) -> u64 {
        self.transfers.bytes()
    }

    /// Runs `body`, unless an earlier call has failed, and keeps its error for later calls: the transport may
    /// still have messages.
    fn guarded<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T, CommError>) -> Result<T, CommError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        body(self).inspect_err(|error| self.broken = Some(error.clone()))
    }

    /// Returns `module` with the parameters that `change` has changed. `change` returns whether it has changed
    /// them.
    fn changed<M: Module>(
        &mut self,
        module: M,
        change: impl FnOnce(&mut Self, &mut [f32]) -> Result<bool, CommError>,
    ) -> Result<M, CommError> {
        let mut params = self.layout.read(&module);
        let has_changed = change(self, &mut params)?;
        Ok(if has_changed { self.layout.write_trainable(module, &params) } else { self.layout.tie(module) })
    }

    /// Returns the fragment whose synchronisation ends at `step`; `None` if none ends.
    fn due(&self, step: usize) -> Option<usize> {
        // Without a delay, the fragment starts in the same step. After `finish`, none is in progress.
        let is_due = |due: &usize| self.options.delay == 0 || self.fragments[*due].exchange != Exchange::Idle;
        self.options.due_at(step).filter(is_due)
    }

    /// Returns the fragments whose synchronisation is in progress, in the order in which they started.
    fn in_progress(&self) -> Vec<usize> {
        let is_in_progress = |at: &usize| self.fragments[*at].exchange != Exchange::Idle;
        self.options.in_flight_after(self.steps).filter(is_in_progress).collect()
    }

    /// Starts the synchronisation of a fragment.
    fn start(&mut self, at: usize, params: &[f32]) -> Result<(), CommError> {
        let scale = self.scale(at)?;
        let (rank, ranks) = (self.world.rank(), self.world.size());
        let fragment = &mut self.fragments[at];
        let message =
            self.transfers.copying(|| fragment.message(params, self.samples[at], scale, (rank, ranks)));
        if ranks == 1 {
            fragment.exchange = Exchange::Arrived(message);
            return Ok(());
        }
        let wire = self.transfers.copying(|| narrowed(message, self.options.wire));
        self.transfers.start(at, wire, self.options.reduction)?;
        fragment.exchange = Exchange::InFlight { scale };
        Ok(())
    }

    /// Returns the factor of a fragment's changes in its message. IEEE half precision has a small range, so
    /// that changes multiplied by numbers of samples would overflow. The factor is a power of two, so it does
    /// not change the bits of a sum that neither overflows nor underflows.
    fn scale(&self, at: usize) -> Result<f32, CommError> {
        if self.options.wire != WireType::F16 || self.world.size() == 1 {
            return Ok(1.0);
        }
        let mut total = self.fragments[at].total;
        if total == 0 {
            // No earlier synchronisation tells how many samples to expect.
            let _calling = calling("the first synchronisation of local updates");
            total = self.world.gather(&self.samples[at])?.iter().sum();
        }
        Ok(scale_for(total))
    }

    /// Waits for the sum of a fragment, if it is in flight.
    fn arrive(&mut self, at: usize) -> Result<(), CommError> {
        let fragment = &mut self.fragments[at];
        if let Exchange::InFlight { scale } = fragment.exchange {
            let wire = self.transfers.wait(at)?;
            let sum = self.transfers.copying(|| {
                let mut sum = widened(wire);
                fragment.unscale(&mut sum, scale);
                sum
            });
            fragment.exchange = Exchange::Arrived(sum);
        }
        Ok(())
    }

    /// Waits for the sums of all fragments in flight.
    fn arrive_all(&mut self) -> Result<(), CommError> {
        self.in_progress().into_iter().try_for_each(|at| self.arrive(at))
    }

    /// Ends the synchronisation of a fragment: computes its new values, and merges them into `params`.
    fn complete(&mut self, at: usize, params: &mut [f32]) -> Result<(), CommError> {
        self.arrive(at)?;
        let fragment = &mut self.fragments[at];
        let Exchange::Arrived(sum) = std::mem::replace(&mut fragment.exchange, Exchange::Idle) else {
            return Ok(());
        };
        let notes = fragment.notes(&sum);
        if let Some(rank) = notes.iter().position(|note| note.digest != notes[0].digest) {
            // All ranks return this error. None leaves while another one waits for a fragment in flight.
            self.arrive_all()?;
            let step = self.steps;
            let what =
                format!("fragment {at} of the weights, after its last synchronisation before step {step},");
            let [found, expected] = [rank, 0].map(|rank| format!("digest {:016x}", notes[rank].digest));
            return Err(self.world.diverged(what, rank, found, expected));
        }
        let total = notes.iter().map(|note| note.samples).sum();
        self.samples[at] -= notes[self.world.rank()].samples.min(self.samples[at]);
        let LocalOptions { outer, merge, .. } = self.options;
        let fragment = &mut self.fragments[at];
        self.transfers.copying(|| {
            fragment.update(&sum, total, outer);
            fragment.merge(params, merge);
        });
        Ok(())
    }

    /// Checks that the anchors are equal on all ranks. An error begins with `what`.
    fn check_anchors(&self, what: &str) -> Result<(), CommError> {
        let digests = self.fragments.iter().map(|fragment| format!("{:016x}", digest(&fragment.anchor)));
        self.world.check_equal(what, &format!("digests {}", digests.collect::<Vec<_>>().join(" ")))
    }
}

/// # Panics
/// If the length of `params` is not that of `layout`.
fn check_length(layout: &ParamLayout, params: &[f32]) {
    assert_eq!(params.len(), layout.len(), "the number of values must be that of the module's layout");
}

/// Returns an error that all ranks have.
fn shared(error: LocalError) -> CommError {
    CommError::Shared(SharedError::LocalUpdates(error))
}

/// Checks that all ranks begin with the same values.
///
/// # Errors
/// [`SharedError::Diverged`] names the first parameter that differs.
fn check_equal_params(world: &World, layout: &ParamLayout, params: &[f32]) -> Result<(), CommError> {
    let trainable = || layout.specs().iter().filter(|spec| spec.trainable);
    let digests: Vec<u64> = trainable().map(|spec| digest(&params[spec.range.clone()])).collect();
    let ranks: Vec<(usize, Vec<u64>)> = world.gather_distinct(&digests)?;
    for (at, spec) in trainable().enumerate() {
        let expected = ranks[0].1[at];
        if let Some((rank, digests)) = ranks.iter().find(|(_, digests)| digests[at] != expected) {
            let [found, expected] = [digests[at], expected].map(|digest| format!("digest {digest:016x}"));
            let what = format!(
                "before the first step (broadcast_module gives all ranks the same weights; a resumed rank loads \
                 its own weights after LocalUpdates is made), the parameter {}",
                spec.name
            );
            return Err(world.diverged(what, *rank, found, expected));
        }
    }
    Ok(())
}
