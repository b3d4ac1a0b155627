//! Checks that a missing gradient is an error that names the parameter. `GradientSync` must not return a
//! stale value or zeros instead.

use std::error::Error;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use burn_mpi::{
    Backend, CommError, GradientSync, MicroBatch, MissingGradient, Signals, SyncOptions, Transport, World,
    connect,
};

#[derive(Module, Debug)]
struct Net {
    frozen: Linear,
    used: Linear,
    unused: Linear,
}

/// Returns why `parameter` has no gradient. Fails if `gradient` is not an error that names `parameter`.
fn reason(gradient: Result<&mut [f32], CommError>, parameter: &str) -> Result<MissingGradient, String> {
    match gradient {
        Err(CommError::NoGradient { parameter: found, reason }) if found == parameter => Ok(reason),
        other => Err(format!("{parameter}: {other:?}")),
    }
}

pub fn check(world: &World, backend: Backend) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let linear = || LinearConfig::new(2, 2).with_bias(false).init(&device);
    let net = Net { frozen: linear().no_grad(), used: linear(), unused: linear() };
    // One bucket per parameter.
    let options = SyncOptions::default().with_bucket_bytes(16).with_first_bucket_bytes(16);
    let collective = connect(world, backend, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &net, options);
    let x = Tensor::<2>::ones([4, 2], &device);
    let loss = || net.used.forward(net.frozen.forward(x.clone())).powi_scalar(2).mean();
    assert_eq!(reason(sync.gradient_mut(1), "used.weight")?, MissingGradient::NoStep, "before any step");
    for _ in 0..3 {
        sync.backward(&loss(), &net, 4, 4 * world.size(), MicroBatch::Last)?;
        assert_eq!(reason(sync.gradient_mut(1), "used.weight")?, MissingGradient::NoStep, "in a step");
        sync.reduce(Signals::default())?;
        assert!(sync.gradient(1)?.iter().any(|value| *value != 0.0));
        assert_eq!(sync.gradient_mut(1)?.len(), 4);
        assert_eq!(reason(sync.gradient_mut(0), "frozen.weight")?, MissingGradient::Frozen);
        assert_eq!(reason(sync.gradient_mut(2), "unused.weight")?, MissingGradient::Unused);
        assert_eq!(reason(sync.gradient_mut(3), "number 3")?, MissingGradient::NoParameter);
    }
    // Burn's optimizers skip parameters without a gradient.
    let gradients = sync.average(&loss(), &net, 4, 4 * world.size())?;
    assert!(gradients.get::<2>(net.used.weight.id).is_some());
    assert!(gradients.get::<2>(net.unused.weight.id).is_none());
    assert!(gradients.get::<2>(net.frozen.weight.id).is_none());

    // A parameter is unfrozen on all ranks after the GradientSync was made.
    let thawed = net.clone().set_require_grad(true);
    let loss = thawed.used.forward(thawed.frozen.forward(x.clone())).mean();
    let error = sync.backward(&loss, &thawed, 4, 4 * world.size(), MicroBatch::Last);
    assert_eq!(reason(error.map(|()| &mut [][..]), "frozen.weight")?, MissingGradient::Frozen);
    Ok(())
}
