//! Trains a user-defined Burn module data-parallel. Start it with `mpirun -n 2 --bind-to core
//! target/release/examples/own_model [mpi|gloo]`.

use std::error::Error;
use std::f32::consts::TAU;
use std::process::ExitCode;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor, activation::tanh};
use burn_mpi::{
    GradientSync, SyncOptions, Transport, World, broadcast_module, check_equal_weights, connect, run,
};

#[derive(Module, Debug)]
struct Sine {
    hidden: Linear,
    out: Linear,
}

impl Sine {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.out.forward(tanh(self.hidden.forward(x)))
    }
}

/// An error or a panic on any rank aborts the job with a line that names the rank and the reason.
fn main() -> ExitCode {
    run(train)
}

fn train(world: &World) -> Result<(), Box<dyn Error>> {
    let backend = std::env::args().nth(1).unwrap_or_else(|| "mpi".into()).parse()?;
    let device = Device::flex().autodiff();
    device.seed(1);
    let model =
        Sine { hidden: LinearConfig::new(1, 32).init(&device), out: LinearConfig::new(32, 1).init(&device) };

    // Broadcasts rank 0's weights, and connects a transport for the gradients.
    let mut model = broadcast_module(world, model)?;
    let mut sync = GradientSync::of_module(
        world,
        connect(world, backend, &Transport::default())?,
        &model,
        SyncOptions::default(),
    );
    let mut optimizer = AdamConfig::new().init();

    // Divides the 512 points of one period among n ranks: each rank takes every n-th point.
    let xs: Vec<f32> =
        (0..512).skip(world.rank()).step_by(world.size()).map(|i| i as f32 / 512.0 * TAU).collect();
    let ys: Vec<f32> = xs.iter().map(|x| x.sin()).collect();
    let x = Tensor::<1>::from_floats(xs.as_slice(), &device).unsqueeze_dim(1);
    let y = Tensor::<1>::from_floats(ys.as_slice(), &device).unsqueeze_dim(1);

    for step in 1..=500 {
        let loss = (model.forward(x.clone()) - y.clone()).powi_scalar(2).mean();
        let gradients: GradientsParams = sync.average(&loss, &model, xs.len(), 512)?;
        model = optimizer.step(1e-2, model, gradients);
        if step % 100 == 0 && world.is_root() {
            println!("step {step}: loss {:.5}", loss.into_scalar::<f32>());
        }
    }
    check_equal_weights(world, &model)?;
    if world.is_root() {
        println!("gradients: {}", sync.report());
    }
    println!("rank {} of {} is done", world.rank(), world.size());
    Ok(())
}
