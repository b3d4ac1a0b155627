//! Measures what parts of the library cost, beside plain Burn: `mpirun -n 2 --bind-to core costs`. Prints the
//! median time of rank 0 for each part.

use std::error::Error;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn::module::{Module, Param};
use burn::nn::{BatchNormConfig, Linear, LinearConfig};
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use burn_mpi::nn::SyncBatchNorm;
use burn_mpi::{
    Backend, BatchError, CommError, GradientSync, MicroBatch, RankBatch, ShardedDataset, Signals,
    SyncOptions, Transport, World, connect, run, tie_parameters,
};

/// Repetitions of each measurement.
const TURNS: usize = 30;

/// Samples of the data sets, of which a batch has 8 on each rank.
const SAMPLES: usize = 160;

fn main() -> ExitCode {
    run(measure)
}

/// Prints the median time of `body` in ms. Ranks begin each turn together.
fn time(world: &World, what: &str, mut body: impl FnMut() -> Result<(), CommError>) -> Result<(), CommError> {
    let mut times = Vec::new();
    for _ in 0..TURNS {
        world.barrier()?;
        let began = Instant::now();
        body()?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    if world.is_root() {
        println!("{what:<64} {:>9.3} ms", times[TURNS / 2]);
    }
    Ok(())
}

/// Samples of which each batch takes 2 ms to read, as from a disk or a network.
struct Slow;

impl Dataset<f32> for Slow {
    fn get(&self, index: usize) -> Result<f32, DatasetError> {
        Ok(index as f32)
    }

    fn get_many(&self, indexes: Vec<usize>) -> Result<Vec<f32>, DatasetError> {
        sleep(Duration::from_millis(2));
        indexes.into_iter().map(|index| self.get(index)).collect()
    }

    fn len(&self) -> usize {
        SAMPLES
    }
}

/// A linear layer of 4 MB in f32, and a second field that may have the same weights.
#[derive(Module, Debug)]
struct Net {
    linear: Linear,
    output: Param<Tensor<2>>,
}

fn measure(world: &World) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let random = |dims: [usize; 4]| Tensor::<4>::random(dims, Distribution::Default, &device);
    if world.is_root() {
        let threads = std::thread::available_parallelism()?;
        let cores = world.places()[world.rank()].cores;
        println!("{} ranks, threads of each: {threads}; {} has {cores} cores", world.size(), world.host());
    }

    let layer = LinearConfig::new(1024, 1024).init(&device);
    let train = |batch: Result<RankBatch<f32>, BatchError<DatasetError>>| {
        let batch = batch.expect("the data sets have no errors");
        layer.forward(Tensor::<2>::ones([batch.len(), 1024], &device)).mean().backward();
        Ok(())
    };
    let memory = ShardedDataset::new(world, InMemDataset::new(vec![0.0; SAMPLES]), 8)?;
    let slow = ShardedDataset::new(world, Slow, 8)?;
    let steps = memory.steps();
    time(world, &format!("{steps} steps from memory"), || memory.batches().try_for_each(train))?;
    time(world, "the same, prefetch(2)", || memory.prefetch(2).try_for_each(train))?;
    time(world, &format!("{steps} steps, 2 ms to read each batch"), || slow.batches().try_for_each(train))?;
    time(world, "the same, prefetch(2)", || slow.prefetch(2).try_for_each(train))?;

    let images = random([32, 64, 16, 16]);
    let norm = BatchNormConfig::new(64).init(&device);
    let sync_norm = SyncBatchNorm::new(64, &device);
    time(world, "BatchNorm, 32 images of 64x16x16, forward and backward", || {
        norm.forward(images.clone()).powi_scalar(2).mean().backward();
        Ok(())
    })?;
    time(world, "SyncBatchNorm, the same", || {
        sync_norm.forward(images.clone()).powi_scalar(2).mean().backward();
        Ok(())
    })?;

    let values = random([1024, 1, 16, 16]).inner();
    time(world, "World::all_reduce of 1 MB", || world.all_reduce(values.clone()).map(drop))?;
    time(world, "World::reduce_scatter of 1 MB", || world.reduce_scatter(values.clone()).map(drop))?;
    time(world, "World::all_gather of 1 MB from each rank", || world.all_gather(values.clone()).map(drop))?;
    time(world, "World::broadcast_tensor of 1 MB", || world.broadcast_tensor(values.clone(), 0).map(drop))?;
    let leaf = values.clone().autodiff().require_grad();
    time(world, "World::all_reduce of 1 MB with its backward", || {
        world.all_reduce(leaf.clone())?.sum().backward();
        Ok(())
    })?;

    for (dtype, is_tied) in [
        (DType::F32, false),
        (DType::F32, true),
        (DType::F64, false),
        (DType::F16, false),
        (DType::BF16, false),
    ] {
        let linear = LinearConfig::new(1024, 1024).with_bias(false).init(&device);
        let linear = Linear {
            weight: linear.weight.map(|x| x.inner().cast(dtype).autodiff().require_grad()),
            ..linear
        };
        let other = Tensor::zeros([1, 1], &device);
        let output = if is_tied { linear.weight.clone() } else { Param::from_tensor(other) };
        let mut net = Net { linear, output };
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let mut sync = GradientSync::of_module(world, collective, &net, SyncOptions::default());
        let x = Tensor::<2>::ones([8, 1024], (&device, dtype));
        let tied = if is_tied { ", tied" } else { "" };
        let what = format!("GradientSync, 1M parameters in {dtype:?}{tied}");
        time(world, &what, || {
            let loss = net.linear.forward(x.clone()).mean().cast(FloatDType::F32);
            sync.backward(&loss, &net, 8, 8 * world.size(), MicroBatch::Last)?;
            sync.reduce(Signals::default()).map(drop)
        })?;
        if is_tied {
            time(world, "tie_parameters after a step", || {
                net = tie_parameters(net.clone());
                Ok(())
            })?;
        } else if dtype == DType::F32 {
            time(world, "the same, and clip_norm", || {
                let loss = net.linear.forward(x.clone()).mean();
                sync.backward(&loss, &net, 8, 8 * world.size(), MicroBatch::Last)?;
                sync.reduce(Signals::default())?;
                sync.clip_norm(1.0).map(drop)
            })?;
        }
    }
    Ok(())
}
