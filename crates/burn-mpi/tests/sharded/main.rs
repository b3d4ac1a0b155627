//! Checks optimizers whose state is divided among the ranks, on ranks that are threads: the weights are those
//! of an optimizer with the whole state, and those of plain Burn on the samples of all ranks.

mod errors;
mod memory;
mod state;
mod updates;

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    Adam, AdamConfig, AdamWConfig, GradientsParams, LearningRate, ModuleOptimizer, Optimizer,
    OptimizerRecord, SgdConfig,
};
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, Device, Tensor};
use burn_mpi::threads::{Options, run};
use burn_mpi::{
    Backend, CommError, GradientSync, MicroBatch, MissingGradient, Operation, Overlap, ParamLayout, PowerSgd,
    Reduction, ShardedOptimizer, Signals, SyncEvent, SyncOptions, SyncReport, Transport, Wire, WireType,
    World, connect,
};

/// Returns options with this seed. `TURNS=off` makes ranks run at the same time, for a thread sanitizer.
fn with_seed(seed: u64) -> Options {
    let turns = std::env::var("TURNS").map_or(true, |text| text != "off");
    Options::default().with_seed(seed).with_turns(turns)
}

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    frozen: Linear,
    unused: Linear,
    /// Used only in odd steps.
    sometimes: Linear,
    out: Linear,
}

/// Numbers the values of a module, so that every rank and every test begins with the same weights.
struct Numbered(usize);

impl ModuleMapper for Numbered {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let start = self.0;
        self.0 += param.dims().iter().product::<usize>();
        param.map(|old| {
            let values: Vec<f32> =
                (start..self.0).map(|at| ((at * 37 % 101) as f32 - 50.0) / 130.0).collect();
            let is_trained = old.is_require_grad();
            Tensor::<1>::from_floats(values.as_slice(), &old.device())
                .reshape(old.dims())
                .set_require_grad(is_trained)
        })
    }
}

/// `width` decides how many values there are: with a width of 1, fewer than ranks in some buckets.
fn net(width: usize) -> Net {
    let device = Device::flex().autodiff();
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let net = Net {
        first: linear(3, width),
        frozen: linear(width, width).no_grad(),
        unused: linear(2, 2),
        sometimes: linear(width, width),
        out: linear(width, 1),
    };
    net.map(&mut Numbered(0))
}

impl Net {
    fn loss(&self, samples: &[usize], step: usize) -> Tensor<1> {
        let device = Device::flex().autodiff();
        let values: Vec<f32> =
            samples.iter().flat_map(|at| [1, 2, 3].map(|k| ((at * k + step) as f32 * 0.7).sin())).collect();
        let x = Tensor::<1>::from_floats(values.as_slice(), &device).reshape([samples.len(), 3]);
        let mut x = self.frozen.forward(self.first.forward(x).tanh());
        if step % 2 == 1 {
            x = self.sometimes.forward(x);
        }
        (self.out.forward(x) - 1.5).powi_scalar(2).mean()
    }
}

const STEPS: usize = 5;
const RATE: f64 = 0.05;

/// The samples of a step. Their number is not divisible by the number of ranks.
fn samples(step: usize) -> Vec<usize> {
    (0..7 + step % 2).map(|at| at + 10 * step).collect()
}

/// The samples of a rank: none on rank 1 in step 3, and all in several micro-batches on rank 0.
fn own_samples(world: &World, step: usize) -> Vec<usize> {
    let (rank, size) = (world.rank(), world.size());
    let takes = |at: usize| match at % size {
        1 if step == 3 => 0,
        owner => owner,
    };
    samples(step)
        .into_iter()
        .enumerate()
        .filter(|(at, _)| takes(*at) == rank)
        .map(|(_, sample)| sample)
        .collect()
}

/// Runs the backwards of a step. In step 4, rank 0 declares each of its micro-batches to be the last one, so
/// the gradients of the later ones come after their buckets have started.
fn backward(world: &World, sync: &mut GradientSync, net: &Net, step: usize) -> Result<(), CommError> {
    let own = own_samples(world, step);
    let total = samples(step).len();
    let chunks: Vec<&[usize]> = own.chunks(if world.rank() == 0 { 1 } else { 10 }).collect();
    for (at, chunk) in chunks.iter().enumerate() {
        let is_last = at + 1 == chunks.len() || step == 4;
        let which = if is_last { MicroBatch::Last } else { MicroBatch::More };
        sync.backward(&net.loss(chunk, step), net, chunk.len(), total, which)?;
    }
    Ok(())
}

fn options(shard: bool) -> SyncOptions {
    // Buckets of a few values, so that there are several, and chunks that cut parameters.
    SyncOptions::default()
        .with_reduction(Reduction::Ordered)
        .with_bucket_bytes(120)
        .with_first_bucket_bytes(24)
        .with_shard(shard)
}

fn sync_of<M: Module>(world: &World, net: &M, options: SyncOptions) -> Result<GradientSync, CommError> {
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    Ok(GradientSync::of_module(world, collective, net, options))
}

/// What a test trains with.
#[derive(Clone, Copy)]
struct Setup {
    width: usize,
    options: SyncOptions,
    clip: Option<f64>,
}

/// Trains with a [`ShardedOptimizer`], and returns the weights, the norms and the report.
fn train<O: Optimizer>(
    world: &World,
    optimizer: O,
    setup: Setup,
) -> Result<(Vec<f32>, Vec<f64>, SyncReport), CommError> {
    let mut net = net(setup.width);
    let mut sync = sync_of(world, &net, setup.options)?;
    let mut optimizer = ShardedOptimizer::new(optimizer)?;
    let mut norms = Vec::new();
    for step in 0..STEPS {
        backward(world, &mut sync, &net, step)?;
        sync.reduce(Signals::default())?;
        norms.extend(setup.clip.map(|max| sync.clip_norm(max)).transpose()?);
        net = optimizer.step(RATE, net, &mut sync)?;
    }
    Ok((ParamLayout::of_module(&net).read(&net), norms, sync.report()))
}

/// Trains with Burn's optimizer, and gradients that every rank has whole.
fn train_whole(world: &World, mut optimizer: ModuleOptimizer, setup: Setup) -> Result<Vec<f32>, CommError> {
    let mut net = net(setup.width);
    let mut sync = sync_of(world, &net, setup.options.with_shard(false))?;
    for step in 0..STEPS {
        backward(world, &mut sync, &net, step)?;
        let gradients = match setup.clip {
            Some(max) => {
                sync.reduce(Signals::default())?;
                sync.clip_norm(max)?;
                sync.gradients(&net)?
            }
            None => sync.finish(&net)?,
        };
        net = optimizer.step(RATE, net, gradients);
    }
    Ok(ParamLayout::of_module(&net).read(&net))
}

/// Trains on all samples in one process, with Burn alone.
fn train_plain(mut optimizer: ModuleOptimizer, width: usize) -> Vec<f32> {
    let mut net = net(width);
    for step in 0..STEPS {
        let gradients = GradientsParams::from_grads(net.loss(&samples(step), step).backward(), &net);
        net = optimizer.step(RATE, net, gradients);
    }
    ParamLayout::of_module(&net).read(&net)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn distance(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn momentum() -> SgdConfig {
    SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .with_weight_decay(Some(WeightDecayConfig::new(0.01)))
}
