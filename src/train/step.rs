//! One training step on one rank.

use std::ops::Range;
use std::time::{Duration, Instant};

use burn::tensor::Device;

use super::optimizer::Rate;
use super::update::Updater;
use super::{Forward, Loss, LossScale, Plain, RunConfig, Samples, Scored, Tally};
use crate::model::{BatchPlace, Model};
use crate::spans;
use burn_mpi::{Collective, CommError, GradientSync, MicroBatch, ParamLayout, Signals, World};
use run_record::Phases;

/// Times of each phase, summed over steps.
pub type StepTimes = Phases<Duration>;

/// Model, loss, optimizer and averaged gradients of one rank.
pub struct Learner<'w, M, L, F = Plain> {
    /// The model, which holds copies of `params`.
    pub network: M,
    /// All parameters in visit order.
    pub params: Vec<f32>,
    /// The updater, with the optimizer's moments.
    pub updater: Updater,
    /// Learning rate and momentum of the next step; a schedule sets them.
    pub rate: Rate,
    /// The forward pass.
    pub forward: F,
    /// Loss scaling, with fp16.
    pub loss_scale: Option<LossScale>,
    /// Gradient averaging.
    pub sync: GradientSync,
    world: &'w World,
    layout: ParamLayout,
    places: Vec<(usize, Range<usize>)>,
    loss: L,
    device: Device,
    seed: u64,
    micro_batch: usize,
    times: StepTimes,
}

impl<'w, M: Model, L, F: Forward<M>> Learner<'w, M, L, F> {
    /// A learner of `loss` that starts from `network`, with rank 0's weights on all ranks.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn new(
        world: &'w World,
        options: &RunConfig,
        network: M,
        mut forward: F,
        loss: L,
        collective: Box<dyn Collective>,
    ) -> Result<Self, CommError> {
        let layout = ParamLayout::of(&network);
        let mut params = layout.read(&network);
        world.broadcast_f32(&mut params)?;
        let network = layout.write(network, &params);
        let mut sync = GradientSync::new(world, collective, &layout, options.communication.sync_options());
        sync.carry(forward.averaged(&network).len())?;
        Ok(Self {
            updater: Updater::new(options, params.len()),
            rate: options.base_rate(),
            loss_scale: options.precision.scales_loss().then(LossScale::default),
            places: Updater::places(&layout),
            device: options.device.device().autodiff(),
            seed: options.seed,
            micro_batch: options.data.train_batch_size,
            times: StepTimes::default(),
            forward,
            sync,
            world,
            network,
            loss,
            layout,
            params,
        })
    }

    /// The layout of the weights.
    pub fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    /// Times of each phase so far.
    pub fn times(&self) -> StepTimes {
        let comm = self.sync.times();
        StepTimes { copy: comm.copy, exposed: comm.exposed, ..self.times }
    }

    /// Adds to the time of getting samples.
    pub fn count_data(&mut self, time: Duration) {
        self.times.data += time;
    }

    /// Trains on this rank's samples of a step that has `total` samples on all ranks.
    /// Returns this rank's tally and the signals of all ranks; if the loss is NaN or
    /// infinite on any rank, no weight has changed. With loss scaling, none has either
    /// if an averaged gradient is.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn step<S: Samples<Input = M::Input>>(
        &mut self,
        samples: &S,
        total: usize,
        stop: bool,
    ) -> Result<(Tally, Signals), CommError>
    where
        L: Loss<M::Output, S::Target>,
    {
        let mut tally = Tally::default();
        self.forward.begin_step(&self.network);
        let count = samples.count();
        for from in (0..count).step_by(self.micro_batch) {
            let range = from..(from + self.micro_batch).min(count);
            let which = if range.end == count { MicroBatch::Last } else { MicroBatch::More };
            tally.add(&self.backward(samples, range, total, which)?);
        }
        let mine = Signals {
            not_finite: if tally.loss.is_finite() { 0.0 } else { 1.0 },
            stop: if stop { 1.0 } else { 0.0 },
        };
        let signals = self.sync.reduce_with(mine, self.forward.averaged(&self.network))?;
        if signals.not_finite == 0.0 {
            spans::span(&spans::OPTIMIZER, || {
                self.forward.end_step();
                self.update()
            })?;
        }
        Ok((tally, signals))
    }

    /// Writes all values of `params` into the network, buffers included.
    pub fn publish(&mut self) {
        self.network = self.layout.write(self.network.clone(), &self.params);
    }

    /// Averages over ranks the tensors that get no gradients (batch norm's running
    /// statistics) and stores the means in `params`.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn average_buffers(&mut self) -> Result<(), CommError> {
        if !self.layout.has_buffers() {
            return Ok(());
        }
        let network = self.sync.average_buffers(self.network.clone())?;
        let current = self.layout.read(&network);
        for spec in self.layout.specs().iter().filter(|spec| !spec.trainable) {
            self.params[spec.range.clone()].copy_from_slice(&current[spec.range.clone()]);
        }
        self.publish();
        Ok(())
    }

    /// This rank's tensors that get no gradients, in visit order.
    pub fn buffers(&self) -> Vec<f32> {
        if !self.layout.has_buffers() {
            return Vec::new();
        }
        let current = self.layout.read(&self.network);
        let buffers = self.layout.specs().iter().filter(|spec| !spec.trainable);
        buffers.flat_map(|spec| current[spec.range.clone()].to_vec()).collect()
    }

    /// Name of the first tensor without gradients that has a NaN or an infinity here.
    pub fn overflown_buffer(&self) -> Option<String> {
        if !self.layout.has_buffers() {
            return None;
        }
        let current = self.layout.read(&self.network);
        let mut buffers = self.layout.specs().iter().filter(|spec| !spec.trainable);
        let overflown = buffers.find(|spec| current[spec.range.clone()].iter().any(|x| !x.is_finite()));
        overflown.map(|spec| spec.name.clone())
    }

    /// Writes [`buffers`](Self::buffers), of the same length, into `params` and the network.
    pub fn set_buffers(&mut self, mut values: &[f32]) {
        for spec in self.layout.specs().iter().filter(|spec| !spec.trainable) {
            let (buffer, rest) = values.split_at(spec.range.len());
            self.params[spec.range.clone()].copy_from_slice(buffer);
            values = rest;
        }
        self.publish();
    }

    /// Positions of samples, of which the first is this rank's `from`-th of the step.
    fn place(&self, from: usize) -> BatchPlace {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        BatchPlace {
            seed: self.seed,
            step: self.updater.optimizer.updates(),
            first: rank + from * ranks,
            stride: ranks,
        }
    }

    fn backward<S: Samples<Input = M::Input>>(
        &mut self,
        samples: &S,
        range: Range<usize>,
        total: usize,
        which: MicroBatch,
    ) -> Result<Tally, CommError>
    where
        L: Loss<M::Output, S::Target>,
    {
        let began = Instant::now();
        let (place, own) = (self.place(range.start), range.len());
        let (input, target) = spans::span(&spans::BATCH, || samples.batch(range, &self.device));
        let loaded = Instant::now();
        let output = spans::forward(|| self.forward.forward(&self.network, input, &place));
        let Scored { loss, tally } = spans::span(&spans::LOSS, || self.loss.score(output, target));
        let mut loss = spans::end_forward(loss);
        if let Some(LossScale { scale, .. }) = self.loss_scale {
            loss = loss.mul_scalar(scale);
        }
        let forwarded = Instant::now();
        let copied = self.sync.times().copy;
        self.sync.backward(&loss, &self.network, own, total, which)?;
        self.times.data += loaded - began;
        self.times.forward += forwarded - loaded;
        self.times.backward += forwarded.elapsed().saturating_sub(self.sync.times().copy - copied);
        Ok(tally)
    }

    fn update(&mut self) -> Result<(), CommError> {
        let began = Instant::now();
        let fits = match &mut self.loss_scale {
            Some(scale) => scale.unscale(&self.places, &mut self.sync)?,
            None => true,
        };
        if fits {
            self.updater.update(&self.places, &mut self.params, &mut self.sync, self.rate)?;
            self.network = self.layout.write_trainable(self.network.clone(), &self.params);
        }
        self.times.optimizer += began.elapsed();
        Ok(())
    }
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
