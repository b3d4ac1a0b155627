//! `mpiburn bench step`: breakdown of the time of one training step.

use std::time::{Duration, Instant};

use super::median_ms;
use super::product::Product;
use super::step_report::{StepReport, Timing};
use crate::cli::StepArgs;
use crate::config::{ConfigError, RunConfig};
use crate::data::shard::Order;
use crate::data::synthetic::Synthetic;
use crate::data::{SampleSource, Shard, ShardPlan, Split};
use crate::model::{ModelKind, Network};
use crate::record::StepMs;
use crate::report;
use crate::train::{Learner, StepTimes};
use burn_fused::memory::counting_allocator::allocations;
use burn_mpi::{World, connect, page_faults, topology};

/// Number of different batches, used in turn: a single one would be memorised, and a
/// loss of 0 has gradients unlike those of training.
const BATCHES: usize = 16;
/// Steps before the first that is timed: the probe step and the first allocations.
const WARM_UP: usize = 3;
/// Steps between changes of mode; modes with and without overlap alternate, so that a
/// change in the machine's speed affects both.
const TURN: usize = 5;
/// Number of matrix products before the steps, and after them.
const PRODUCTS: usize = 5;

/// Times of the steps on this rank.
#[derive(Default)]
struct Measured {
    times: StepTimes,
    steps: Vec<Duration>,
    allocations: u64,
    page_faults: u64,
}

/// Measures `--steps` steps, and as many without overlap.
pub fn run(world: &World, args: &StepArgs) -> anyhow::Result<()> {
    let config = RunConfig::try_from(&args.train)?;
    if args.steps == 0 {
        return Err(ConfigError::new("steps", 0, "must be at least 1").into());
    }
    let json = args.json.as_ref().filter(|_| world.is_root());
    world.agree(json.map_or(Ok(()), |path| report::check_writable(path)))?;
    world.set_deadline(Duration::from_secs_f64(config.comm_timeout));
    super::super::use_threads(config.threads)?;
    let device = config.device.device();
    let classes = classes(config.model);
    let global = config.train_batch_size * world.size();
    let plan = ShardPlan {
        samples: BATCHES * global,
        world_size: world.size(),
        batch_size: config.train_batch_size,
    };
    let source = Synthetic::new(config.model.input_shape(), classes, plan.samples);
    let shard = world.agree(Shard::load(&source, Split::Train, &plan, world.rank(), Order::File))?;
    let training = device.clone().autodiff();
    let network = Network::with_options(config.model, &config.network, classes, config.seed, &training)
        .fused(config.fused);
    let collective = connect(world, config.backend, &config.transport())?;
    let mut learner = Learner::new(world, &config, source.description(), network, collective)?;

    let mut product = Product::new(&device);
    product.measure(PRODUCTS);
    let mut batches =
        (0..BATCHES).cycle().map(|i| shard.samples(i * config.train_batch_size, config.train_batch_size));
    let mut next = || batches.next().unwrap_or_default();
    for _ in 0..WARM_UP {
        let (bytes, labels) = next();
        learner.step(bytes, labels, global, false)?;
    }
    // One rank has no communication, with or without overlap.
    let modes: &[bool] = if world.size() == 1 { &[true] } else { &[true, false] };
    let mut measured: Vec<Measured> = modes.iter().map(|_| Measured::default()).collect();
    while measured[0].steps.len() < args.steps {
        for (measured, &overlap) in measured.iter_mut().zip(modes) {
            learner.sync.set_overlap(overlap)?;
            world.barrier()?;
            let (before, faults) = (learner.times(), page_faults());
            for _ in 0..TURN.min(args.steps - measured.steps.len()) {
                let (bytes, labels) = next();
                let (began, allocated) = (Instant::now(), allocations());
                learner.step(bytes, labels, global, false)?;
                let took = began.elapsed();
                measured.allocations += allocations() - allocated;
                measured.steps.push(took);
            }
            measured.page_faults += page_faults() - faults;
            measured.times = sum(measured.times, difference(learner.times(), before));
        }
    }
    product.measure(PRODUCTS);

    let with = &measured[0];
    let steps = with.steps.len() as f64;
    let shared =
        [with.allocations as f64 / steps, with.page_faults as f64 / steps, product.flop_per_second()];
    let [allocations, page_faults, product] = mean_over_ranks(world, shared)?;
    let report = StepReport {
        model: config.model,
        train_batch_size: config.train_batch_size,
        ranks: world.size(),
        topology: topology(world.places()),
        backend: config.backend.to_string(),
        device: config.device,
        fused: config.fused,
        threads: config.threads,
        steps: args.steps,
        overlap_on: timing(world, with)?,
        overlap_off: measured.get(1).map(|without| timing(world, without)).transpose()?,
        allocations_per_step: allocations,
        page_faults_per_step: page_faults,
        flop_per_step: config.model.step_flop(&config.network, classes, config.train_batch_size),
        product_flop_per_s: product,
    };
    if world.is_root() {
        report.print();
    }
    if let Some(path) = json {
        report.write_json(path)?;
    }
    Ok(())
}

/// Classes of the random samples: those of the model's data set.
fn classes(model: ModelKind) -> usize {
    match model {
        ModelKind::Convnet | ModelKind::Vgg => 10,
        ModelKind::Mlp => 20,
    }
}

/// Milliseconds per step, mean over all ranks.
fn timing(world: &World, measured: &Measured) -> anyhow::Result<Timing> {
    let steps = measured.steps.len() as f64;
    let mean = |time: Duration| 1e3 * time.as_secs_f64() / steps;
    let times = &measured.times;
    let [data, forward, backward, copy, exposed, optimizer, mean, median] = mean_over_ranks(
        world,
        [
            mean(times.data),
            mean(times.forward),
            mean(times.backward),
            mean(times.comm.copy),
            mean(times.comm.exposed),
            mean(times.optimizer),
            mean(measured.steps.iter().sum()),
            median_ms(&measured.steps),
        ],
    )?;
    Ok(Timing { parts: StepMs { data, forward, backward, copy, exposed, optimizer }, mean, median })
}

fn mean_over_ranks<const N: usize>(world: &World, mine: [f64; N]) -> anyhow::Result<[f64; N]> {
    let mut sums = mine;
    world.sum_f64(&mut sums)?;
    Ok(sums.map(|sum| sum / world.size() as f64))
}

fn difference(after: StepTimes, before: StepTimes) -> StepTimes {
    combine(after, before, |a, b| a - b)
}

fn sum(a: StepTimes, b: StepTimes) -> StepTimes {
    combine(a, b, |a, b| a + b)
}

fn combine(a: StepTimes, b: StepTimes, with: fn(Duration, Duration) -> Duration) -> StepTimes {
    let mut out = a;
    out.data = with(a.data, b.data);
    out.forward = with(a.forward, b.forward);
    out.backward = with(a.backward, b.backward);
    out.comm.copy = with(a.comm.copy, b.comm.copy);
    out.comm.exposed = with(a.comm.exposed, b.comm.exposed);
    out.optimizer = with(a.optimizer, b.optimizer);
    out
}
