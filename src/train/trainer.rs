//! The trainer: one step after the other, from a batch to new weights.

use std::time::Instant;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Device, Gradients, Int, Tensor};

use super::gradient_sync::{BucketSizes, GradientSync, Signals};
use super::optimizer::{Adam, AdamSettings};
use super::{TrainError, count_correct};
use crate::comm::{Collective, Reduction, World};
use crate::config::RunConfig;
use crate::data::shard::Order;
use crate::data::{Batch, Normalizer, SampleSource, Shard, ShardPlan, Split};
use crate::model::{Network, ParamLayout, sha256};
use crate::record::{Checkpoint, EpochRow, Position, Recorder, Tally};

/// First bucket, then the others; in bytes.
const BUCKETS: BucketSizes = BucketSizes { first: 1 << 20, others: 25 << 20 };

/// One rank's half of a training: network, optimizer, shards and position.
pub struct Trainer<'w> {
    world: &'w World,
    config: RunConfig,
    source: Box<dyn SampleSource>,
    normalizer: Normalizer,
    device: Device,
    plan: ShardPlan,
    shard: Shard,
    network: Network,
    layout: ParamLayout,
    /// All parameters in visit order; the network holds copies of them.
    params: Vec<f32>,
    adam: Adam,
    sync: GradientSync,
    position: Position,
    epoch_tally: Tally,
    window_tally: Tally,
    comm_before: f64,
}

impl<'w> Trainer<'w> {
    /// A trainer that starts from `network`, with rank 0's weights on all ranks.
    ///
    /// # Errors
    /// When a shard cannot be read or the transport fails.
    pub fn new(
        world: &'w World,
        config: &RunConfig,
        source: Box<dyn SampleSource>,
        network: Network,
        collective: Box<dyn Collective>,
    ) -> Result<Self, TrainError> {
        let plan = plan_of(config, source.as_ref(), Split::Train, world.size());
        let shard = world.agree(Shard::load(
            source.as_ref(),
            Split::Train,
            &plan,
            world.rank(),
            order_of(config, 0),
        ))?;
        let layout = ParamLayout::of(&network);
        let mut params = layout.read(&network);
        world.broadcast_f32(&mut params)?;
        let network = layout.write(network, &params);
        let settings = AdamSettings::new(config.lr, config.weight_decay);
        Ok(Self {
            adam: Adam::new(settings, params.len()),
            sync: GradientSync::new(collective, Reduction::Native, &layout, BUCKETS),
            normalizer: Normalizer::new(source.description()),
            device: config.device.device().autodiff(),
            position: Position::default(),
            epoch_tally: Tally::default(),
            window_tally: Tally::default(),
            comm_before: 0.0,
            config: config.clone(),
            world,
            source,
            plan,
            shard,
            network,
            layout,
            params,
        })
    }

    /// Puts the trainer where `checkpoint` was written.
    ///
    /// # Errors
    /// When the shard of its epoch cannot be read.
    pub fn restore(&mut self, checkpoint: Checkpoint) -> Result<(), TrainError> {
        let rank = self.world.rank();
        self.params = checkpoint.params;
        self.adam.first = checkpoint.first;
        self.adam.second = checkpoint.second;
        self.adam.step = checkpoint.updates;
        self.position = checkpoint.position;
        let own = |tallies: &[Tally]| tallies.get(rank).copied().unwrap_or_default();
        self.epoch_tally = own(&self.position.epoch_tallies);
        self.window_tally = own(&self.position.window_tallies);
        self.comm_before = self.position.comm_seconds.get(rank).copied().unwrap_or(0.0);
        self.publish();
        if self.position.epoch < self.config.epochs {
            self.load_shard()?;
        }
        Ok(())
    }

    /// Trains to the end of the last epoch.
    ///
    /// # Errors
    /// When a loss is no number, weights differ between ranks, a file cannot be
    /// written or the transport fails.
    pub fn run(&mut self, recorder: &mut Recorder<'_>, watch: &mut dyn Watch) -> Result<(), TrainError> {
        let mut test = None;
        while self.position.epoch < self.config.epochs {
            if self.config.shuffle && self.position.step_in_epoch == 0 && self.position.epoch > 0 {
                self.load_shard()?;
            }
            self.train_epoch(recorder, watch)?;
            let evaluation = match &mut test {
                Some(evaluation) => evaluation,
                None => test.insert(Evaluation::load(self.world, self.source.as_ref(), &self.config)?),
            };
            let tallies = self.test(evaluation)?;
            self.finish_epoch(recorder, watch, &tallies)?;
        }
        Ok(())
    }

    /// The layout of the weights.
    pub fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    /// SHA-256 over all weights.
    pub fn weights_sha256(&self) -> String {
        sha256(&self.params)
    }

    /// Where the run stands.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// How the training set is dealt out.
    pub fn plan(&self) -> &ShardPlan {
        &self.plan
    }

    fn train_epoch(&mut self, recorder: &mut Recorder<'_>, watch: &mut dyn Watch) -> Result<(), TrainError> {
        let mut started = Instant::now();
        while self.position.step_in_epoch < self.plan.steps() {
            self.step()?;
            let step = self.position.step;
            watch.step(&self.position, &self.epoch_tally);
            if step.is_multiple_of(self.config.log_every) {
                watch.line(&self.position, &self.window_tally);
                recorder.train_point(step, std::mem::take(&mut self.window_tally));
            }
            let due = self.config.checkpoint_every.is_some_and(|n| step.is_multiple_of(n));
            if due && self.position.step_in_epoch < self.plan.steps() {
                self.position.epoch_seconds += started.elapsed().as_secs_f64();
                started = Instant::now();
                self.checkpoint(recorder)?;
            }
        }
        self.position.epoch_seconds += started.elapsed().as_secs_f64();
        Ok(())
    }

    /// One step: forward, backward, average, update.
    fn step(&mut self) -> Result<(), TrainError> {
        let step = self.position.step_in_epoch;
        let (bytes, labels) = self.shard.samples(step * self.plan.batch_size, self.plan.batch_size);
        self.sync.begin(labels.len(), self.plan.global_batch_len(step));
        let mut loss = 0.0;
        if !labels.is_empty() {
            let batch = self.normalizer.batch(bytes, labels, &self.device);
            loss = self.backward(&batch)?;
        }
        let signals =
            self.sync.finish(Signals { not_finite: if loss.is_finite() { 0.0 } else { 1.0 }, stop: 0.0 })?;
        if signals.not_finite > 0.0 {
            return Err(self.not_finite(loss)?);
        }
        let mut update = self.adam.begin();
        for (index, spec) in self.layout.specs().iter().enumerate().filter(|(_, s)| s.trainable) {
            update.apply(spec.range.start, &mut self.params[spec.range.clone()], self.sync.gradient(index));
        }
        self.publish();
        self.position.step += 1;
        self.position.step_in_epoch += 1;
        Ok(())
    }

    /// Loss of a batch, its gradients handed to the buckets, its metrics counted.
    fn backward(&mut self, batch: &Batch) -> Result<f64, TrainError> {
        let scores = self.network.forward(batch.images.clone());
        let loss = cross_entropy(scores.clone(), batch.targets.clone());
        let value = f64::from(loss.clone().into_scalar::<f32>());
        let tally = Tally::of_batch(value, count_correct(&floats(scores), &batch.labels), batch.labels.len());
        self.epoch_tally.add(&tally);
        self.window_tally.add(&tally);
        let mut visitor = Arrivals { grads: loss.backward(), sync: &mut self.sync, index: 0, result: Ok(()) };
        self.network.visit(&mut visitor);
        visitor.result?;
        Ok(value)
    }

    /// Gives the network the current weights.
    fn publish(&mut self) {
        let network = self.network.clone();
        self.network = self.layout.write(network, &self.params);
    }

    fn not_finite(&self, mine: f64) -> Result<TrainError, TrainError> {
        let losses: Vec<String> = self.world.gather(&mine.to_string())?;
        let number = |text: &String| text.parse::<f64>().unwrap_or(f64::NAN);
        let rank = losses.iter().position(|l| !number(l).is_finite()).unwrap_or(0);
        Ok(TrainError::NotFinite {
            loss: number(&losses[rank]),
            step: self.position.step + 1,
            epoch: self.position.epoch + 1,
            rank,
            host: self.world.places()[rank].host.clone(),
        })
    }

    fn test(&mut self, evaluation: &Evaluation) -> Result<Vec<Tally>, TrainError> {
        let started = Instant::now();
        let tallies = evaluation.run(self.world, &self.network)?;
        self.position.test_seconds += started.elapsed().as_secs_f64();
        self.position.test_tallies.clone_from(&tallies);
        Ok(tallies)
    }

    /// Compares weights, writes the epoch and moves on to the next.
    fn finish_epoch(
        &mut self,
        recorder: &mut Recorder<'_>,
        watch: &mut dyn Watch,
        test: &[Tally],
    ) -> Result<(), TrainError> {
        self.world.check_equal("the weights' digest", &self.weights_sha256())?;
        let train = Tally::total(&self.world.gather(&self.epoch_tally)?);
        let total = Tally::total(test);
        let row = EpochRow {
            epoch: self.position.epoch + 1,
            train_loss: train.mean_loss(),
            train_accuracy: train.accuracy(),
            test_loss: total.mean_loss(),
            test_accuracy: total.accuracy(),
            seconds: self.position.epoch_seconds,
        };
        recorder.test_points(self.position.step, test)?;
        self.position.train_seconds += self.position.epoch_seconds;
        self.position.history.push(row.clone());
        self.position.epoch += 1;
        self.position.step_in_epoch = 0;
        self.position.epoch_seconds = 0.0;
        // The last epoch's tallies stay for the results.
        self.checkpoint(recorder)?;
        if self.position.epoch < self.config.epochs {
            self.epoch_tally = Tally::default();
        }
        recorder.epoch(&row)?;
        watch.epoch(&row);
        Ok(())
    }

    fn checkpoint(&mut self, recorder: &mut Recorder<'_>) -> Result<(), TrainError> {
        recorder.flush()?;
        let finished = self.position.step_in_epoch == 0 && self.position.epoch < self.config.epochs;
        let epoch_tally = if finished { Tally::default() } else { self.epoch_tally };
        self.position.epoch_tallies = self.world.gather(&epoch_tally)?;
        self.position.window_tallies = self.world.gather(&self.window_tally)?;
        self.position.comm_seconds = self.world.gather(&self.comm_seconds())?;
        recorder.checkpoint(&self.layout, || Checkpoint {
            model: self.config.model.to_string(),
            world_size: self.world.size(),
            params: self.params.clone(),
            first: self.adam.first.clone(),
            second: self.adam.second.clone(),
            updates: self.adam.step,
            position: self.position.clone(),
        })?;
        Ok(())
    }

    fn comm_seconds(&self) -> f64 {
        self.comm_before + self.sync.exposed().as_secs_f64()
    }

    fn load_shard(&mut self) -> Result<(), TrainError> {
        let order = order_of(&self.config, self.position.epoch as u64);
        let (source, rank) = (self.source.as_ref(), self.world.rank());
        self.shard = self.world.agree(Shard::load(source, Split::Train, &self.plan, rank, order))?;
        Ok(())
    }
}

/// Who looks on while a trainer runs: a progress bar, a log.
pub trait Watch {
    /// After every step, with this rank's tally of the epoch.
    fn step(&mut self, position: &Position, epoch: &Tally);
    /// Every `--log-every` steps, with this rank's tally since the last time.
    fn line(&mut self, position: &Position, window: &Tally);
    /// After every epoch, with all ranks' figures.
    fn epoch(&mut self, row: &EpochRow);
}

/// The test set of one rank, and the way to measure a network on all of it.
pub struct Evaluation {
    shard: Shard,
    normalizer: Normalizer,
    batch_size: usize,
    device: Device,
}

impl Evaluation {
    /// Reads this rank's share of the test set.
    ///
    /// # Errors
    /// When it cannot be read on some rank.
    pub fn load(world: &World, source: &dyn SampleSource, config: &RunConfig) -> Result<Self, TrainError> {
        let plan = plan_of(config, source, Split::Test, world.size());
        let shard = Shard::load(source, Split::Test, &plan, world.rank(), Order::File);
        Ok(Self {
            shard: world.agree(shard)?,
            normalizer: Normalizer::new(source.description()),
            batch_size: plan.batch_size,
            device: config.device.device(),
        })
    }

    /// Number of this rank's samples.
    pub fn samples(&self) -> usize {
        self.shard.len()
    }

    /// Measures `network` on every sample of the test set once; each rank's
    /// tally, on every rank.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn run(&self, world: &World, network: &Network) -> Result<Vec<Tally>, TrainError> {
        let network = network.valid();
        let mut tally = Tally::default();
        for from in (0..self.shard.len()).step_by(self.batch_size) {
            let (bytes, labels) = self.shard.samples(from, self.batch_size);
            let batch = self.normalizer.batch(bytes, labels, &self.device);
            let scores = network.forward(batch.images);
            let loss = cross_entropy(scores.clone(), batch.targets);
            let loss = f64::from(loss.into_scalar::<f32>());
            tally.add(&Tally::of_batch(loss, count_correct(&floats(scores), labels), labels.len()));
        }
        Ok(world.gather(&tally)?)
    }
}

/// How the first samples of a split are dealt out.
fn plan_of(config: &RunConfig, source: &dyn SampleSource, split: Split, world_size: usize) -> ShardPlan {
    let (limit, batch_size) = match split {
        Split::Train => (config.train_samples, config.train_batch_size),
        Split::Test => (config.test_samples, config.test_batch_size),
    };
    let all = source.len(split);
    ShardPlan { samples: limit.map_or(all, |n| n.min(all)), world_size, batch_size }
}

fn order_of(config: &RunConfig, epoch: u64) -> Order {
    match config.shuffle {
        true => Order::Shuffled { seed: config.seed, epoch },
        false => Order::File,
    }
}

/// Mean cross entropy of `scores` `[batch, classes]` and `targets` `[batch]`.
fn cross_entropy(scores: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    log_softmax(scores, 1).gather(1, targets.unsqueeze_dim(1)).mean().neg()
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.into_data().convert_dtype(DType::F32);
    data.try_into_vec().unwrap_or_default()
}

/// Hands each parameter's gradient to the buckets, last parameter first in
/// their order.
struct Arrivals<'a> {
    grads: Gradients,
    sync: &'a mut GradientSync,
    index: usize,
    result: Result<(), crate::comm::CommError>,
}

impl ModuleVisitor for Arrivals<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let index = self.index;
        self.index += 1;
        if !param.is_require_grad() || self.result.is_err() {
            return;
        }
        if let Some(gradient) = param.val().grad_remove(&mut self.grads) {
            self.result = self.sync.arrive(index, &floats(gradient));
        }
    }
}
