//! `mpiburn bench step`: breakdown of the time of one training step.

use std::time::{Duration, Instant};

use super::product::Product;
use super::step_report::{StepReport, Timing};
use super::{median_ms, timed};
use crate::commands::subject::{BATCHES, Batches, learner};
use crate::commands::{agree_on_products, check_random_batch, memory, outputs, set_up, warn_of_ignored};
use crate::data::Split;
use crate::data::generate::Synthetic;
use crate::machine::{page_faults, topology};
use crate::options::{ConfigError, Part, RunConfig, StepArgs, part};
use crate::train::{LabelledBytes, Learner, StepTimes};
use burn_fused::memory::counting_allocator::allocations;
use burn_fused::simd::Level;
use burn_mpi::lab::connect_primitives;
use burn_mpi::{CommError, ParamLayout, World};
use run_record::StepMs;

/// Steps between changes of mode; modes with and without overlap alternate, so that a
/// change in the machine's speed affects both.
const TURN: usize = 5;

/// Times of the steps on this rank.
#[derive(Default)]
struct Measured {
    phases: Vec<StepTimes>,
    steps: Vec<Duration>,
    allocations: u64,
    page_faults: u64,
}

/// Measures `--steps` steps, and as many without overlap.
pub fn run(world: &World, args: &StepArgs) -> anyhow::Result<()> {
    let config = args.config.clone().completed()?;
    let config = &config;
    if let Some(name) = &args.simd {
        select_level(name)?;
    }
    check_random_batch(config)?;
    let does = "bench step measures steps on random samples";
    warn_of_ignored(world, does, &args.typed, |option| part(option) == Part::Run);
    outputs::check_on_root(world, &[("json", args.json.as_ref())], &[])?;
    set_up(world, config)?;
    agree_on_products(world, config)?;
    let (device, classes) = (config.device.device(), config.model.classes());
    let batch = config.data.train_batch_size;
    let network = config.network(classes, &device.clone().autodiff());
    memory::check_step(world, &network, ParamLayout::of(&network).len(), batch)?;
    let global = batch * world.size();
    let source = Synthetic::new(config.model.input_shape(), classes, BATCHES * global);
    let mut batches = Batches::open(world, config, &source, Split::Train)?;
    let flop_per_step = network.flop().of_step(batch);
    let mut learner = learner(world, config, network)?;

    let mut product = (args.products > 0).then(|| Product::new(&device));
    let mut multiply = || product.iter_mut().for_each(|product| product.measure(args.products));
    multiply();
    for _ in 0..args.warm_up {
        learner.step(&batches.next(), global, false)?;
    }
    // One rank has no communication, with or without overlap.
    let modes: &[bool] = if world.size() == 1 { &[true] } else { &[true, false] };
    // Memory for all steps at once: a vector that grows is copied between them, with page faults of its own.
    let empty = || Measured {
        phases: Vec::with_capacity(args.steps),
        steps: Vec::with_capacity(args.steps),
        ..Measured::default()
    };
    let mut measured: Vec<Measured> = modes.iter().map(|_| empty()).collect();
    while measured[0].steps.len() < args.steps {
        for (measured, &overlap) in measured.iter_mut().zip(modes) {
            learner.sync.set_overlap(overlap)?;
            world.barrier()?;
            let (mut before, faults) = (learner.times(), page_faults());
            for _ in 0..TURN.min(args.steps - measured.steps.len()) {
                let samples = batches.next();
                let (began, allocated) = (Instant::now(), allocations());
                measured_step(&mut learner, &samples, global)?;
                let took = began.elapsed();
                measured.allocations += allocations() - allocated;
                measured.steps.push(took);
                let after = learner.times();
                measured.phases.push(after.zip(before, |after, before| after - before));
                before = after;
            }
            measured.page_faults += page_faults() - faults;
        }
    }
    multiply();

    let with = &measured[0];
    let steps = with.steps.len() as f64;
    let speed = product.as_ref().map_or(0.0, Product::flop_per_second);
    let gradient_bytes = learner.sync.report().bytes();
    let gather_ms = gather_ms(world, config, gradient_bytes)?;
    let [allocations_per_step, page_faults_per_step, speed, mean_gather] = mean_over_ranks(
        world,
        [
            with.allocations as f64 / steps,
            with.page_faults as f64 / steps,
            speed,
            gather_ms.unwrap_or_default(),
        ],
    )?;
    let overlap_on = timing(world, with)?;
    let product_flop_per_s = product.map(|_| speed);
    let report = StepReport {
        model: config.model,
        train_batch_size: batch,
        ranks: world.size(),
        topology: topology(world.places()),
        backend: config.communication.backend.to_string(),
        device: config.device,
        precision: config.precision,
        fused: config.fused,
        conv: config.fused.then_some(config.conv),
        threads: config.threads,
        simd: Level::current(),
        steps: args.steps,
        share_of_product: product_flop_per_s.map(|product| overlap_on.per_second(flop_per_step) / product),
        overlap_on,
        overlap_off: measured.get(1).map(|without| timing(world, without)).transpose()?,
        allocations_per_step,
        page_faults_per_step,
        flop_per_step,
        product_flop_per_s,
        gradient_bytes,
        gather_ms: gather_ms.map(|_| mean_gather),
    };
    if world.is_root() {
        report.print();
        outputs::write_json(args.json.as_deref(), &report)?;
    }
    Ok(())
}

/// Median time in ms, on this rank, of an all-gather in which each rank receives as many bytes as in
/// a ring all-reduce of `bytes`: 2(n-1)/n times as many on n ranks. `None` on one rank. All ranks
/// call it with the same number.
fn gather_ms(world: &World, config: &RunConfig, bytes: usize) -> anyhow::Result<Option<f64>> {
    /// Untimed exchanges: the first opens connections, and TCP's window grows over the next.
    const WARM_UP: usize = 3;
    const TIMED: usize = 9;
    if world.size() == 1 || bytes == 0 {
        return Ok(None);
    }
    let mut primitives = connect_primitives(world, config.communication.backend, &config.transport())?;
    let mine = vec![world.rank() as u8; (2 * bytes).div_ceil(world.size())];
    let mut all = vec![0; mine.len() * world.size()];
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..WARM_UP + TIMED {
        // A rank that is late is waited for here, so that only bytes are timed.
        times.push(timed(world, || primitives.all_gather(&mine, &mut all))?);
    }
    Ok(Some(median_ms(&times[WARM_UP..])))
}

/// One measured step. `make icount` counts the instructions between entry and return of the
/// function of this name, so it is never inlined.
#[inline(never)]
fn measured_step(learner: &mut Learner<'_>, samples: &LabelledBytes, total: usize) -> Result<(), CommError> {
    learner.step(samples, total, false).map(|_| ())
}

/// Makes the operators use the SIMD level `name`, one of those up to the level that the ranks
/// have agreed on.
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

/// Milliseconds per step, mean over all ranks. Phases are medians over steps like the whole step: a slow
/// step of thirty in one mode would otherwise count as communication that the other hides.
fn timing(world: &World, measured: &Measured) -> anyhow::Result<Timing> {
    let of_steps: Vec<_> = measured.phases.iter().map(|times| times.into_array()).collect();
    let parts = std::array::from_fn(|phase| {
        median_ms(&of_steps.iter().map(|times| times[phase]).collect::<Vec<Duration>>())
    });
    let parts = mean_over_ranks::<{ StepMs::TITLES.len() }>(world, parts)?;
    let mean = 1e3 * measured.steps.iter().sum::<Duration>().as_secs_f64() / measured.steps.len() as f64;
    let [mean, median] = mean_over_ranks(world, [mean, median_ms(&measured.steps)])?;
    Ok(Timing { parts: StepMs::from_array(parts), mean, median })
}

fn mean_over_ranks<const N: usize>(world: &World, mine: [f64; N]) -> anyhow::Result<[f64; N]> {
    let mut sums = mine;
    world.sum_f64(&mut sums)?;
    Ok(sums.map(|sum| sum / world.size() as f64))
}
