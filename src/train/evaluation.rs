//! Evaluates a network on the whole test set. Each rank tests its own shard, a part of the test set. Each
//! sample is in one shard, so it is counted once.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use burn_fused::loss::{Score, argmax, cross_entropy};
use burn_mpi::{SampleOrder as Order, World};
use run_record::Confusion;

use super::{LabelledBytes, RunConfig, Tally, TrainError, batches};
use crate::model::Network;
use crate::quant::Quantized;
use data::{Normalizer, SampleSource, Shard, Split};

/// The result of an evaluation on all ranks.
pub struct Tested {
    /// Each rank's tally: its number of samples, its correct samples and its sum of losses.
    pub tallies: Vec<Tally>,
    /// Confusion matrix over all ranks' samples.
    pub confusion: Confusion,
    /// Seconds of inference and of the normalization of its samples, mean over ranks. Excludes the time for
    /// reading samples, for the loss, and for waiting on other ranks.
    pub seconds: f64,
    /// This rank's class scores, one row per sample; empty unless [`Evaluation::keeps_scores`] is set.
    pub scores: Vec<f32>,
}

/// Tests networks on this rank's shard of the test set.
pub struct Evaluation {
    /// This rank's test samples.
    pub shard: Shard,
    normalizer: Normalizer,
    batch_size: usize,
    device: Device,
    /// Whether [`Tested::scores`] is filled.
    pub keeps_scores: bool,
}

impl Evaluation {
    /// Reads this rank's shard of the test set.
    ///
    /// # Errors
    /// If some rank cannot read its shard, if ranks have different test sets, or if the transport fails.
    pub fn load(world: &World, source: &SampleSource, options: &RunConfig) -> Result<Self, TrainError> {
        let (plan, shard) = batches::shard(world, options, source, Split::Test, Order::Sequential)?;
        Ok(Self {
            shard,
            normalizer: Normalizer::new(source.description()),
            batch_size: plan.batch_size,
            device: options.device.device(),
            keeps_scores: false,
        })
    }

    /// Evaluates `network` on the whole test set. All ranks must call this method. Tallies, confusion matrix
    /// and seconds are the same on every rank.
    ///
    /// # Errors
    /// If samples cannot be read or the transport fails.
    pub fn run(&self, world: &World, network: &Network) -> Result<Tested, TrainError> {
        let network = network.valid();
        self.run_with(world, |samples| {
            let (images, _) = samples.batch(0..samples.count(), &self.device);
            network.forward(images)
        })
    }

    /// Evaluates an int8 network, as [`run`](Self::run) evaluates a float network.
    ///
    /// # Errors
    /// If samples cannot be read or the transport fails.
    pub fn run_int8(&self, world: &World, network: &mut Quantized) -> Result<Tested, TrainError> {
        self.run_with(world, |samples| {
            let mut scores = Vec::new();
            network.infer(&self.normalizer.values(&samples.bytes), &mut scores);
            let batch = samples.count();
            let shape = [batch, scores.len() / batch.max(1)];
            Tensor::from_data(TensorData::new(scores, shape), &self.device)
        })
    }

    /// Evaluates the network that `predict` calls. `predict` returns the class scores `[batch, classes]` of a
    /// batch.
    fn run_with(
        &self,
        world: &World,
        mut predict: impl FnMut(&LabelledBytes<'_>) -> Tensor<2>,
    ) -> Result<Tested, TrainError> {
        let mut time = Duration::ZERO;
        let mut timed = |samples: &LabelledBytes<'_>| {
            let started = Instant::now();
            let scores = predict(samples);
            time += started.elapsed();
            scores
        };
        let (tally, confusion, scores) = world.agree(self.tally(&mut timed))?;
        let ranks: Vec<(Tally, f64, Confusion)> = world.gather(&(tally, time.as_secs_f64(), confusion))?;
        Ok(Tested {
            tallies: ranks.iter().map(|rank| rank.0).collect(),
            seconds: ranks.iter().map(|rank| rank.1).sum::<f64>() / world.size() as f64,
            confusion: ranks.into_iter().flat_map(|rank| rank.2).collect(),
            scores,
        })
    }

    fn tally(
        &self,
        predict: &mut impl FnMut(&LabelledBytes<'_>) -> Tensor<2>,
    ) -> Result<(Tally, Confusion, Vec<f32>), TrainError> {
        let (mut tally, mut named) = (Tally::default(), Vec::with_capacity(self.shard.len()));
        let mut kept = Vec::new();
        for from in (0..self.shard.len()).step_by(self.batch_size) {
            let (bytes, labels) = self.shard.read(from, self.batch_size)?;
            let samples = LabelledBytes { bytes, labels, normalizer: &self.normalizer };
            let scores = predict(&samples);
            let values: Vec<f32> = scores.to_data().iter().collect();
            let rows = values.chunks_exact((values.len() / labels.len().max(1)).max(1));
            named.extend(labels.iter().zip(rows).map(|(&label, row)| (label, argmax(row) as u16, 1)));
            let Score { value, correct, .. } = cross_entropy(scores, labels);
            tally.add(&Tally::from_batch(value, correct, labels.len()));
            if self.keeps_scores {
                kept.extend(values);
            }
        }
        Ok((tally, named.into_iter().collect(), kept))
    }
}
