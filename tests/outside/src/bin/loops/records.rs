//! Records (weights in files) that rank 0 saves, and that all ranks load. An error on rank 0 is an error on
//! all ranks.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::Device;
use burn_mpi::{
    CommError, ParamLayout, SharedError, World, check_equal_weights, load_module, load_record, save_record,
};

use crate::examples::own_loop::{Net, points};
use crate::shards::refused;

pub fn check(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    resumed(world, folder)?;
    refusals(world, folder)
}

/// A step after saving and loading gives the same bits as a step without them.
fn resumed(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut optimizer = AdamConfig::new().init();
    let net = step(&mut optimizer, Net::new(8, &device), &device)?;
    let (model, moments) = (folder.join("model.bpk"), folder.join("optimizer"));
    // The second save replaces the file.
    save_record(world, &model, Net::new(8, &device).into_record())?;
    save_record(world, &model, net.clone().into_record())?;
    save_record(world, &moments, optimizer.to_record())?;
    world.barrier()?;
    let mut names: Vec<_> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect::<std::io::Result<_>>()?;
    names.sort();
    if names != ["model.bpk", "model.bpk.sha256", "optimizer.bpk", "optimizer.bpk.sha256"] {
        return Err(format!("the folder contains {names:?}").into());
    }
    device.seed(10 + world.rank() as u64);
    // Only rank 0 reads the file, so the other ranks may pass any path.
    let elsewhere = Path::new("/none/on/this/rank");
    let at = |path| if world.is_root() { path } else { elsewhere };
    let loaded = load_module(world, at(&model), Net::new(8, &device))?;
    let mut again = AdamConfig::new().init().load_record(load_record(world, at(&moments))?);
    check_equal_weights(world, &loaded)?;
    let [expected, found] =
        [step(&mut optimizer, net, &device)?, step(&mut again, loaded, &device)?].map(|net| hash(&net));
    if found == expected { Ok(()) } else { Err("a step after loading differs from a step without it".into()) }
}

fn step(optimizer: &mut ModuleOptimizer, net: Net, device: &Device) -> Result<Net, Box<dyn Error>> {
    let items = points(9).get_many((0..9).collect())?;
    let gradients = GradientsParams::from_grads(net.loss(&items, device).backward(), &net);
    Ok(optimizer.step(0.1, net, gradients))
}

fn hash(net: &Net) -> String {
    let bits: Vec<u32> = ParamLayout::of_module(net).read(net).into_iter().map(f32::to_bits).collect();
    format!("{bits:x?}")
}

/// Each error is the same on all ranks, and names the rank where it happened.
fn refusals(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let net = |width| Net::new(width, &device);
    let (model, broken, pipe) = (folder.join("model.bpk"), folder.join("broken.bpk"), folder.join("pipe"));
    if world.is_root() {
        let whole = fs::read(&model)?;
        fs::write(&broken, &whole[..whole.len() / 2])?;
        // A path without a suffix gets the suffix .bpk.
        Command::new("mkfifo").args([&pipe, &folder.join("suffix.bpk")]).status()?;
        let mut flipped = whole;
        let middle = flipped.len() / 2;
        flipped[middle] ^= 1;
        fs::write(folder.join("flipped.bpk"), flipped)?;
        let digest = fs::read_to_string(folder.join("model.bpk.sha256"))?;
        fs::write(folder.join("flipped.bpk.sha256"), digest)?;
    }
    world.barrier()?;
    failed(world, load_module(world, folder.join("suffix"), net(8)), 0, &folder.join("suffix.bpk"))?;
    let flipped = folder.join("flipped.bpk");
    failed(world, load_module(world, &flipped, net(8)), 0, &flipped)?;
    // A record of an optimizer is not a record of a module.
    failed(world, load_record::<OptimizerRecord>(world, &model), 0, &model)?;
    failed(world, load_module(world, folder.join("optimizer"), net(8)), 0, &folder.join("optimizer.bpk"))?;
    for path in [&folder.join("none.bpk"), &broken, &pipe, folder] {
        failed(world, load_module(world, path, net(8)), 0, path)?;
    }
    failed(world, save_record(world, folder.join("none/model"), net(8).into_record()), 0, folder)?;
    failed(world, load_module(world, &model, net(9)), 0, &model)?;
    let last = world.size() - 1;
    let width = if world.rank() == last && last > 0 { 9 } else { 8 };
    refused(world, load_module(world, &model, net(width)), |error| of_record(error, last, &model))
}

/// The file system has no space for a record. The earlier record must stay.
pub fn full(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let path = folder.join("model.bpk");
    save_record(world, &path, Net::new(8, &device).into_record())?;
    failed(world, save_record(world, &path, Net::new(1 << 16, &device).into_record()), 0, &path)?;
    load_module(world, &path, Net::new(8, &device))?;
    Ok(())
}

fn failed<T>(
    world: &World,
    result: Result<T, CommError>,
    rank: usize,
    path: &Path,
) -> Result<(), Box<dyn Error>> {
    match result {
        Ok(_) => Err(format!("no error when reading {}", path.display()).into()),
        Err(error) => refused(world, Err::<T, _>(error), |error| of_record(error, rank, path)),
    }
}

fn of_record(error: &CommError, rank: usize, path: &Path) -> bool {
    matches!(error, CommError::Shared(SharedError::Elsewhere { rank: found, reason, .. })
        if *found == rank && reason.starts_with(&path.display().to_string()))
}
