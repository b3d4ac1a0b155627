//! Checks an optimizer state in shares over a transport: the weights have the bits of an update with the
//! whole state, and the state is saved and loaded.

use std::error::Error;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, OptimizerRecord};
use burn::tensor::{Bytes, Device, Tensor};
use burn_mpi::{
    Backend, GradientSync, MicroBatch, ParamLayout, Reduction, ShardedOptimizer, Signals, SyncOptions,
    Transport, WireType, World, broadcast_module, connect,
};

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    out: Linear,
}

/// Trains four steps. Rank 0 has no samples in the second step. The state is loaded from its record before
/// the last step.
fn weights(
    world: &World,
    backend: Backend,
    net: &Net,
    options: SyncOptions,
) -> Result<(Vec<f32>, f64), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let mut net = net.clone();
    let mut sync =
        GradientSync::of_module(world, connect(world, backend, &Transport::default())?, &net, options);
    let mut optimizer = ShardedOptimizer::new(AdamConfig::new().build())?;
    let mut norm = 0.0;
    for step in 0..4 {
        let absent = usize::from(step == 1 && world.size() > 1);
        if world.rank() >= absent {
            let x = Tensor::<2>::full([3, 7], (world.rank() + step) as f32 / 5.0 - 0.4, &device);
            let loss = (net.out.forward(net.hidden.forward(x).tanh()) - 1.0).powi_scalar(2).mean();
            sync.backward(&loss, &net, 3, 3 * (world.size() - absent), MicroBatch::Last)?;
        }
        sync.reduce(Signals::default())?;
        norm = sync.clip_norm(0.1)?;
        if step == 3 {
            let record = optimizer.to_record(&sync, &net)?.into_bytes()?.to_vec();
            let record = Bytes::from_bytes_vec(world.broadcast_bytes(record)?);
            optimizer = optimizer.load_record(OptimizerRecord::from_bytes(record)?)?;
        }
        net = optimizer.step(0.01, net, &mut sync)?;
    }
    let share = sync.share()?.iter().map(|(_, range)| range.len()).sum();
    let ones = sync.scatter_share(|_, values| {
        values.fill(1.0);
        Ok::<_, String>(())
    })?;
    assert_eq!(ones, vec![1.0; share]);
    let mut gathered = 0.0;
    sync.gather_share(&ones, |_, values| {
        gathered += values.iter().sum::<f32>();
        Ok::<_, String>(())
    })?;
    let layout = ParamLayout::of_module(&net);
    assert!(!world.is_root() || gathered == layout.trainable() as f32, "{gathered}");
    Ok((layout.read(&net), norm))
}

pub fn check(world: &World, backend: Backend) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let net = broadcast_module(world, Net { hidden: linear(7, 13), out: linear(13, 1) })?;
    for (reduction, wire, most) in [
        (Reduction::Ordered, WireType::F32, 0.0),
        (Reduction::Ordered, WireType::Bf16, 0.0),
        (Reduction::Native, WireType::F32, 1e-5),
        (Reduction::Native, WireType::F16, 1e-3),
    ] {
        let options = SyncOptions::default()
            .with_reduction(reduction)
            .with_wire(wire)
            .with_bucket_bytes(128)
            .with_first_bucket_bytes(64);
        let [(sharded, norm), (whole, other)] = [
            weights(world, backend, &net, options.with_shard(true))?,
            weights(world, backend, &net, options)?,
        ];
        let apart = sharded.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        if apart > most || (norm - other).abs() > f64::from(most) * norm {
            return Err(format!(
                "{reduction} {wire}: sharded weights differ by {apart:e}, norms {norm} and {other}"
            )
            .into());
        }
    }
    Ok(())
}
