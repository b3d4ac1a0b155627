//! A convolutional network of Burn's modules or of fused modules, trained data-parallel on MNIST:
//!
//! ```text
//! mpirun -n 2 --bind-to core own_cnn FOLDER [--batch 64] [--steps 400] [--modules fused|stock] [--threads N]
//! ```
//!
//! FOLDER contains MNIST's four files, unpacked (`mpiburn data digits --out FOLDER` generates such files).
//! network.rs is compiled twice: with the modules of `burn_fused::nn`, and with those of `burn::nn` for
//! `--modules stock`. A step has `--batch` images on each rank. Operators run on `--threads` threads; the
//! default is one for each core that the rank may use.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};
use burn_fused::{shared_time, use_threads};
use burn_mpi::{
    Backend, GradientSync, Mean, MicroBatch, ShardedDataset, SyncOptions, Transport, World, average_metrics,
    broadcast_module, check_equal_weights, connect, run,
};

/// Width and height of an image, in pixels.
pub const SIDE: usize = 28;
/// Number of steps before the timed steps. The first step determines the buckets of gradients.
const WARM_UP: usize = 3;

#[derive(Clone, Debug)]
pub struct Image {
    /// Normalised values.
    pub pixels: Vec<f32>,
    pub label: u8,
}

/// A network that classifies images.
pub trait Network: Module {
    fn new(device: &Device) -> Self;

    /// Computes the scores of the ten classes for each image.
    fn scores(&self, images: &[Image], device: &Device) -> Tensor<2>;

    /// Computes the mean cross entropy of these images.
    fn loss(&self, images: &[Image], device: &Device) -> Tensor<1>;

    fn optimizer() -> ModuleOptimizer;
}

/// The network with Burn's modules.
pub mod stock {
    use burn::{nn, optim};
    include!("network.rs");

    fn forward(block: &Block, x: Tensor<4>) -> Tensor<4> {
        block.pool.forward(block.activation.forward(block.norm.forward(block.conv.forward(x))))
    }
}

/// The same network with fused modules.
pub mod fused {
    use burn_fused::{Epilogue, nn, optim};
    include!("network.rs");

    /// Runs the block as one operator. The function `forward` of `stock`, with fused modules, would run it as
    /// four operators.
    fn forward(block: &Block, x: Tensor<4>) -> Tensor<4> {
        block.conv.forward_norm(x, &block.norm, Epilogue::ReluPool)
    }
}

#[derive(Debug)]
struct Options {
    folder: PathBuf,
    batch: usize,
    steps: usize,
    stock: bool,
    /// Threads of a rank; 0 for one for each core.
    threads: usize,
}

const USAGE: &str = "usage: own_cnn FOLDER [--batch 64] [--steps 400] [--modules fused|stock] [--threads N]";

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let folder = words.next().filter(|word| !word.starts_with('-')).ok_or(USAGE)?;
        let mut options = Self { folder: folder.into(), batch: 64, steps: 400, stock: false, threads: 0 };
        while let Some(name) = words.next() {
            if !["--batch", "--steps", "--modules", "--threads"].contains(&name.as_str()) {
                return Err(format!("unknown option {name}; {USAGE}"));
            }
            let value = words.next().ok_or_else(|| format!("{name} requires a value"))?;
            let number = || match value.parse() {
                Ok(number) if (1..=1 << 20).contains(&number) => Ok(number),
                _ => Err(format!("{name} {value}: a number from 1 to {} is required", 1 << 20)),
            };
            match (name.as_str(), value.as_str()) {
                ("--batch", _) => options.batch = number()?,
                ("--steps", _) => options.steps = number()?,
                ("--threads", _) => match value.parse() {
                    Ok(threads) if (1..=1024).contains(&threads) => options.threads = threads,
                    _ => return Err(format!("--threads {value}: a number from 1 to 1024 is required")),
                },
                ("--modules", "fused" | "stock") => options.stock = value == "stock",
                _ => return Err(format!("{name} {value}: fused or stock is required")),
            }
        }
        Ok(options)
    }
}

/// Reads MNIST's `train` or `t10k`.
fn mnist(folder: &Path, part: &str) -> Result<InMemDataset<Image>, String> {
    let (images, pixels) = values(folder, &format!("{part}-images-idx3-ubyte"), &[SIDE, SIDE])?;
    let (labels, classes) = values(folder, &format!("{part}-labels-idx1-ubyte"), &[])?;
    if pixels.len() / (SIDE * SIDE) != classes.len() {
        let counts = (pixels.len() / (SIDE * SIDE), classes.len());
        return Err(format!(
            "{images} contains {} images, but {labels} contains {} labels",
            counts.0, counts.1
        ));
    }
    if let Some(label) = classes.iter().find(|&&label| label > 9) {
        return Err(format!("{labels}: contains the label {label}; labels must be 0 to 9"));
    }
    let normalised = |&pixel: &u8| (f32::from(pixel) / 255.0 - 0.1307) / 0.3081;
    let images = pixels.chunks_exact(SIDE * SIDE).map(|pixels| pixels.iter().map(normalised).collect());
    Ok(InMemDataset::new(images.zip(classes).map(|(pixels, label)| Image { pixels, label }).collect()))
}

/// Reads an IDX file of bytes whose items have the shape `item`. Returns its path and its values. The header
/// of the file has the bytes 0, 0 and 8, a byte with the number of dimensions, and each dimension in four
/// bytes.
fn values(folder: &Path, name: &str, item: &[usize]) -> Result<(String, Vec<u8>), String> {
    let path = folder.join(name);
    let (file, path) = (&path, path.display().to_string());
    // Opening a pipe would wait for a writer.
    if std::fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        return Err(format!("{path}: is not a regular file"));
    }
    let mut bytes = std::fs::read(file).map_err(|error| format!("{path}: {error}"))?;
    let dimensions = 1 + item.len();
    let header = 4 + 4 * dimensions;
    let numbers = bytes.get(4..header).unwrap_or_default().as_chunks::<4>().0;
    let shape: Vec<usize> = numbers.iter().map(|number| u32::from_be_bytes(*number) as usize).collect();
    let starts = bytes.starts_with(&[0, 0, 8, dimensions as u8]);
    match shape.split_first() {
        Some((count, found))
            if starts && found == item && bytes.len() == header + count * item.iter().product::<usize>() =>
        {
            Ok((path, bytes.split_off(header)))
        }
        _ => Err(format!(
            "{path}: is not a complete IDX file of bytes with the shape [count{}]",
            item.iter().map(|size| format!(", {size}")).collect::<String>()
        )),
    }
}

/// Trains, each rank on its shard.
fn train<N: Network>(world: &World, options: &Options) -> Result<(), Box<dyn Error>> {
    let read = |part| mnist(&options.folder, part);
    let (images, tests) = world.agree(read("train").and_then(|images| Ok((images, read("t10k")?))))?;
    let device = Device::flex().autodiff();
    // The same initial weights in every job.
    device.seed(1);
    let mut model = broadcast_module(world, N::new(&device))?;
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, collective, &model, SyncOptions::default());
    let mut optimizer = N::optimizer();
    let mut data = ShardedDataset::new(world, images, options.batch)?;
    if world.is_root() {
        let (threads, cores) = (options.threads, world.places()[world.rank()].cores);
        println!("{} ranks, threads of each: {threads}; {} has {cores} cores", world.size(), world.host());
        println!("{} parameters, {} steps per epoch", model.num_params(), data.steps());
    }
    let (mut times, mut alone): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
    for epoch in 0.. {
        data.shuffle(world, 1, epoch)?;
        let mut mean = Mean::default();
        for batch in data.batches().take(options.steps - times.len()) {
            let (batch, began, before) = (batch?, Instant::now(), shared_time());
            if !batch.is_empty() {
                let loss = model.loss(&batch.items, &device);
                sync.backward(&loss, &model, batch.len(), batch.total, MicroBatch::Last)?;
                mean.add(loss.into_scalar::<f32>(), batch.len());
            }
            let gradients = sync.finish(&model)?;
            model = optimizer.step(1e-3, model, gradients);
            times.push(began.elapsed());
            alone.push(began.elapsed().saturating_sub(shared_time() - before));
        }
        let loss = average_metrics(world, &[("loss", mean)])?[0];
        if world.is_root() {
            println!("step {}: loss {loss:.4}", times.len());
        }
        if times.len() == options.steps {
            break;
        }
    }
    // Running statistics differ between ranks, because each rank computes them over its own samples.
    let model = sync.average_buffers(model)?;
    check_equal_weights(world, &model)?;
    let accuracy = test(world, &model.valid(), tests)?;
    if world.is_root() {
        let [step, alone] = [&times, &alone].map(|times| {
            let mut timed = times[WARM_UP.min(times.len() - 1)..].to_vec();
            timed.sort();
            1e3 * timed[timed.len() / 2].as_secs_f64()
        });
        println!("accuracy {accuracy:.4}");
        // Burn's operators have threads of their own, which `shared_time` does not know.
        let alone =
            if options.stock { String::new() } else { format!(", {alone:.2} ms of them on one thread") };
        println!("{step:.2} ms per step{alone}; medians of {} steps", times.len());
    }
    Ok(())
}

/// Computes the accuracy on the test images. Each rank tests a shard of them.
fn test<N: Network>(world: &World, model: &N, images: InMemDataset<Image>) -> Result<f64, Box<dyn Error>> {
    let mut correct = Mean::default();
    for batch in ShardedDataset::new(world, images, 1000)?.batches() {
        let batch = batch?;
        if !batch.is_empty() {
            let found = model.scores(&batch.items, &Device::flex()).argmax(1).into_data();
            let pairs = found.iter::<i64>().zip(&batch.items);
            let right = pairs.filter(|(class, image)| *class == i64::from(image.label)).count();
            correct.add(right as f32 / batch.len() as f32, batch.len());
        }
    }
    Ok(average_metrics(world, &[("accuracy", correct)])?[0])
}

fn main() -> ExitCode {
    if std::env::args().skip(1).any(|word| ["-h", "--help"].contains(&word.as_str())) {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    // Operators of burn_fused call `poll`, so that transfers of gradients make progress during a long
    // backward.
    burn_fused::set_poll(burn_mpi::poll);
    run(|world| {
        let mut options = world.agree(Options::parse(std::env::args().skip(1)))?;
        world.check_equal("the set of options", &format!("{options:?}"))?;
        options.threads = world.agree(use_threads(options.threads))?;
        if options.stock {
            train::<stock::Cnn>(world, &options)
        } else {
            train::<fused::Cnn>(world, &options)
        }
    })
}
