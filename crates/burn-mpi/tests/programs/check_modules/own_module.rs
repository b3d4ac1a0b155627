//! Checks averaged gradients of a user-defined module if steps differ between ranks: accumulated
//! micro-batches, parameters that one rank uses more often than the other ranks, and batch norm's statistics.

use std::error::Error;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use burn_mpi::{
    Backend, GradientSync, MicroBatch, NoOverlap, Overlap, ParamLayout, SyncOptions, Transport, World,
    broadcast_module, check_equal_weights, connect,
};

const WIDTH: usize = 16;
const BATCH: usize = 4;

#[derive(Module, Debug)]
struct Net {
    norm: BatchNorm,
    shared: Linear,
    branch: Linear,
    out: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = || LinearConfig::new(WIDTH, WIDTH).init(device);
        Self {
            norm: BatchNormConfig::new(WIDTH).init(device),
            shared: linear(),
            branch: linear(),
            out: linear(),
        }
    }

    /// Uses `shared` the given number of times, and `branch` if requested.
    fn loss(&self, x: Tensor<2>, uses: usize, branch: bool) -> Tensor<1> {
        let mut x = (0..uses).fold(x, |x, _| self.shared.forward(x).tanh());
        if branch {
            x = self.branch.forward(x).tanh();
        }
        self.out.forward(x).powi_scalar(2).mean()
    }
}

/// Makes the samples of one rank's micro-batch.
fn samples(rank: usize, micro: usize, device: &Device) -> Tensor<2> {
    let value = |i: usize| (((rank * 5 + micro * 3 + 1) * (i + 7)) % 19) as f32 / 10.0 - 0.9;
    let values: Vec<f32> = (0..BATCH * WIDTH).map(value).collect();
    Tensor::from_data(TensorData::new(values, [BATCH, WIDTH]), device)
}

pub fn check(world: &World, backend: Backend) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let net = broadcast_module(world, Net::new(&device))?;
    // Buckets of one or two parameters.
    let options = SyncOptions::default().with_bucket_bytes(1024).with_first_bucket_bytes(256);
    let mut sync =
        GradientSync::of_module(world, connect(world, backend, &Transport::default())?, &net, options);
    // Each kind of step runs twice, because the first step determines the bucket order.
    for round in 0..2 {
        for (uses, branches) in [(1, [true, true]), (1, [true, false]), (3, [false, true]), (2, [true; 2])] {
            step(world, &net, &mut sync, uses, branches, &device)
                .map_err(|error| format!("round {round}, {uses} uses, {branches:?}: {error}"))?;
        }
    }
    let report = sync.report();
    let expected = if world.size() == 1 { Overlap::Inactive(NoOverlap::OneRank) } else { Overlap::Active };
    assert!(report.overlap == expected && report.buckets.len() > 2 && report.steps == 8, "{report}");
    two_at_once(world, backend, &net, &device)?;
    tied(world, &device)?;
    buffers(world, backend, net, &device)
}

/// Alternates between two modules. The last rank has no samples for the first module, and an exchange happens
/// in the middle of each step. The last step has no samples at all.
fn two_at_once(world: &World, backend: Backend, net: &Net, device: &Device) -> Result<(), Box<dyn Error>> {
    let options = SyncOptions::default().with_bucket_bytes(1024).with_first_bucket_bytes(256);
    let connect = || connect(world, backend, &Transport::default());
    let mut first = GradientSync::of_module(world, connect()?, net, options);
    let mut second = GradientSync::of_module(world, connect()?, net, options);
    let with_samples = (world.size() - 1).max(1);
    for step in 0..3 {
        let total = BATCH * with_samples;
        let loss = |rank: usize| net.loss(samples(rank, step, device), 1, true);
        // The loss of a rank without samples is ignored.
        let own = if world.rank() < with_samples { BATCH } else { 0 };
        first.backward(&loss(world.rank()), net, own, total, MicroBatch::Last)?;
        second.backward(&loss(world.rank()), net, BATCH, BATCH * world.size(), MicroBatch::Last)?;
        world.sum_f64(&mut [1.0])?;
        let (first, second) = (first.finish(net)?, second.finish(net)?);
        for (found, ranks) in [(first, with_samples), (second, world.size())] {
            compare(net, &found, (0..ranks).map(loss).collect())
                .map_err(|error| format!("step {step}: {error}"))?;
        }
    }
    let nothing = first.finish(net)?;
    assert!(nothing.get::<2>(net.out.weight.id).is_none(), "no rank had samples");
    Ok(())
}

/// Checks that a parameter in two fields is one tensor on all ranks after a broadcast.
fn tied(world: &World, device: &Device) -> Result<(), Box<dyn Error>> {
    let mut net = Net::new(device);
    net.out = net.shared.clone();
    let net = broadcast_module(world, net)?;
    check_equal_weights(world, &net)?;
    let specs = ParamLayout::of_module(&net);
    let tied = specs.specs().iter().filter(|spec| spec.tied_to.is_some()).map(|spec| spec.name.as_str());
    assert!(tied.eq(["out.weight", "out.bias"]), "{specs:?}");
    Ok(())
}

/// Makes one step of two micro-batches. `branches` says which micro-batches use the layer `branch`. Rank 1
/// uses `shared` once more than the other ranks.
fn step(
    world: &World,
    net: &Net,
    sync: &mut GradientSync,
    uses: usize,
    branches: [bool; 2],
    device: &Device,
) -> Result<(), Box<dyn Error>> {
    let uses_of = |rank: usize| if rank == 1 { uses + 1 } else { uses };
    let total = 2 * BATCH * world.size();
    for (micro, branch) in branches.into_iter().enumerate() {
        let loss = net.loss(samples(world.rank(), micro, device), uses_of(world.rank()), branch);
        let which = if micro == 0 { MicroBatch::More } else { MicroBatch::Last };
        sync.backward(&loss, net, BATCH, total, which)?;
    }
    let found = sync.finish(net)?;

    let parts = (0..world.size()).flat_map(|rank| [(rank, 0), (rank, 1)]);
    let loss = |(rank, micro)| net.loss(samples(rank, micro, device), uses_of(rank), branches[micro]);
    compare(net, &found, parts.map(loss).collect())?;
    // `norm` does not contribute to the loss, so it has no gradient. Burn's `backward` has none either.
    assert!(found.get::<1>(net.norm.gamma.id).is_none());
    Ok(())
}

/// Compares averaged gradients with the gradients of the mean of `losses` that plain Burn computes.
fn compare(net: &Net, found: &GradientsParams, losses: Vec<Tensor<1>>) -> Result<(), Box<dyn Error>> {
    let count = losses.len() as f64;
    let sum = losses.into_iter().reduce(|a, b| a + b).ok_or("no rank")?;
    let expected = GradientsParams::from_grads(sum.div_scalar(count).backward(), net);
    for (name, linear) in [("shared", &net.shared), ("branch", &net.branch), ("out", &net.out)] {
        let values = |gradients: &GradientsParams| -> Result<Vec<f32>, Box<dyn Error>> {
            let gradient = gradients.get::<2>(linear.weight.id).ok_or(format!("{name} has no gradient"))?;
            gradient.into_data().try_into_vec().map_err(|_| "not f32".into())
        };
        let (found, expected) = (values(found)?, values(&expected)?);
        let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        if worst > 1e-5 * largest {
            return Err(format!(
                "{name} differs from plain Burn's by {worst:e}; its largest value is {largest:e}"
            )
            .into());
        }
    }
    Ok(())
}

/// Checks that running statistics of different samples differ, and are equal once they are averaged.
fn buffers(world: &World, backend: Backend, net: Net, device: &Device) -> Result<(), Box<dyn Error>> {
    let sync = GradientSync::of_module(
        world,
        connect(world, backend, &Transport::default())?,
        &net,
        SyncOptions::default(),
    );
    for micro in 0..3 {
        net.norm.forward::<2>(samples(world.rank(), micro, device));
    }
    let differ = check_equal_weights(world, &net);
    match (world.size(), &differ) {
        (1, Ok(())) => {}
        (_, Err(error)) if error.to_string().contains("the buffer norm.running_mean") => {}
        _ => return Err(format!("running statistics of different samples: {differ:?}").into()),
    }
    let net = sync.average_buffers(net)?;
    check_equal_weights(world, &net)?;
    Ok(())
}
