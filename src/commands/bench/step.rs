//! `mpiburn bench step`: breaks down the time of one training step.
//!
//! On several ranks, steps run in two modes: with all-reduces that overlap backward, and with all-reduces
//! after backward. The difference between the modes is the communication that backward hides. The benchmark
//! also times a matrix product and an all-gather: they show how far the step is from the speed of the
//! processor and of the network.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Distribution, Tensor};
use burn_fused::conv::Algorithm;
use burn_fused::memory::counting_allocator::allocations;
use burn_fused::simd::Level;
use burn_mpi::{CommError, World};
use run_record::{StepMs, count};
use serde::Serialize;
use terminal::table;

use super::{median_ms, timed, warn_if_oversubscribed};
use crate::commands::subject::{BATCHES, BatchCycle, learner};
use crate::commands::{agree_on_products, check_random_batch, memory, outputs, set_up, warn_of_ignored};
use crate::device::DeviceKind;
use crate::machine::{page_faults, topology};
use crate::model::{ModelKind, Network};
use crate::options::{ConfigError, RunConfig, StepArgs};
use crate::train::{LabelledBytes, Learner, MixedPrecision, Scope, spec};
use data::Split;
use data::generate::noise;

/// Number of steps between changes of mode. The modes alternate, so that a change in the machine's speed
/// affects both modes.
const TURN: usize = 5;

const PHASES: usize = StepMs::TITLES.len();

/// Measures `--steps` steps with overlap. On several ranks, also measures the same number of steps without
/// overlap.
pub fn run(world: &World, args: &StepArgs) -> anyhow::Result<()> {
    let config = configure(world, args)?;
    let batch = config.data.train_batch_size.get();
    let network = config.network(config.model.dimensions(), &config.device.device().autodiff());
    memory::check_step(world, &config, &network, batch, false)?;
    let flop_per_step = network.flop().of_step(batch);
    let measured = measure(world, args, &config, network)?;
    let report = StepReport::over_ranks(world, &config, flop_per_step, &measured)?;
    if world.is_root() {
        report.print();
        outputs::write_json(args.json.as_deref(), &report)?;
    }
    Ok(())
}

/// Checks and completes the options, and applies them to this rank: SIMD level, deadline, GPU and threads.
fn configure(world: &World, args: &StepArgs) -> anyhow::Result<RunConfig> {
    let config = args.config.clone().completed()?;
    if let Some(name) = &args.simd {
        select_level(name)?;
    }
    check_random_batch(&config)?;
    let does = "bench step uses random samples";
    warn_of_ignored(world, does, &args.typed, |option| {
        spec(option).is_some_and(|spec| spec.scope == Scope::Training)
    });
    outputs::check_on_root(world, &[("json", args.json.as_ref())], &[])?;
    set_up(world, &config)?;
    warn_if_oversubscribed(world, config.threads.get());
    agree_on_products(world, &config)?;
    Ok(config)
}

/// The measurements of this rank.
struct Measured {
    /// The steps with overlap. On several ranks, also the steps without overlap; one rank has no
    /// communication.
    modes: Vec<TimedSteps>,
    /// Times of matrix products, some before the steps and some after them.
    products: Vec<Duration>,
    /// Bytes of gradients that the rank contributes to a step's all-reduces, after compression.
    gradient_bytes: usize,
    /// Bytes of gradients before compression; `None` if gradients are not compressed.
    uncompressed_bytes: Option<usize>,
    /// The result of [`gather_ms`] for `gradient_bytes` bytes.
    gather_ms: Option<f64>,
}

/// Measures steps of `network` in each mode, in turn.
fn measure(world: &World, args: &StepArgs, config: &RunConfig, network: Network) -> anyhow::Result<Measured> {
    let (device, dimensions) = (config.device.device(), config.model.dimensions());
    let global = config.data.train_batch_size.get() * world.size();
    let source = noise(dimensions.input, dimensions.classes, BATCHES * global);
    let mut batches = BatchCycle::open(world, config, &source, Split::Train)?;
    let mut learner = learner(world, config, network)?;

    let mut products = product_times(&device, args.products);
    for _ in 0..args.warm_up {
        learner.step(&batches.next()?, global, false)?;
    }
    let overlaps: &[bool] = if world.size() == 1 { &[true] } else { &[true, false] };
    let mut modes: Vec<TimedSteps> = overlaps.iter().map(|_| TimedSteps::with_capacity(args.steps)).collect();
    while modes[0].times.len() < args.steps {
        for (steps, &overlap) in modes.iter_mut().zip(overlaps) {
            learner.sync.set_overlap(overlap)?;
            world.barrier()?;
            let count = TURN.min(args.steps - steps.times.len());
            steps.measure(count, &mut learner, &mut batches, global)?;
        }
    }
    products.extend(product_times(&device, args.products));
    let sync = learner.sync.report();
    let (gradient_bytes, uncompressed_bytes) = if sync.is_compressed {
        (sync.sent_per_step() as usize, Some(sync.bytes()))
    } else {
        (sync.bytes(), None)
    };
    let gather_ms = gather_ms(world, config, gradient_bytes)?;
    Ok(Measured { modes, products, gradient_bytes, uncompressed_bytes, gather_ms })
}

/// Steps of one mode on this rank.
struct TimedSteps {
    phases: Vec<[Duration; PHASES]>,
    times: Vec<Duration>,
    /// Compressing and decompressing, which is part of a phase.
    compress: Vec<Duration>,
    allocations: u64,
    page_faults: u64,
}

impl TimedSteps {
    /// Allocates memory for all steps. A vector that grows would be copied between steps, and the page faults
    /// of the copy would count as page faults of the steps.
    fn with_capacity(steps: usize) -> Self {
        let [times, compress] = [(); 2].map(|()| Vec::with_capacity(steps));
        Self { phases: Vec::with_capacity(steps), times, compress, allocations: 0, page_faults: 0 }
    }

    /// Measures `count` more steps. Their gradients are means over `global` samples.
    fn measure(
        &mut self,
        count: usize,
        learner: &mut Learner<'_>,
        batches: &mut BatchCycle,
        global: usize,
    ) -> anyhow::Result<()> {
        let (mut before, faults) = (learner.times().into_array(), page_faults());
        for _ in 0..count {
            let samples = batches.next()?;
            let (began, allocated) = (Instant::now(), allocations());
            let compressed = learner.sync.times().compress;
            measured_step(learner, &samples, global)?;
            let took = began.elapsed();
            self.compress.push(learner.sync.times().compress - compressed);
            self.allocations += allocations() - allocated;
            self.times.push(took);
            let after = learner.times().into_array();
            let mut phases: [Duration; PHASES] = std::array::from_fn(|phase| after[phase] - before[phase]);
            phases[PHASES - 1] = took.saturating_sub(phases.iter().sum());
            self.phases.push(phases);
            before = after;
        }
        self.page_faults += page_faults() - faults;
        Ok(())
    }
}

/// Times an all-gather in which each rank receives the same number of bytes as in a ring all-reduce of
/// `bytes` bytes: on n ranks, 2(n-1)/n times `bytes`. Returns this rank's median time in ms, or `None` on one
/// rank or if `bytes` is 0. All ranks must call this function with the same `bytes`.
fn gather_ms(world: &World, config: &RunConfig, bytes: usize) -> anyhow::Result<Option<f64>> {
    /// Number of untimed exchanges. The first opens connections. During the others, TCP's window grows.
    const WARM_UP: usize = 3;
    const TIMED: usize = 9;
    if world.size() == 1 || bytes == 0 {
        return Ok(None);
    }
    let (backend, gpu) = (config.communication.backend, config.device.gpu());
    let mut primitives = backend.connect_primitives(world, &config.transport(), gpu)?;
    let mine = vec![world.rank() as u8; (2 * bytes).div_ceil(world.size())];
    let mut all = vec![0; mine.len() * world.size()];
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..WARM_UP + TIMED {
        // `timed` waits for late ranks before it starts the clock, so only the transfer is timed.
        times.push(timed(world, || primitives.all_gather(&mine, &mut all))?);
    }
    Ok(Some(median_ms(&times[WARM_UP..])))
}

/// Does one measured step. `make icount` finds this function by its name and counts the instructions between
/// its entry and its return, so it must not be inlined.
#[inline(never)]
fn measured_step(learner: &mut Learner<'_>, samples: &LabelledBytes, total: usize) -> Result<(), CommError> {
    learner.step(samples, total, false).map(|_| ())
}

/// Makes the operators use the SIMD level `name`. The level must not be higher than the level on which the
/// ranks have agreed.
fn select_level(name: &str) -> Result<(), ConfigError> {
    let common: Vec<_> = Level::available().filter(|&level| level <= Level::current()).collect();
    let Some(level) = common.iter().find(|level| level.name() == name) else {
        let names: Vec<_> = common.iter().map(|level| level.name()).collect();
        let problem = format!("not a SIMD level that all ranks support: choose {}", names.join(" or "));
        return Err(ConfigError::new("simd", name, problem));
    };
    level.use_level();
    Ok(())
}

/// Returns the milliseconds per step of one mode: first the median over the steps of a rank, then the mean
/// over ranks. Only [`Timing::mean`] is a mean over steps too. The phases are medians over steps. If they
/// were means, one slow step among thirty steps without overlap would make these steps seem slower, and the
/// difference would count as hidden communication.
fn timing(world: &World, steps: &TimedSteps) -> anyhow::Result<Timing> {
    let parts = std::array::from_fn(|phase| {
        median_ms(&steps.phases.iter().map(|times| times[phase]).collect::<Vec<Duration>>())
    });
    let parts = mean_over_ranks::<PHASES>(world, parts)?;
    let mean = 1e3 * steps.times.iter().sum::<Duration>().as_secs_f64() / steps.times.len() as f64;
    let [mean, median] = mean_over_ranks(world, [mean, median_ms(&steps.times)])?;
    Ok(Timing { parts: StepMs::from_array(parts), mean, median })
}

fn mean_over_ranks<const N: usize>(world: &World, mine: [f64; N]) -> anyhow::Result<[f64; N]> {
    let mut sums = mine;
    world.sum_f64(&mut sums)?;
    Ok(sums.map(|sum| sum / world.size() as f64))
}

/// The measurements and their configuration. Times are in milliseconds. Times and counters are means over
/// ranks.
#[derive(Debug, Clone, Serialize)]
pub struct StepReport {
    /// Network.
    pub model: ModelKind,
    /// Batch size per rank.
    pub train_batch_size: usize,
    /// World size.
    pub ranks: usize,
    /// Machines x processes per machine, such as `1x2`.
    pub topology: String,
    /// Transport of the gradients.
    pub backend: String,
    /// Compute device.
    pub device: DeviceKind,
    /// Type of activations and matrix products.
    pub precision: MixedPrecision,
    /// Whether convolution, ReLU and pooling are fused.
    pub fused: bool,
    /// Algorithm of fused convolutions with many channels; `None` if `fused` is false.
    pub conv: Option<Algorithm>,
    /// Number of threads per rank.
    pub threads: usize,
    /// SIMD level of the operators.
    pub simd: Level,
    /// Number of measured steps in each mode.
    pub steps: usize,
    /// Times with the all-reduce overlapping backward.
    pub overlap_on: Timing,
    /// Times with the all-reduce after backward; `None` with one rank.
    pub overlap_off: Option<Timing>,
    /// Allocations and reallocations of the training thread in a step.
    pub allocations_per_step: f64,
    /// Page faults of the process in a step.
    pub page_faults_per_step: f64,
    /// Floating-point operations of one rank's step, computed from the network's layers.
    pub flop_per_step: u64,
    /// Floating-point operations per second of a large matrix product; `None` if no product was timed.
    pub product_flop_per_s: Option<f64>,
    /// Bytes of gradients that each rank contributes to a step's all-reduces, in the type in which they are
    /// sent. With a compression, what is sent in their place, mean over steps.
    pub gradient_bytes: usize,
    /// Bytes of gradients without compression; `None` if they are not compressed.
    pub uncompressed_bytes: Option<usize>,
    /// Compressing and decompressing with overlap, in milliseconds per step: median over steps. It is part of
    /// the copy of gradients. `None` without a compression.
    pub compress_ms: Option<f64>,
    /// Time of an all-gather that moves the same number of bytes as a ring all-reduce of the gradients;
    /// `None` with one rank.
    pub gather_ms: Option<f64>,
    /// Operations per second of the step, divided by operations per second of the matrix product; `None` if
    /// no product was timed.
    pub share_of_product: Option<f64>,
}

/// Milliseconds per step.
#[derive(Debug, Clone, Serialize)]
pub struct Timing {
    /// The phases of the step, medians over steps.
    #[serde(flatten)]
    pub parts: StepMs,
    /// The whole step, mean over steps.
    pub mean: f64,
    /// The whole step, median over steps.
    pub median: f64,
}

impl Timing {
    /// Returns the operations per second of a step that has `flop` operations and takes the median time.
    pub fn per_second(&self, flop: u64) -> f64 {
        1e3 * flop as f64 / self.median
    }
}

impl StepReport {
    /// Combines the measurements of all ranks into means.
    fn over_ranks(
        world: &World,
        config: &RunConfig,
        flop_per_step: u64,
        measured: &Measured,
    ) -> anyhow::Result<Self> {
        let with_overlap = &measured.modes[0];
        let steps = with_overlap.times.len();
        let speed = product_flop_per_second(&measured.products);
        let [allocations_per_step, page_faults_per_step, mean_speed, mean_gather, compress] =
            mean_over_ranks(
                world,
                [
                    with_overlap.allocations as f64 / steps as f64,
                    with_overlap.page_faults as f64 / steps as f64,
                    speed.unwrap_or_default(),
                    measured.gather_ms.unwrap_or_default(),
                    median_ms(&with_overlap.compress),
                ],
            )?;
        let overlap_on = timing(world, with_overlap)?;
        let product_flop_per_s = speed.map(|_| mean_speed);
        Ok(Self {
            model: config.model,
            train_batch_size: config.data.train_batch_size.get(),
            ranks: world.size(),
            topology: topology(world.places()),
            backend: config.communication.backend.to_string(),
            device: config.device,
            precision: config.precision,
            fused: config.fused,
            conv: config.fused.then_some(config.conv),
            threads: config.threads.get(),
            simd: Level::current(),
            steps,
            share_of_product: product_flop_per_s
                .map(|product| overlap_on.per_second(flop_per_step) / product),
            overlap_on,
            overlap_off: measured.modes.get(1).map(|steps| timing(world, steps)).transpose()?,
            allocations_per_step,
            page_faults_per_step,
            flop_per_step,
            product_flop_per_s,
            gradient_bytes: measured.gradient_bytes,
            uncompressed_bytes: measured.uncompressed_bytes,
            compress_ms: measured.uncompressed_bytes.map(|_| compress),
            gather_ms: measured.gather_ms.map(|_| mean_gather),
        })
    }

    /// Prints the table, and the lines below it.
    pub fn print(&self) {
        println!("{}", self.table());
        for line in [self.communication(), self.bytes_alone(), self.compression()].into_iter().flatten() {
            println!("{line}");
        }
        println!(
            "per step of a rank: {:.1} allocations, {:.1} page faults",
            self.allocations_per_step, self.page_faults_per_step
        );
        println!("{}", self.arithmetic());
    }

    fn table(&self) -> terminal::table::Table {
        // The last phase, the rest of a step, is not shown: it is part of the whole step.
        let cells = |timing: &Timing| {
            timing.parts.into_array().into_iter().take(PHASES - 1).chain([timing.median]).collect::<Vec<_>>()
        };
        let names = StepMs::TITLES.into_iter().take(PHASES - 1).chain(["whole step"]);
        let (header, columns) = match &self.overlap_off {
            Some(off) => (
                vec!["median ms per step, mean over ranks", "overlap on", "overlap off"],
                vec![cells(&self.overlap_on), cells(off)],
            ),
            None => (vec!["median ms per step", "1 rank"], vec![cells(&self.overlap_on)]),
        };
        let row = |(i, name): (usize, &str)| {
            let numbers = columns.iter().map(|column| format!("{:.3}", column[i]));
            std::iter::once(name.to_owned()).chain(numbers).collect()
        };
        table::table(&header, 1, names.enumerate().map(row))
    }

    /// Describes how much of the communication is hidden behind backward, and how much is exposed: ranks wait
    /// for it. `None` on one rank.
    fn communication(&self) -> Option<String> {
        let (on, off) = (&self.overlap_on, self.overlap_off.as_ref()?);
        let hidden = off.parts.exposed - on.parts.exposed;
        // If ranks wait longer with overlap than without overlap, overlap hid nothing.
        let hidden = if hidden >= 0.0 {
            let share = 100.0 * hidden / off.parts.exposed.max(f64::MIN_POSITIVE);
            format!("hidden {hidden:.3} ms ({share:.0}%)")
        } else {
            "nothing hidden".to_owned()
        };
        Some(format!(
            "{} at batch {}, {} ranks, backend {}: communication {:.3} ms, {hidden}, exposed {:.3} ms ({:.1}% of \
             the step)",
            self.model,
            self.train_batch_size,
            self.ranks,
            self.backend,
            off.parts.exposed,
            on.parts.exposed,
            100.0 * on.parts.exposed / on.median,
        ))
    }

    /// Describes how much of the communication's time is transfer of bytes; the rest is waits and additions.
    /// `None` on one rank.
    fn bytes_alone(&self) -> Option<String> {
        let (all, gather) = (self.overlap_off.as_ref()?.parts.exposed, self.gather_ms?);
        Some(format!(
            "transferring {:.3} MB of gradients takes {gather:.3} ms between these ranks, {:.0}% of the \
             communication",
            1e-6 * self.gradient_bytes as f64,
            100.0 * gather / all.max(f64::MIN_POSITIVE)
        ))
    }

    /// Describes what the compression costs and saves. `None` without a compression.
    fn compression(&self) -> Option<String> {
        let (all, ms) = (self.uncompressed_bytes?, self.compress_ms?);
        Some(format!(
            "compressing {:.3} MB of gradients to {:.1}% takes {ms:.3} ms, part of the copy of gradients",
            1e-6 * all as f64,
            100.0 * self.gradient_bytes as f64 / all.max(1) as f64
        ))
    }

    fn arithmetic(&self) -> String {
        let speed = format!(
            "{} at batch {}: {:.1} MFLOP in {:.3} ms are {:.1} GFLOP/s",
            self.model,
            self.train_batch_size,
            1e-6 * self.flop_per_step as f64,
            self.overlap_on.median,
            1e-9 * self.overlap_on.per_second(self.flop_per_step),
        );
        let mixed = match self.precision {
            MixedPrecision::No => String::new(),
            other => format!(", the step in {other}"),
        };
        let place = format!("({}{mixed}, {})", self.device, count(self.threads, "thread"));
        match self.product_flop_per_s.zip(self.share_of_product) {
            Some((product, share)) => format!(
                "{speed}, {:.0}% of the {:.1} GFLOP/s of a {SIDE}x{SIDE} matrix product {place}",
                100.0 * share,
                1e-9 * product,
            ),
            None => format!("{speed} {place}"),
        }
    }
}

/// Rows and columns of both factors of the timed product. Each factor takes 4 MB in f32, so the overheads of
/// a call and of a kernel's edges are negligible.
pub const SIDE: usize = 1024;

/// Returns the times of `count` products of two random f32 matrices of `SIDE` x `SIDE`, after one untimed
/// product as a warm-up.
fn product_times(device: &Device, count: usize) -> Vec<Duration> {
    if count == 0 {
        return Vec::new();
    }
    let draw = || Tensor::<2>::random([SIDE, SIDE], Distribution::Uniform(-1.0, 1.0), device);
    let (a, b) = (draw(), draw());
    let time = |_| {
        let began = Instant::now();
        // Reading an element waits for the result on asynchronous backends.
        let corner = a.clone().matmul(b.clone()).slice([0..1, 0..1]).into_scalar::<f32>();
        debug_assert!(corner.is_finite());
        began.elapsed()
    };
    (0..=count).map(time).skip(1).collect()
}

/// Returns the floating-point operations per second of a product that takes the median time. `None` if no
/// product was timed.
fn product_flop_per_second(times: &[Duration]) -> Option<f64> {
    let flop = 2.0 * (SIDE as f64).powi(3);
    (!times.is_empty()).then(|| 1e3 * flop / median_ms(times))
}

#[cfg(test)]
mod step_report_tests {
    use super::*;

    fn report(overlap_off: Option<Timing>) -> StepReport {
        let ranks = if overlap_off.is_some() { 2 } else { 1 };
        StepReport {
            model: ModelKind::Vgg,
            train_batch_size: 32,
            ranks,
            topology: "1x1".into(),
            backend: "mpi".into(),
            device: DeviceKind::Flex,
            precision: MixedPrecision::No,
            fused: true,
            conv: Some(Algorithm::Winograd),
            threads: 1,
            simd: Level::Portable,
            steps: 10,
            overlap_on: timing(2.0),
            overlap_off,
            allocations_per_step: 12.0,
            page_faults_per_step: 0.5,
            flop_per_step: 150_000_000,
            product_flop_per_s: Some(50e9),
            gradient_bytes: 10_512_040,
            uncompressed_bytes: None,
            compress_ms: None,
            gather_ms: (ranks > 1).then_some(6.0),
            share_of_product: Some(0.3),
        }
    }

    fn timing(exposed: f64) -> Timing {
        Timing { parts: StepMs { exposed, ..StepMs::default() }, mean: 20.0, median: 10.0 }
    }

    #[test]
    fn the_share_refers_to_the_median_step() {
        let report = report(None);
        // 150 MFLOP in 10 ms are 15 GFLOP/s.
        assert_eq!(report.overlap_on.per_second(report.flop_per_step), 15e9);
        assert!(
            report.arithmetic().contains("15.0 GFLOP/s, 30% of the 50.0 GFLOP/s"),
            "{}",
            report.arithmetic()
        );
        let alone = StepReport { product_flop_per_s: None, ..report };
        assert_eq!(
            alone.arithmetic(),
            "vgg at batch 32: 150.0 MFLOP in 10.000 ms are 15.0 GFLOP/s (flex, 1 thread)"
        );
    }

    #[test]
    fn one_rank_has_one_column_and_no_communication() {
        assert_eq!((report(None).communication(), report(None).bytes_alone()), (None, None));
        assert!(!report(None).table().to_string().contains("overlap"));
        let two = report(Some(timing(8.0)));
        assert!(two.table().to_string().contains("overlap off"));
        let line = two.communication().unwrap();
        for fact in ["communication 8.000 ms", "hidden 6.000 ms (75%)", "exposed 2.000 ms (20.0% "] {
            assert!(line.contains(fact), "{fact}: {line}");
        }
        let line = report(Some(timing(1.0))).communication().unwrap();
        assert!(line.contains("communication 1.000 ms") && line.contains("exposed 2.000 ms"), "{line}");
        assert!(!line.contains("hidden -"), "{line}");
    }

    #[test]
    fn the_bytes_alone_are_a_share_of_the_communication_without_overlap() {
        let line = report(Some(timing(8.0))).bytes_alone().unwrap();
        for fact in ["10.512 MB", "6.000 ms", "75%"] {
            assert!(line.contains(fact), "{fact}: {line}");
        }
        assert_eq!(report(None).compression(), None);
        let report = StepReport {
            uncompressed_bytes: Some(84_096_320),
            compress_ms: Some(1.5),
            ..report(Some(timing(8.0)))
        };
        let line = report.compression().unwrap();
        assert!(line.contains("84.096 MB") && line.contains("12.5%") && line.contains("1.500 ms"), "{line}");
    }
}

#[cfg(test)]
mod product_tests {
    use super::*;

    #[test]
    fn the_speed_of_a_product_is_plausible() {
        let speed = product_flop_per_second(&product_times(&Device::flex(), 2)).unwrap();
        // A wide range that any machine passes. It catches 0, and results that are too high by a factor of a
        // million.
        assert!(speed > 0.0 && speed < 1e14, "{speed}");
    }
}
