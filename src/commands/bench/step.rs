//! `mpiburn bench step`: where the time of one training step goes.

use std::time::{Duration, Instant};

use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};

use crate::cli::TrainArgs;
use crate::comm::{World, connect, guard};
use crate::config::RunConfig;
use crate::data::shard::Order;
use crate::data::synthetic::Synthetic;
use crate::data::{SampleSource, Shard, Split};
use crate::model::Network;
use crate::train::{Learner, StepTimes};

/// Classes of the noise that is trained on.
const CLASSES: usize = 10;
/// Steps before the first that counts: the probe, and memory being laid out.
const WARM_UP: usize = 3;
/// Steps of one turn; turns with and without overlap alternate, so that a
/// machine that changes its speed changes both.
const TURN: usize = 5;

/// Mean times of a step in milliseconds, and each step's whole time.
#[derive(Default)]
struct Measured {
    times: StepTimes,
    steps: Vec<Duration>,
}

/// Measures `steps` steps, and as many without overlap.
pub fn run(world: &World, args: &TrainArgs, steps: usize) -> anyhow::Result<()> {
    let config = RunConfig::try_from(args)?;
    guard::start(world, Duration::from_secs_f64(config.comm_timeout), config.backend.name())?;
    super::super::use_threads(config.threads)?;
    let global = config.train_batch_size * world.size();
    let source = Synthetic::new(config.model.input_shape(), CLASSES, global);
    let plan = config.plan(&source, Split::Train, world.size());
    let shard = world.agree(Shard::load(&source, Split::Train, &plan, world.rank(), Order::File))?;
    let network = Network::init(config.model, CLASSES, config.seed, &config.device.device().autodiff())
        .fused(config.fused);
    let collective = connect(world, config.backend, &config.transport())?;
    let mut learner = Learner::new(world, &config, source.description(), network, collective)?;

    let (bytes, labels) = shard.samples(0, config.train_batch_size);
    for _ in 0..WARM_UP {
        learner.step(bytes, labels, global, false)?;
    }
    let (mut with, mut without) = (Measured::default(), Measured::default());
    while with.steps.len() < steps {
        for (measured, overlap) in [(&mut with, true), (&mut without, false)] {
            learner.sync.set_overlap(overlap);
            world.barrier()?;
            let before = learner.times();
            for _ in 0..TURN {
                let began = Instant::now();
                learner.step(bytes, labels, global, false)?;
                measured.steps.push(began.elapsed());
            }
            measured.times = sum(measured.times, difference(learner.times(), before));
        }
    }
    report(world, &config, &with, &without)
}

/// The table, from all ranks' means.
fn report(world: &World, config: &RunConfig, with: &Measured, without: &Measured) -> anyhow::Result<()> {
    let rows = |measured: &Measured| {
        let mean = |time: Duration| 1e3 * time.as_secs_f64() / measured.steps.len() as f64;
        let times = &measured.times;
        [
            mean(times.data),
            mean(times.forward),
            mean(times.backward),
            mean(times.comm.copy),
            mean(times.comm.exposed),
            mean(times.optimizer),
            median_ms(&measured.steps),
        ]
    };
    let on = mean_over_ranks(world, rows(with))?;
    let off = mean_over_ranks(world, rows(without))?;
    if !world.is_root() {
        return Ok(());
    }
    let hidden = off[4] - on[4];
    let names = [
        "data",
        "forward",
        "backward",
        "copy of gradients",
        "communication, exposed",
        "optimizer",
        "whole step (median)",
    ];
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header([
        "ms per step, mean over ranks",
        "overlap on",
        "overlap off",
    ]);
    for ((name, on), off) in names.iter().zip(on).zip(off) {
        table.add_row([(*name).to_owned(), format!("{on:.3}"), format!("{off:.3}")]);
    }
    println!("{table}");
    println!(
        "{} at batch {}, {} ranks, backend {}: communication {:.3} ms, hidden {:.3} ms ({:.0}%), exposed {:.3} ms ({:.1}% of the step)",
        config.model,
        config.train_batch_size,
        world.size(),
        config.backend,
        off[4],
        hidden,
        100.0 * hidden / off[4].max(f64::MIN_POSITIVE),
        on[4],
        100.0 * on[4] / on[6],
    );
    Ok(())
}

fn mean_over_ranks<const N: usize>(world: &World, mine: [f64; N]) -> anyhow::Result<[f64; N]> {
    let mut sums = mine;
    world.sum_f64(&mut sums)?;
    Ok(sums.map(|sum| sum / world.size() as f64))
}

fn median_ms(steps: &[Duration]) -> f64 {
    let mut sorted = steps.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).map_or(0.0, |time| 1e3 * time.as_secs_f64())
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
