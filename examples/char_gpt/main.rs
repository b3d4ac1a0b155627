//! A character-level transformer, or an LSTM, trained data-parallel with gradients that are averaged during
//! backward:
//!
//! ```text
//! mpirun -n 2 --bind-to core char_gpt [--text FILE] [--backend gloo] [--steps 100] [--rate 1e-3]
//!     [--width 256] [--layers 4] [--heads 4] [--batch 16] [--tokens 32] [--dropout 0] [--network gpt|lstm]
//!     [--modules fused|stock] [--precision f32|bf16] [--optimizer whole|shares] [--threads N]
//! ```
//!
//! network.rs is compiled twice: with the modules of `burn_fused::nn`, and with those of `burn::nn` for
//! `--modules stock`. A step has `--batch` windows of `--tokens` characters on each rank. Without `--text`,
//! the program generates the text. With `--optimizer shares`, each rank has a share of the optimizer's state.
//! Operators run on `--threads` threads; the default is one for each core that the rank may use.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::optim::{ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use burn_fused::precision::{MatmulPrecision, bf16_products};
use burn_fused::{shared_time, use_threads};
use burn_mpi::{
    Backend, GradientSync, Mean, MicroBatch, ShardedDataset, ShardedOptimizer, Signals, SyncOptions,
    Transport, World, average_metrics, broadcast_module, check_equal_weights, connect, run,
};

/// Number of different characters: a character is a byte.
const CHARACTERS: usize = 256;
/// Maximum value of an option that is a count.
const MOST: usize = 1 << 20;
/// Maximum number of layers. Creating more layers takes too long.
const MOST_LAYERS: usize = 1 << 10;
/// Maximum number of values in the attention mask. A larger mask needs too much memory.
const MOST_MASKED: u64 = 1 << 30;
/// Maximum number of parameters. A larger network needs too much memory.
const MOST_PARAMETERS: u64 = 500_000_000;
/// Number of steps before the timed steps. The first step determines the buckets of gradients.
const WARM_UP: usize = 3;

#[derive(Debug, Clone)]
pub struct Options {
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub batch: usize,
    pub tokens: usize,
    pub dropout: f64,
    /// Precision of matrix products in fused modules.
    pub precision: MatmulPrecision,
    pub stock: bool,
    pub lstm: bool,
    /// Whether the optimizer's state is divided among the ranks.
    pub shares: bool,
    pub steps: usize,
    /// Threads of a rank; 0 for one for each core.
    pub threads: usize,
    pub rate: f64,
    pub backend: Backend,
    pub text: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            width: 256,
            layers: 4,
            heads: 4,
            batch: 16,
            tokens: 32,
            dropout: 0.0,
            precision: MatmulPrecision::F32,
            stock: false,
            lstm: false,
            shares: false,
            steps: 100,
            threads: 0,
            rate: 1e-3,
            backend: Backend::Mpi,
            text: None,
        }
    }
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut given = Vec::new();
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| format!("{name} requires a value"))?;
            let number = || match value.parse() {
                Ok(number) if (1..=MOST).contains(&number) => Ok(number),
                _ => Err(format!("{name} {value}: a number from 1 to {MOST} is required")),
            };
            let is_second = |[first, second]: [&str; 2]| match value.as_str() {
                word if [first, second].contains(&word) => Ok(word == second),
                _ => Err(format!("{name} {value}: {first} or {second} is required")),
            };
            match name.as_str() {
                "--width" => options.width = number()?,
                "--layers" => options.layers = number()?,
                "--heads" => options.heads = number()?,
                "--batch" => options.batch = number()?,
                "--tokens" => options.tokens = number()?,
                "--steps" => options.steps = number()?,
                "--threads" => match value.parse() {
                    Ok(threads) if (1..=1024).contains(&threads) => options.threads = threads,
                    _ => return Err(format!("{name} {value}: a number from 1 to 1024 is required")),
                },
                "--dropout" => match value.parse() {
                    Ok(dropout) if (0.0..1.0).contains(&dropout) => options.dropout = dropout,
                    _ => return Err(format!("{name} {value}: a number from 0 to below 1 is required")),
                },
                "--precision" if is_second(["f32", "bf16"])? => options.precision = MatmulPrecision::Bf16,
                "--precision" => options.precision = MatmulPrecision::F32,
                "--network" => options.lstm = is_second(["gpt", "lstm"])?,
                "--optimizer" => options.shares = is_second(["whole", "shares"])?,
                "--modules" => options.stock = is_second(["fused", "stock"])?,
                "--rate" => match value.parse() {
                    Ok(rate) if rate > 0.0 && rate <= 1.0 => options.rate = rate,
                    _ => return Err(format!("{name} {value}: a number above 0 and at most 1 is required")),
                },
                "--backend" => options.backend = value.parse().map_err(|error| format!("{name}: {error}"))?,
                "--text" => options.text = Some(value.into()),
                _ => return Err(format!("unknown option {name}")),
            }
            given.push(name);
        }
        options.check(&given)?;
        Ok(options)
    }

    /// Checks that the options can be combined. `given` has the names of the options on the command line.
    fn check(&self, given: &[String]) -> Result<(), String> {
        let &Self { width, layers, heads, batch, tokens, lstm, .. } = self;
        if let (true, Some(name)) =
            (lstm, given.iter().find(|name| ["--layers", "--heads", "--dropout"].contains(&name.as_str())))
        {
            return Err(format!("{name} requires --network gpt: leave out {name} or --network lstm"));
        }
        if self.stock && given.iter().any(|name| name == "--precision") {
            return Err(
                "--precision requires --modules fused: leave out --precision or --modules stock".to_string()
            );
        }
        if layers > MOST_LAYERS {
            return Err(format!("--layers {layers}: at most {MOST_LAYERS} are supported"));
        }
        let masked = batch as u64 * (tokens as u64).pow(2);
        if !lstm && masked > MOST_MASKED {
            return Err(format!(
                "--batch {batch} --tokens {tokens}: the attention mask would have {masked} values; at most \
                 {MOST_MASKED} are supported"
            ));
        }
        if !lstm && width % heads != 0 {
            return Err(format!("--heads {heads} does not divide --width {width}"));
        }
        // Parameters of the layers' matrices and of the embeddings. With gradients and Adam's two moments, a
        // network needs four times the memory of its parameters.
        let parameters =
            12 * layers as u64 * (width as u64).pow(2) + (2 * CHARACTERS + tokens) as u64 * width as u64;
        match parameters {
            0..=MOST_PARAMETERS => Ok(()),
            _ => Err(format!(
                "--width {width} --layers {layers}: the network would have about {parameters} parameters; at most \
                 {MOST_PARAMETERS} are supported"
            )),
        }
    }
}

/// A network that predicts the next character.
pub trait Network: Module {
    fn new(options: &Options, device: &Device) -> Self;

    /// Computes the mean cross entropy of the next character, over all positions of these windows.
    fn loss(&self, windows: &[Vec<u8>], device: &Device) -> Tensor<1>;

    type Optimizer: Optimizer + 'static;

    fn optimizer() -> Self::Optimizer;
}

/// The optimizer of a rank.
enum Updates<N: Network> {
    Whole(ModuleOptimizer),
    Share(ShardedOptimizer<N::Optimizer>),
}

/// The network with Burn's modules.
pub mod stock {
    use burn::{nn, optim};
    include!("network.rs");
}

/// The same network with fused modules.
pub mod fused {
    use burn_fused::{nn, optim};
    include!("network.rs");
}

/// A text in windows of `tokens` characters, each followed by the character after it.
pub struct Windows {
    pub text: Vec<u8>,
    pub tokens: usize,
}

impl Dataset<Vec<u8>> for Windows {
    fn get(&self, index: usize) -> Result<Vec<u8>, DatasetError> {
        let start = index * self.tokens;
        Ok(self.text[start..=start + self.tokens].to_vec())
    }

    fn len(&self) -> usize {
        self.text.len().saturating_sub(1) / self.tokens
    }
}

/// Generates sentences of words in random order, the same on every machine.
pub fn sentences(bytes: usize) -> Vec<u8> {
    const WORDS: &str = "every rank sends its gradients to the next and waits for all buckets of a step";
    let words: Vec<&str> = WORDS.split(' ').collect();
    let (mut text, mut random) = (String::new(), 1u64);
    while text.len() < bytes {
        // Knuth's MMIX generator. Its upper bits are more random than its lower ones.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text += words[(random >> 60) as usize];
        text += if (random >> 56) % 8 == 0 { ".\n" } else { " " };
    }
    text.into_bytes()
}

/// Returns rank 0's text on every rank. Other ranks do not read the file.
fn text(world: &World, options: &Options) -> Result<Vec<u8>, Box<dyn Error>> {
    let text = match &options.text {
        Some(file) if world.is_root() => read(file, options.tokens * world.size() + 1)
            .map_err(|reason| format!("{}: {reason}", file.display())),
        _ => Ok(sentences((1 << 16).max(options.tokens * world.size() + 1))),
    };
    Ok(world.broadcast_bytes(world.agree(text)?)?)
}

/// Reads a text. It must have at least `least` characters.
fn read(file: &Path, least: usize) -> Result<Vec<u8>, String> {
    // Opening a pipe would wait for a writer.
    if std::fs::metadata(file).is_ok_and(|found| !found.is_file()) {
        return Err("is not a regular file".into());
    }
    let text = std::fs::read(file).map_err(|error| error.to_string())?;
    match text.len() {
        length if length < least => {
            Err(format!("contains {length} characters; one window for each rank needs at least {least}"))
        }
        _ => Ok(text),
    }
}

/// Trains, each rank on its shard.
///
/// # Errors
/// If a window cannot be read, or an exchange fails.
pub fn train<N: Network>(
    world: &World,
    windows: impl Dataset<Vec<u8>>,
    options: &Options,
) -> Result<N, Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(1);
    let mut model = broadcast_module(world, N::new(options, &device))?;
    let collective = connect(world, options.backend, &Transport::default())?;
    let sync_options = SyncOptions::default().with_shard(options.shares);
    let mut sync = GradientSync::of_module(world, collective, &model, sync_options);
    let mut optimizer: Updates<N> = if options.shares {
        Updates::Share(ShardedOptimizer::new(N::optimizer())?)
    } else {
        Updates::Whole(N::optimizer().into())
    };
    let mut data = ShardedDataset::new(world, windows, options.batch)?;
    if world.is_root() {
        println!("{}", machine(world, options.threads));
        println!("{} parameters, {} steps per epoch", model.num_params(), data.steps());
    }

    let [mut times, mut updates, mut alone] = [const { Vec::<Duration>::new() }; 3];
    for epoch in 0.. {
        data.shuffle(world, 1, epoch)?;
        let mut mean = Mean::default();
        for batch in data.batches().take(options.steps - times.len()) {
            let (batch, began, shared) = (batch?, Instant::now(), shared_time());
            if !batch.is_empty() {
                let loss = model.loss(&batch.items, &device);
                sync.backward(&loss, &model, batch.len(), batch.total, MicroBatch::Last)?;
                mean.add(loss.into_scalar::<f32>(), batch.len());
            }
            let exchanging = |sync: &GradientSync| sync.times().exposed + sync.times().copy;
            let (averaged, before);
            match &mut optimizer {
                Updates::Whole(optimizer) => {
                    let gradients = sync.finish(&model)?;
                    (averaged, before) = (Instant::now(), exchanging(&sync));
                    model = optimizer.step(options.rate, model, gradients);
                }
                Updates::Share(optimizer) => {
                    sync.reduce(Signals::default())?;
                    (averaged, before) = (Instant::now(), exchanging(&sync));
                    model = optimizer.step(options.rate, model, &mut sync)?;
                }
            }
            updates.push(averaged.elapsed().saturating_sub(exchanging(&sync) - before));
            times.push(began.elapsed());
            alone.push(began.elapsed().saturating_sub(shared_time() - shared));
        }
        let loss = average_metrics(world, &[("loss", mean)])?[0];
        world.agree(if loss.is_finite() {
            Ok(())
        } else {
            Err(format!("the loss is {loss} after step {}; lower --rate", times.len()))
        })?;
        if world.is_root() {
            println!("step {}: perplexity {:.3}", times.len(), loss.exp());
        }
        if times.len() == options.steps {
            break;
        }
    }
    check_equal_weights(world, &model)?;
    if world.is_root() {
        println!("gradients: {}", sync.report());
        let [step, update, alone] = [times, updates, alone].map(|mut times| {
            let mut timed = times.split_off(WARM_UP.min(times.len() - 1));
            timed.sort();
            1e3 * timed[timed.len() / 2].as_secs_f64()
        });
        // Burn's operators have threads of their own, which `shared_time` does not know.
        let alone = if options.stock { String::new() } else { format!(", {alone:.2} ms on one thread") };
        println!("{step:.2} ms per step, {update:.2} ms of them to update parameters{alone}; medians");
        println!("peak memory of this rank: {}", peak_memory());
    }
    Ok(model)
}

/// Returns the threads that operators of a rank use, and the cores of this rank's host.
fn machine(world: &World, threads: usize) -> String {
    let cores = world.places()[world.rank()].cores;
    format!("{} ranks, threads of each: {threads}; {} has {cores} cores", world.size(), world.host())
}

/// Returns the peak resident memory of this process, as Linux gives it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.map_or("unknown", str::trim).to_owned()
}

const USAGE: &str = "\
char_gpt [--text FILE] [--backend mpi|gloo] [--steps 100] [--rate 1e-3] [--width 256] [--layers 4]
         [--heads 4] [--batch 16] [--tokens 32] [--dropout 0] [--network gpt|lstm]
         [--modules fused|stock] [--precision f32|bf16] [--optimizer whole|shares] [--threads N]";

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
        options.precision.use_precision();
        if world.is_root() && options.precision == MatmulPrecision::Bf16 {
            println!("products of large linear layers in bf16: {}", bf16_products().name());
        }
        let windows = Windows { text: text(world, &options)?, tokens: options.tokens };
        if options.stock {
            train::<stock::Characters>(world, windows, &options)?;
        } else {
            train::<fused::Characters>(world, windows, &options)?;
        }
        Ok(())
    })
}
