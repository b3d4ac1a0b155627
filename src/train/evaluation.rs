//! Evaluation of a network on the whole test set, each sample once.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};

use super::{LabelledBytes, RunConfig, Tally, TrainError, cross_entropy};
use crate::data::shard::Order;
use crate::data::{Normalizer, SampleSource, Shard, Split};
use crate::model::Network;
use crate::quant::{QuantError, Quantized};
use burn_mpi::World;

/// The result of an evaluation.
pub struct Tested {
    /// Each rank's tally.
    pub tallies: Vec<Tally>,
    /// Seconds of inference, mean over ranks: without the loss, and without waiting for other ranks.
    pub seconds: f64,
}

/// The test set of one rank, and the evaluation of a network on all of it.
pub struct Evaluation {
    /// This rank's test samples.
    pub shard: Shard,
    normalizer: Normalizer,
    batch_size: usize,
    device: Device,
}

impl Evaluation {
    /// Reads this rank's share of the test set.
    ///
    /// # Errors
    /// If it cannot be read on some rank, or ranks have different test sets.
    pub fn load(world: &World, source: &dyn SampleSource, options: &RunConfig) -> Result<Self, TrainError> {
        let plan = options.plan(source, Split::Test, world.size());
        let shard = Shard::load(source, Split::Test, &plan, world.rank(), Order::Sequential);
        let shard = world.agree(shard)?;
        world.check_equal("the test set's digest", shard.digest())?;
        Ok(Self {
            shard,
            normalizer: Normalizer::new(source.description()),
            batch_size: plan.batch_size,
            device: options.device.device(),
        })
    }

    /// Evaluates `network` on every sample of the test set once; returns the same on every rank.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn run(&self, world: &World, network: &Network) -> Result<Tested, TrainError> {
        let network = network.valid();
        self.run_with(world, |samples| {
            let (images, _) = samples.batch(0..samples.count(), &self.device);
            Ok(network.forward(images))
        })
    }

    /// Evaluates a quantized network in the same way.
    ///
    /// # Errors
    /// If the transport fails, or samples are NaN or infinite.
    pub fn run_int8(&self, world: &World, network: &mut Quantized) -> Result<Tested, TrainError> {
        self.run_with(world, |samples| self.int8_scores(network, samples))
    }

    /// Class scores `[batch, classes]` of a batch by a quantized network.
    ///
    /// # Errors
    /// If samples are NaN or infinite.
    pub fn int8_scores(
        &self,
        network: &mut Quantized,
        samples: &LabelledBytes<'_>,
    ) -> Result<Tensor<2>, QuantError> {
        let mut scores = Vec::new();
        network.infer(&self.normalizer.values(samples.bytes), &mut scores)?;
        let batch = samples.count();
        let shape = [batch, scores.len() / batch.max(1)];
        Ok(Tensor::from_data(TensorData::new(scores, shape), &self.device))
    }

    /// Evaluates `predict`, which returns class scores `[batch, classes]` of a
    /// batch.
    ///
    /// # Errors
    /// If the transport or `predict` fails, on any rank.
    pub fn run_with(
        &self,
        world: &World,
        mut predict: impl FnMut(&LabelledBytes<'_>) -> Result<Tensor<2>, QuantError>,
    ) -> Result<Tested, TrainError> {
        let mut time = Duration::ZERO;
        let mut timed = |samples: &LabelledBytes<'_>| {
            let started = Instant::now();
            let scores = predict(samples);
            time += started.elapsed();
            scores
        };
        let tally = world.agree(self.tally(&mut timed))?;
        let ranks: Vec<(Tally, f64)> = world.gather(&(tally, time.as_secs_f64()))?;
        let (tallies, seconds): (Vec<Tally>, Vec<f64>) = ranks.into_iter().unzip();
        Ok(Tested { tallies, seconds: seconds.iter().sum::<f64>() / world.size() as f64 })
    }

    fn tally(
        &self,
        predict: &mut impl FnMut(&LabelledBytes<'_>) -> Result<Tensor<2>, QuantError>,
    ) -> Result<Tally, QuantError> {
        let mut tally = Tally::default();
        for from in (0..self.shard.len()).step_by(self.batch_size) {
            let (bytes, labels) = self.shard.samples(from, self.batch_size);
            let samples = LabelledBytes { bytes, labels, normalizer: &self.normalizer };
            tally.add(&cross_entropy(predict(&samples)?, labels, 0.0).1);
        }
        Ok(tally)
    }
}
