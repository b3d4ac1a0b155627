//! Trains a small module over MPI with a program that depends only on burn-mpi and Burn: `mpirun -n N
//! outside`. Compares the averaged gradients of each step with the gradients of plain Burn on the samples of
//! all ranks. Ranks have different numbers of samples. With three ranks, the last rank has no sample in the
//! last step of an epoch.

mod difference;

use std::error::Error;
use std::process::ExitCode;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData, activation::tanh};
use burn_mpi::{
    Backend, GradientSync, SyncOptions, Transport, World, broadcast_module, check_equal_weights, connect, run,
};
use difference::difference;

const SAMPLES: usize = 53;
/// Samples of a step on all ranks together; the last step has two.
const STEP: usize = 17;
const EPOCHS: usize = 60;
/// Largest relative difference of a step's gradients.
const LIMIT: f32 = 1e-6;

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    out: Linear,
}

impl Net {
    /// The mean squared error on these samples of `y = x1 * x2`.
    fn loss(&self, samples: &[usize], device: &Device) -> Tensor<1> {
        let value = |sample: usize, at: usize| ((sample * 29 + at * 13) % 41) as f32 / 20.0 - 1.0;
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for &sample in samples {
            x.extend([value(sample, 0), value(sample, 1)]);
            y.push(value(sample, 0) * value(sample, 1));
        }
        let x = Tensor::<2>::from_data(TensorData::new(x, [samples.len(), 2]), device);
        let y = Tensor::<2>::from_data(TensorData::new(y, [samples.len(), 1]), device);
        (self.out.forward(tanh(self.hidden.forward(x))) - y).powi_scalar(2).mean()
    }
}

fn main() -> ExitCode {
    run(train)
}

fn train(world: &World) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1 + world.rank() as u64);
    let net =
        Net { hidden: LinearConfig::new(2, 24).init(&device), out: LinearConfig::new(24, 1).init(&device) };
    let mut net = broadcast_module(world, net)?;
    // One bucket for each parameter, so that several buckets are reduced during backward.
    let options = SyncOptions::default().with_bucket_bytes(128).with_first_bucket_bytes(64);
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &net, options);
    let mut optimizer = SgdConfig::new().init();

    let all: Vec<usize> = (0..SAMPLES).collect();
    let first = net.loss(&all, &device).into_scalar::<f32>();
    let mut worst = 0.0f32;
    for _ in 0..EPOCHS {
        for step in all.chunks(STEP) {
            let own: Vec<usize> = step.iter().copied().skip(world.rank()).step_by(world.size()).collect();
            // A rank without samples has no loss, so it passes some other tensor.
            let loss = if own.is_empty() { Tensor::zeros([1], &device) } else { net.loss(&own, &device) };
            let gradients = sync.average(&loss, &net, own.len(), step.len())?;
            let plain = GradientsParams::from_grads(net.loss(step, &device).backward(), &net);
            worst = worst.max(difference(&net, &gradients, &plain)?);
            net = optimizer.step(0.2, net, gradients);
        }
    }
    check_equal_weights(world, &net)?;
    let last = net.loss(&all, &device).into_scalar::<f32>();
    // Written so that NaN fails too.
    if !(worst <= LIMIT) {
        return Err(format!("averaged gradients differ from plain Burn's by {worst:e}").into());
    }
    if last > 0.2 * first {
        return Err(format!("the loss only fell from {first} to {last}").into());
    }
    println!(
        "rank {} of {}: gradients within {worst:.1e} of plain Burn's, loss {first:.3} to {last:.3}",
        world.rank(),
        world.size()
    );
    Ok(())
}
