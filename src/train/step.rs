//! One training step on one rank: forward, backward, averaged gradients, weight update.
//!
//! Each parameter has two copies: one in the flat vector `params`, one in the network's tensors. `params` is
//! in visit order, the order in which Burn visits the parameters of a module. The optimizer updates `params`,
//! and `Learner::update` then writes the trainable parameters into the network. Checkpoints save `params`,
//! and ranks compare its digest.

mod compression;
mod local;
mod moments;
mod own_gradients;
mod signals;

use std::ops::Range;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use burn_fused::loss::{Score, weighted_cross_entropy};
use burn_fused::nn::BatchPlace;

use super::optimizer::{Optimizer, Rate};
use super::{LabelledBytes, LossScale, RunConfig, Tally};
use crate::model::Network;
use crate::quant::Quantizer;
use crate::spans;
use burn_mpi::{Collective, CommError, GradientSync, MicroBatch, ParamLayout, Signals, World};
use local::Local;
pub use local::LocalPosition;
pub use own_gradients::OwnGradients;
use run_record::Phases;

/// Time of each phase of a step, summed over steps.
pub type StepTimes = Phases<Duration>;

/// Network, optimizer and gradient averaging of one rank.
pub struct Learner<'w> {
    /// The network. Its trainable parameters are copies of those in `params`. Its buffers (batch norm's
    /// running statistics) are this rank's own: forward changes them. Their copies in `params` change only in
    /// [`set_buffers`](Self::set_buffers).
    pub network: Network,
    /// All parameters and buffers in visit order.
    pub params: Vec<f32>,
    /// The optimizer, with its moments.
    pub optimizer: Optimizer,
    /// Learning rate and momentum of the next step, which the trainer sets from the schedule.
    pub rate: Rate,
    /// Fake quantization, and the ranges of the network's values; `None` except in quantization-aware
    /// training.
    pub quantizer: Option<Quantizer>,
    /// Loss scaling; `None` except with fp16.
    pub loss_scale: Option<LossScale>,
    /// Gradient averaging. Local updates take its transport.
    pub sync: GradientSync,
    /// Local updates; `None` while gradients are averaged.
    pub local: Option<Box<Local>>,
    /// Bytes that this rank has passed to all-reduces of gradients, or of changes of parameters.
    pub bytes_sent: u64,
    world: &'w World,
    layout: ParamLayout,
    /// Options of the training.
    pub options: RunConfig,
    /// Weight of each class in the training loss; `None` if all classes count the same.
    pub class_weights: Option<Vec<f32>>,
    device: Device,
    times: StepTimes,
}

impl<'w> Learner<'w> {
    /// Returns a learner of `network`. All ranks get rank 0's weights.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn new(
        world: &'w World,
        options: &RunConfig,
        network: Network,
        quantizer: Option<Quantizer>,
        collective: Box<dyn Collective>,
    ) -> Result<Self, CommError> {
        let layout = network.parameters();
        let mut params = layout.read(&network);
        world.broadcast_f32(&mut params)?;
        let network = layout.write(network, &params);
        let sync =
            GradientSync::new(world, collective, &layout, options.communication.sync_options(options.seed));
        let mut learner = Self {
            optimizer: Optimizer::new(options),
            rate: options.base_rate(),
            loss_scale: options.precision.scales_loss().then(LossScale::default),
            options: options.clone(),
            class_weights: None,
            device: options.device.device().autodiff(),
            times: StepTimes::default(),
            quantizer,
            sync,
            local: None,
            bytes_sent: 0,
            world,
            network,
            layout,
            params,
        };
        let carried = learner.averaged().1.len();
        learner.sync.carry(carried)?;
        Ok(learner)
    }

    /// Names, shapes and ranges of the parameters in `params`.
    pub fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    /// Time of each phase, summed over this process's steps. The `copy` phase includes the compression.
    pub fn times(&self) -> StepTimes {
        let comm = self.local.as_ref().map_or_else(|| self.sync.times(), |local| local.times());
        StepTimes { copy: comm.copy + comm.compress, exposed: comm.exposed, ..self.times }
    }

    /// Adds `time` to the `data` phase, in which samples are read.
    pub fn count_data(&mut self, time: Duration) {
        self.times.data += time;
    }

    /// Trains on this rank's samples of a step. `total` is the sum of the step's samples over all ranks.
    /// `stop` is true if this rank requests a stop. Returns this rank's tally, and the signals: the number of
    /// ranks with a NaN or infinite loss, and the number of ranks that request a stop.
    ///
    /// If the loss of any rank is NaN or infinite, no rank changes a weight. With loss scaling, an averaged
    /// gradient that is NaN or infinite has the same effect.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn step(
        &mut self,
        samples: &LabelledBytes<'_>,
        total: usize,
        stop: bool,
    ) -> Result<(Tally, Signals), CommError> {
        let mut tally = Tally::default();
        self.quantizer.iter_mut().for_each(Quantizer::begin_step);
        // With --accumulate, a step has several micro-batches.
        let (count, micro_batch) = (samples.count(), self.options.data.train_batch_size.get());
        for from in (0..count).step_by(micro_batch) {
            let range = from..(from + micro_batch).min(count);
            let which = if range.end == count { MicroBatch::Last } else { MicroBatch::More };
            tally.add(&self.backward(samples, range, total, which)?);
        }
        let mine = Signals {
            not_finite: if tally.loss.is_finite() { 0.0 } else { 1.0 },
            stop: if stop { 1.0 } else { 0.0 },
        };
        let (sync, averaged) = self.averaged();
        let signals = sync.reduce_with(mine, averaged)?;
        if signals.not_finite == 0.0 {
            spans::span(&spans::OPTIMIZER, || {
                self.quantizer.iter_mut().for_each(Quantizer::adopt_averages);
                self.update()
            })?;
        }
        self.bytes_sent = self.sync.bytes_sent();
        Ok((tally, signals))
    }

    /// Writes all values of `params`, including buffers, into the network.
    pub fn publish(&mut self) {
        self.network = self.layout.write(self.network.clone(), &self.params);
    }

    /// Averages batch norm's running statistics over ranks, and writes the averages into `params` and the
    /// network.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn average_buffers(&mut self) -> Result<(), CommError> {
        if !self.layout.has_buffers() {
            return Ok(());
        }
        self.network = self.sync.average_buffers(self.network.clone())?;
        let averages = self.buffers();
        self.set_buffers(&averages);
        Ok(())
    }

    /// Returns the values of this rank's buffers (tensors without gradients), in visit order.
    pub fn buffers(&self) -> Vec<f32> {
        self.layout.read_buffers(&self.network)
    }

    /// Returns the name of the first buffer that has a NaN or infinite value on this rank, or `None` if all
    /// values are finite.
    pub fn overflown_buffer(&self) -> Option<String> {
        let mut values = self.buffers().into_iter();
        let mut buffers = self.layout.specs().iter().filter(|spec| !spec.trainable);
        let overflown = buffers.find(|spec| !values.by_ref().take(spec.range.len()).all(f32::is_finite));
        overflown.map(|spec| spec.name.clone())
    }

    /// Writes `values`, as returned by [`buffers`](Self::buffers), into `params` and the network.
    pub fn set_buffers(&mut self, mut values: &[f32]) {
        for spec in self.layout.specs().iter().filter(|spec| !spec.trainable) {
            let (buffer, rest) = values.split_at(spec.range.len());
            self.params[spec.range.clone()].copy_from_slice(buffer);
            values = rest;
        }
        self.publish();
    }

    /// Returns the positions of this rank's samples in the step's global batch, starting with sample `from`
    /// of the rank. Dropout masks depend on the positions.
    fn place(&self, from: usize) -> BatchPlace {
        let (rank, ranks) = (self.world.rank(), self.world.size());
        // With local updates, a rank without samples makes no update, so updates differ between ranks.
        let steps = self.local.as_ref().map(|local| local.steps_of_run() as u64);
        BatchPlace {
            seed: self.options.seed,
            step: steps.unwrap_or_else(|| self.optimizer.updates()),
            first: rank + from * ranks,
            stride: ranks,
        }
    }

    /// Returns `sync`, and the quantization ranges that `sync` averages over ranks together with the
    /// gradients. Without a quantizer, there are no ranges.
    fn averaged(&mut self) -> (&mut GradientSync, &mut [f32]) {
        let Self { quantizer, network, sync, .. } = self;
        (sync, quantizer.as_mut().map_or(&mut [], |quantizer| quantizer.averaged_mut(network)))
    }

    /// Returns class scores `[batch, classes]`, computed as in training: with dropout and fake quantization.
    fn forward(&mut self, samples: Tensor<4>, place: &BatchPlace) -> Tensor<2> {
        let network = &self.network;
        match &mut self.quantizer {
            Some(quantizer) => spans::span(&spans::FAKE_QUANTIZED, || {
                quantizer.fake_quantized(network, samples, Some(place))
            }),
            None => network.forward_in(self.options.precision.activations(), samples, place),
        }
    }

    fn backward(
        &mut self,
        samples: &LabelledBytes<'_>,
        range: Range<usize>,
        total: usize,
        which: MicroBatch,
    ) -> Result<Tally, CommError> {
        let began = Instant::now();
        let (place, own) = (self.place(range.start), range.len());
        let (images, labels) = spans::span(&spans::BATCH, || samples.batch(range, &self.device));
        let loaded = Instant::now();
        let scores = spans::forward(|| self.forward(images, &place));
        let smoothing = self.options.recipe.label_smoothing.get();
        let Score { loss, value, correct } = spans::span(&spans::LOSS, || {
            weighted_cross_entropy(scores, labels, smoothing, self.class_weights.as_deref())
        });
        let mut loss = spans::end_forward(loss);
        if let Some(LossScale { scale, .. }) = self.loss_scale {
            loss = loss.mul_scalar(scale);
        }
        let forwarded = Instant::now();
        let copied = self.times().copy;
        match &mut self.local {
            Some(local) => local.backward(&loss, &self.network, own as f32 / total as f32),
            None => self.sync.backward(&loss, &self.network, own, total, which)?,
        }
        self.times.data += loaded - began;
        self.times.forward += forwarded - loaded;
        self.times.backward += forwarded.elapsed().saturating_sub(self.times().copy - copied);
        Ok(Tally::from_batch(value, correct, labels.len()))
    }

    fn update(&mut self) -> Result<(), CommError> {
        // Shares are also copied and gathered in an update.
        let exchanging = |sync: &GradientSync| sync.times().exposed + sync.times().copy;
        let (began, before) = (Instant::now(), exchanging(&self.sync));
        if self.unscale()? {
            self.optimizer.update(&mut self.params, &mut self.sync, self.rate)?;
            self.sync.gather_params(&mut self.params)?;
            self.network.change(|network| self.layout.write_trainable(network, &self.params));
        }
        self.times.optimizer += began.elapsed().saturating_sub(exchanging(&self.sync) - before);
        Ok(())
    }

    /// With loss scaling, divides the averaged gradients by the scale and updates the scale. Returns whether
    /// the gradients are finite, and thus whether the step changes weights; equal on all ranks.
    fn unscale(&mut self) -> Result<bool, CommError> {
        let Some(scale) = &mut self.loss_scale else { return Ok(true) };
        let mut finite = scale.unscale(self.sync.pieces()?);
        if self.options.communication.shard_optimizer {
            // A rank has seen only its share.
            let mut overflown = [f64::from(u8::from(!finite))];
            self.world.sum_f64(&mut overflown)?;
            finite = overflown == [0.0];
        }
        scale.count(finite);
        Ok(finite)
    }
}
