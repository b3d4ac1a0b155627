//! Compares averaged gradients of sharded batches with plain Burn's gradients of one process on the batches
//! of all ranks.

use std::error::Error;

use burn::data::dataset::Dataset;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use burn_mpi::{
    Backend, GradientSync, MicroBatch, SampleOrder, ShardedDataset, SyncOptions, Transport, World,
    broadcast_module, connect,
};

use crate::difference::difference;
use crate::examples::Example;

/// Largest relative difference of a step's gradients.
const LIMIT: f32 = 1e-5;

/// Checks each step of an epoch of the data set, and of a shuffled epoch.
pub fn check<E: Example>(world: &World) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    // Each rank draws different initial weights.
    device.seed(1 + world.rank() as u64);
    let net = broadcast_module(world, E::net(&device))?;
    // One bucket for each parameter, so that several buckets are reduced during backward.
    let options = SyncOptions::default().with_bucket_bytes(128).with_first_bucket_bytes(64);
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &net, options);
    let count = crate::samples(world, E::BATCH);
    let whole = E::data(count);
    let mut data = ShardedDataset::new(world, E::data(count), E::BATCH)?;
    let mut worst = 0.0f32;
    for order in [SampleOrder::Sequential, SampleOrder::Shuffled { seed: 3, epoch: 2 }] {
        if let SampleOrder::Shuffled { seed, epoch } = order {
            data.shuffle(world, seed, epoch)?;
        }
        let mut union = order.samples(count).into_iter();
        for batch in data.batches() {
            let batch = batch?;
            if !batch.is_empty() {
                let loss = E::loss(&net, &batch.items, &device);
                sync.backward(&loss, &net, batch.len(), batch.total, MicroBatch::Last)?;
            }
            let gradients = sync.finish(&net)?;
            let numbers = union.by_ref().take(batch.total).map(|number| number as usize).collect();
            let loss = E::loss(&net, &whole.get_many(numbers)?, &device);
            let plain = GradientsParams::from_grads(loss.backward(), &net);
            worst = worst.max(difference(&net, &gradients, &plain)?);
        }
        if union.next().is_some() {
            return Err("an epoch did not use all samples".into());
        }
    }
    // Written so that NaN fails too.
    if !(worst <= LIMIT) {
        return Err(format!("averaged gradients differ from plain Burn's by {worst:e}").into());
    }
    println!("rank {}: gradients within {worst:.1e} of plain Burn's", world.rank());
    Ok(())
}
