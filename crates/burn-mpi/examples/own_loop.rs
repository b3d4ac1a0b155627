//! The smallest complete training loop over MPI: a Burn data set, averaged gradients, metrics over all ranks,
//! and a file at the end.
//!
//! ```text
//! mpirun -n 2 --bind-to core own_loop [FILE]
//! ```

use std::error::Error;
use std::process::ExitCode;

use burn::data::dataset::{Dataset, InMemDataset};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_mpi::{
    Backend, GradientSync, Mean, MicroBatch, ShardedDataset, SyncOptions, Transport, World, average_metrics,
    broadcast_module, check_equal_weights, connect, run, save_record,
};

/// A point, and whether it is inside the unit circle.
#[derive(Clone, Debug)]
pub struct Point {
    at: [f32; 2],
    inside: bool,
}

/// Makes points of the square [-2, 2] x [-2, 2].
pub fn points(count: usize) -> InMemDataset<Point> {
    let coordinate = |n: usize| (n % 997) as f32 / 997.0 * 4.0 - 2.0;
    let point = |n: usize| {
        let at = [coordinate(n * 101), coordinate(n * 367)];
        Point { at, inside: at[0] * at[0] + at[1] * at[1] < 1.0 }
    };
    InMemDataset::new((0..count).map(point).collect())
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
            out: LinearConfig::new(width, 2).init(device),
        }
    }

    /// Computes the mean cross entropy of these points.
    pub fn loss(&self, points: &[Point], device: &Device) -> Tensor<1> {
        let at: Vec<f32> = points.iter().flat_map(|point| point.at).collect();
        let inside: Vec<i32> = points.iter().map(|point| i32::from(point.inside)).collect();
        let at = Tensor::<2>::from_data(TensorData::new(at, [points.len(), 2]), device);
        let inside = Tensor::<1, Int>::from_data(TensorData::new(inside, [points.len()]), device);
        let logits = self.out.forward(Relu::new().forward(self.hidden.forward(at)));
        CrossEntropyLossConfig::new().init(device).forward(logits, inside)
    }
}

/// Trains, each rank on its shard.
///
/// # Errors
/// If a sample cannot be read, or an exchange fails.
pub fn train(world: &World, points: impl Dataset<Point>, width: usize) -> Result<Net, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    // The same initial weights in every job.
    device.seed(1);
    let mut model = broadcast_module(world, Net::new(width, &device))?;
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &model, SyncOptions::default());
    let mut optimizer = AdamConfig::new().init();
    let mut data = ShardedDataset::new(world, points, 16)?;

    for epoch in 0..10 {
        data.shuffle(world, 1, epoch)?;
        let mut mean = Mean::default();
        for batch in data.batches() {
            let batch = batch?;
            // In the last step a rank may have fewer samples than others, or none.
            if !batch.is_empty() {
                let loss = model.loss(&batch.items, &device);
                sync.backward(&loss, &model, batch.len(), batch.total, MicroBatch::Last)?;
                mean.add(loss.into_scalar::<f32>(), batch.len());
            }
            let gradients = sync.finish(&model)?;
            model = optimizer.step(1e-2, model, gradients);
        }
        let means = average_metrics(world, &[("loss", mean)])?;
        if world.is_root() {
            println!("epoch {}: loss {:.4}", epoch + 1, means[0]);
        }
    }
    check_equal_weights(world, &model)?;
    Ok(model)
}

fn main() -> ExitCode {
    run(|world| {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let file = world.agree(match &words[..] {
            [] => Ok(None),
            [file] if !file.starts_with('-') => Ok(Some(file)),
            _ => Err("usage: own_loop [FILE]"),
        })?;
        let model = train(world, points(1001), 32)?;
        if let Some(file) = file {
            save_record(world, file, model.into_record())?;
        }
        Ok(())
    })
}
