//! Regression with float targets, on shards of different sizes, with a validation set:
//!
//! ```text
//! mpirun -n 3 --bind-to core regression
//! ```
//!
//! On 3 ranks, 1003 samples are divided into shards of 335, 334 and 334. Nothing is padded or dropped:
//! gradients and metrics are weighted by samples.

use std::error::Error;
use std::process::ExitCode;

use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Tensor, TensorData, activation::tanh};
use burn_mpi::{
    Backend, GradientSync, Mean, MicroBatch, ShardedDataset, SyncOptions, Transport, World, average_metrics,
    broadcast_module, check_equal_weights, connect, run,
};

/// Inputs and target of `y = sin(3 a) b`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub x: [f32; 2],
    pub y: f32,
}

/// The samples `first..first + count`, computed when they are read.
#[derive(Clone)]
pub struct Samples {
    pub first: usize,
    pub count: usize,
}

impl Dataset<Sample> for Samples {
    fn get(&self, index: usize) -> Result<Sample, DatasetError> {
        assert!(index < self.count, "sample {index} of {}", self.count);
        let value = |factor: usize| ((self.first + index) * factor % 1009) as f32 / 504.5 - 1.0;
        let [a, b] = [value(89), value(631)];
        Ok(Sample { x: [a, b], y: (3.0 * a).sin() * b })
    }

    fn len(&self) -> usize {
        self.count
    }
}

#[derive(Module, Debug)]
pub struct Net {
    hidden: Linear,
    out: Linear,
}

impl Net {
    pub fn new(width: usize, device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(2, width).init(device),
            out: LinearConfig::new(width, 1).init(device),
        }
    }

    /// Computes predictions minus targets.
    fn errors(&self, samples: &[Sample], device: &Device) -> Tensor<2> {
        let x: Vec<f32> = samples.iter().flat_map(|sample| sample.x).collect();
        let y: Vec<f32> = samples.iter().map(|sample| sample.y).collect();
        let x = Tensor::<2>::from_data(TensorData::new(x, [samples.len(), 2]), device);
        let y = Tensor::<2>::from_data(TensorData::new(y, [samples.len(), 1]), device);
        self.out.forward(tanh(self.hidden.forward(x))) - y
    }

    /// Computes the mean squared error of these samples.
    pub fn loss(&self, samples: &[Sample], device: &Device) -> Tensor<1> {
        self.errors(samples, device).powi_scalar(2).mean()
    }
}

/// Trains, each rank on its shard. Rank 0 prints metrics over all ranks.
///
/// # Errors
/// If a sample cannot be read, or an exchange fails.
pub fn train(
    world: &World,
    samples: impl Dataset<Sample>,
    valid: impl Dataset<Sample>,
    width: usize,
) -> Result<Net, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let mut data = ShardedDataset::new(world, samples, 32)?;
    let valid = ShardedDataset::new(world, valid, 64)?;
    let (rank, plan) = (world.rank(), data.plan());
    println!("rank {rank}: {} of {} samples in {} steps", plan.shard_len(rank), plan.samples, plan.steps());

    // The same initial weights in every job.
    device.seed(1);
    let mut model = broadcast_module(world, Net::new(width, &device))?;
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &model, SyncOptions::default());
    let mut optimizer = AdamConfig::new().init();
    for epoch in 1..=30 {
        data.shuffle(world, 7, epoch)?;
        for batch in data.batches() {
            let batch = batch?;
            if !batch.is_empty() {
                let loss = model.loss(&batch.items, &device);
                sync.backward(&loss, &model, batch.len(), batch.total, MicroBatch::Last)?;
            }
            let gradients = sync.finish(&model)?;
            model = optimizer.step(1e-2, model, gradients);
        }
        if epoch == 1 || epoch % 10 == 0 {
            validate(world, &model, &valid, epoch)?;
        }
    }
    check_equal_weights(world, &model)?;
    Ok(model)
}

/// Computes the errors of this rank's shard of the validation set. Rank 0 prints their means over the whole
/// set.
fn validate(
    world: &World,
    model: &Net,
    valid: &ShardedDataset<impl Dataset<Sample>>,
    epoch: u64,
) -> Result<(), Box<dyn Error>> {
    let model = model.valid();
    let (mut squared, mut absolute) = (Mean::default(), Mean::default());
    for batch in valid.batches() {
        let batch = batch?;
        if !batch.is_empty() {
            let errors = model.errors(&batch.items, &Device::flex());
            squared.add(errors.clone().powi_scalar(2).mean().into_scalar::<f32>(), batch.len());
            absolute.add(errors.abs().mean().into_scalar::<f32>(), batch.len());
        }
    }
    let means = average_metrics(world, &[("squared error", squared), ("absolute error", absolute)])?;
    if world.is_root() {
        println!("epoch {epoch}: mean squared error {:.5}, mean absolute error {:.5}", means[0], means[1]);
    }
    Ok(())
}

fn main() -> ExitCode {
    run(|world| {
        world.agree(
            std::env::args()
                .nth(1)
                .map_or(Ok(()), |word| Err(format!("{word}: this program takes no arguments"))),
        )?;
        train(world, Samples { first: 0, count: 1003 }, Samples { first: 1003, count: 101 }, 32)?;
        Ok(())
    })
}
