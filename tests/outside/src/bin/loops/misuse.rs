//! Errors of a training loop: ranks make different calls, or pass a wrong number of samples of the step.

use std::error::Error;
use std::path::Path;

use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::tensor::Device;
use burn_mpi::{
    Backend, CommError, GradientSync, Mean, MicroBatch, ShardedDataset, SharedError, SyncOptions, Transport,
    WireType, World, average_metrics, broadcast_module, connect, save_record,
};

use crate::examples::own_loop::{Net, points};
use crate::shards::refused;

pub fn check(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    different_calls(world, folder)?;
    for wire in [WireType::F32, WireType::Bf16] {
        wrong_totals(world, wire)?;
    }
    Ok(())
}

/// Rank 0 saves a record while the others shuffle, and averages metrics while the others save a record.
fn different_calls(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    if world.size() == 1 {
        return Ok(());
    }
    let device = Device::flex().autodiff();
    let record = || Net::new(8, &device).into_record();
    let mut data = ShardedDataset::new(world, points(9), 2)?;
    let between = |calls: &str, others: &str, error: &CommError| {
        matches!(error, CommError::Shared(SharedError::OutOfStep { calls: found, others: of_rank_0, .. })
            if found == calls && of_rank_0 == others)
    };
    let result = if world.is_root() {
        save_record(world, folder.join("model"), record())
    } else {
        data.shuffle(world, 7, 1)
    };
    refused(world, result, |error| between("shuffle", "save_record", error))?;
    let result = if world.is_root() {
        average_metrics(world, &[("loss", Mean::default())]).map(|_| ())
    } else {
        save_record(world, folder.join("model"), record())
    };
    refused(world, result, |error| between("save_record", "average_metrics", error))
}

/// One rank passes another total of samples; then all ranks pass their own number as the total. With the
/// right total, there is no error.
fn wrong_totals(world: &World, wire: WireType) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let net = broadcast_module(world, Net::new(8, &device))?;
    let (last, own) = (world.rank() == world.size() - 1, 3);
    let right = own * world.size();
    let items = points(own).get_many((0..own).collect())?;
    for total in [right, if last { right + 60 } else { right }, own] {
        let options = SyncOptions::default().with_wire(wire);
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let mut sync = GradientSync::of_module(world, collective, &net, options);
        sync.backward(&net.loss(&items, &device), &net, own, total, MicroBatch::Last)?;
        let finished = sync.finish(&net);
        let totals: Vec<usize> = world.gather(&total)?;
        if totals.iter().all(|total| *total == right) {
            drop(finished?)
        } else {
            refused(world, finished, |error| matches!(error, CommError::Shared(SharedError::Shares { .. })))?
        }
    }
    Ok(())
}
