//! One training step on one rank: samples in, new weights out.

use std::ops::Range;
use std::time::{Duration, Instant};

use burn::tensor::Device;

use super::optimizer::Rate;
use super::update::Updater;
use crate::config::RunConfig;
use crate::data::{Description, Normalizer};
use crate::model::{BatchPlace, Network};
use crate::record::Tally;
use burn_fused::loss::{Score, smoothed_cross_entropy};
use burn_fused::memory::live_bytes;
use burn_mpi::{Collective, CommError, CommTimes, GradientSync, MicroBatch, ParamLayout, Signals, World};

/// Where the time of steps goes, added up over steps.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepTimes {
    /// Augmentation, and bytes to normalised tensors.
    pub data: Duration,
    /// Class scores, loss and metrics.
    pub forward: Duration,
    /// Backward, without copying gradients.
    pub backward: Duration,
    /// Copying gradients, and waiting for other ranks'.
    pub comm: CommTimes,
    /// New weights, and the network that holds them.
    pub optimizer: Duration,
}

/// Network, optimizer and averaged gradients of one rank.
pub struct Learner<'w> {
    /// The network, which holds copies of `params`.
    pub network: Network,
    /// All parameters in visit order.
    pub params: Vec<f32>,
    /// What makes updates, with the optimizer's moments.
    pub updater: Updater,
    /// Learning rate and momentum of the next step; a schedule sets them.
    pub rate: Rate,
    /// The gradients.
    pub sync: GradientSync<'w>,
    world: &'w World,
    layout: ParamLayout,
    places: Vec<(usize, Range<usize>)>,
    smoothing: f64,
    normalizer: Normalizer,
    device: Device,
    seed: u64,
    micro_batch: usize,
    times: StepTimes,
}

impl<'w> Learner<'w> {
    /// A learner that starts from `network`, with rank 0's weights on all ranks.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn new(
        world: &'w World,
        config: &RunConfig,
        description: &Description,
        network: Network,
        collective: Box<dyn Collective>,
    ) -> Result<Self, CommError> {
        let layout = ParamLayout::of(&network);
        let mut params = layout.read(&network);
        world.broadcast_f32(&mut params)?;
        let network = layout.write(network, &params);
        Ok(Self {
            updater: Updater::new(config, params.len()),
            rate: config.recipe.base_rate(config.lr),
            places: Updater::places(&layout),
            smoothing: config.recipe.label_smoothing,
            sync: GradientSync::new(world, collective, &layout, config.sync_options()),
            normalizer: Normalizer::new(description),
            device: config.device.device().autodiff(),
            seed: config.seed,
            micro_batch: config.train_batch_size,
            times: StepTimes::default(),
            world,
            network,
            layout,
            params,
        })
    }

    /// The layout of the weights.
    pub fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    /// Where the time went so far.
    pub fn times(&self) -> StepTimes {
        StepTimes { comm: self.sync.times(), ..self.times }
    }

    /// Adds to the time of getting samples.
    pub fn count_data(&mut self, time: Duration) {
        self.times.data += time;
    }

    /// Trains on this rank's samples of a step, of which all ranks have `total`
    /// together. Returns this rank's tally and what all ranks signal; with a
    /// loss that is no number on any rank, no weight has changed.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn step(
        &mut self,
        bytes: &[u8],
        labels: &[u8],
        total: usize,
        stop: bool,
    ) -> Result<(Tally, Signals), CommError> {
        live_bytes::begin_step();
        let mut tally = Tally::default();
        let item = bytes.len() / labels.len().max(1);
        let parts = labels.len().div_ceil(self.micro_batch);
        for part in 0..parts {
            let from = part * self.micro_batch;
            let to = (from + self.micro_batch).min(labels.len());
            let which = if part + 1 == parts { MicroBatch::Last } else { MicroBatch::More };
            let place = self.place(from);
            tally.add(&self.backward(
                &bytes[from * item..to * item],
                &labels[from..to],
                &place,
                total,
                which,
            )?);
        }
        let signals = self.sync.reduce(Signals {
            not_finite: if tally.loss.is_finite() { 0.0 } else { 1.0 },
            stop: if stop { 1.0 } else { 0.0 },
        })?;
        if signals.not_finite == 0.0 {
            self.update()?;
        }
        live_bytes::end_step();
        Ok((tally, signals))
    }

    /// Gives the network all values of `params`, buffers included.
    pub fn publish(&mut self) {
        self.network = self.layout.write(self.network.clone(), &self.params);
    }

    /// Averages what gets no gradients (batch norm's running statistics) over
    /// ranks and puts it into `params`.
    ///
    /// # Errors
    /// When the transport fails.
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

    /// Where samples stand, of which the first is this rank's `from`-th of the step.
    fn place(&self, from: usize) -> BatchPlace {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        BatchPlace {
            seed: self.seed,
            step: self.updater.optimizer.updates(),
            first: rank + from * ranks,
            stride: ranks,
        }
    }

    fn backward(
        &mut self,
        bytes: &[u8],
        labels: &[u8],
        place: &BatchPlace,
        total: usize,
        which: MicroBatch,
    ) -> Result<Tally, CommError> {
        let began = Instant::now();
        let images = self.normalizer.images(bytes, &self.device);
        let loaded = Instant::now();
        let scores = self.network.forward_training(images, place);
        let Score { loss, value, correct } = smoothed_cross_entropy(scores, labels, self.smoothing);
        let tally = Tally::of_batch(value, correct, labels.len());
        let forwarded = Instant::now();
        let copied = self.sync.times().copy;
        self.sync.backward(&loss, &self.network, labels.len(), total, which)?;
        self.times.data += loaded - began;
        self.times.forward += forwarded - loaded;
        self.times.backward += forwarded.elapsed().saturating_sub(self.sync.times().copy - copied);
        Ok(tally)
    }

    fn update(&mut self) -> Result<(), CommError> {
        let began = Instant::now();
        self.updater.update(&self.places, &mut self.params, &mut self.sync, self.rate)?;
        self.network = self.layout.write_trainable(self.network.clone(), &self.params);
        self.times.optimizer += began.elapsed();
        Ok(())
    }
}
