//! `mpiburn profile`: measures the time and memory of each operator, in inference or in training.

mod int8;
mod output;
mod select;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use burn_mpi::{BucketReport, World};

pub(super) use self::select::check;
use super::bench::median_ms;
use super::subject::{BatchCycle, Subject, int8_bytes, learner};
use super::trace::{self, Tracing};
use super::{agree_on_products, on_root, outputs};
use crate::machine;
use crate::model::Network;
use crate::options::{ProfileArgs, RunConfig};
use crate::profile::MeasuredProfile;
use crate::spans::{self, SpanRecorder, begin_batch, end_batch};
use burn_fused::simd::Level;
use data::Split;
use run_report::write_csv;

/// Number of pairs of batches before the first measured pair. A pair is a batch with profiling and a batch
/// without profiling. The first training step learns the order of gradients. The second step groups the
/// gradients into buckets by this order. The first two steps are therefore not like later steps.
const WARM_UP: usize = 3;

/// Times of whole batches: first with profiling, then without profiling.
type Times = [Vec<Duration>; 2];

pub fn run(world: &World, args: &ProfileArgs) -> anyhow::Result<()> {
    check_outputs(world, args)?;
    let traced = trace::steps(&args.trace, 0, args.batches)?;
    let subject = select::subject(world, args)?;
    let config = subject.config.clone();
    let split = if args.train { Split::Train } else { Split::Test };
    let mut batches = BatchCycle::open(world, &config, &subject.source, split)?;
    trace::check_writable(world, &args.trace)?;
    let checkpoint_bytes = match &subject.int8 {
        Some(int8) => int8_bytes(int8)?,
        None => subject.float_bytes()?,
    };
    agree_on_products(world, &config)?;
    let start = |steps| Tracing::start(world, &args.trace, steps, &config);
    let tracing = traced.map(start).transpose()?;
    SpanRecorder::new(tracing.as_ref().map(Tracing::log)).start();
    let (times, buckets) = measure(world, args, subject, &mut batches)?;
    let recorder = SpanRecorder::stop().unwrap_or_default();
    if let Some(tracing) = tracing {
        tracing.finish(world, &recorder)?;
    }
    if !world.is_root() {
        return Ok(());
    }
    let profile = MeasuredProfile::new(&recorder, &buckets, world.size(), args.batches);
    let [batch_ms, batch_ms_without_profiling] = times.map(|times| median_ms(&times));
    let file = run_record::profile::Profile {
        path: PathBuf::new(),
        model: config.model.to_string(),
        train: args.train,
        int8: args.int8,
        batches: args.batches,
        batch: config.data.train_batch_size.get(),
        ranks: world.size(),
        device: config.device.to_string(),
        precision: config.precision.to_string(),
        fused: config.fused,
        threads: config.threads.get(),
        simd: Level::current().to_string(),
        checkpoint: args.run.path().map(|path| path.display().to_string()),
        checkpoint_bytes: checkpoint_bytes as u64,
        cpu: machine::of_this_process("").cpu,
        config,
        wall_ms: profile.wall_ms,
        accounted_percent: profile.accounted_percent(),
        batch_ms,
        batch_ms_without_profiling,
        operators: profile.by_operator(args.sort),
    };
    output::print(&file, &profile, args.sort);
    if let Some(path) = &args.csv {
        write_csv(path, &file.operators)?;
    }
    outputs::write_json(args.json.as_deref(), &file)
}

/// Checks the output files on rank 0, which writes them. On other hosts, the same path may lead to another
/// file.
fn check_outputs(world: &World, args: &ProfileArgs) -> anyhow::Result<()> {
    let read = [args.run.path(), args.config.init.as_ref()];
    let files = [("csv", &args.csv), ("json", &args.json), ("trace", &args.trace.trace)];
    let files @ [csv, json, _] = files.map(|(option, path)| (option, path.as_ref()));
    on_root(world, || outputs::check_names(&files, &read).and_then(|()| outputs::check(&[csv, json], &read)))
        .map(drop)
}

/// Profiles inference or training, as the options say. Returns the times and the buckets. Inference has no
/// buckets.
fn measure(
    world: &World,
    args: &ProfileArgs,
    subject: Subject,
    batches: &mut BatchCycle,
) -> anyhow::Result<(Times, Vec<BucketReport>)> {
    let Subject { config, network, source, int8 } = subject;
    match (args.train, int8) {
        (true, _) => {
            let device = config.device.device().autodiff();
            let fresh = config.network(source.description().into(), &device);
            let layout = fresh.parameters();
            let network = layout.write(fresh, &layout.read(&network));
            training(world, &config, network, batches, args.batches)
        }
        (false, Some(int8)) => Ok((int8::profile(int8, batches, args.batches)?, Vec::new())),
        (false, None) => Ok((inference(&config, &network, batches, args.batches)?, Vec::new())),
    }
}

/// Profiles inference.
fn inference(
    config: &RunConfig,
    network: &Network,
    source: &mut BatchCycle,
    batches: usize,
) -> anyhow::Result<Times> {
    let device = config.device.device();
    alternate(batches, || {
        let samples = source.next()?;
        let (images, _) = spans::span(&spans::BATCH, || samples.batch(0..samples.count(), &device));
        drop(spans::forward(|| network.forward(images)));
        Ok(())
    })
}

/// Profiles training steps, in which all ranks take part.
fn training(
    world: &World,
    config: &RunConfig,
    network: Network,
    source: &mut BatchCycle,
    batches: usize,
) -> anyhow::Result<(Times, Vec<BucketReport>)> {
    let mut learner = learner(world, config, network)?;
    let total = config.data.train_batch_size.get() * world.size();
    world.barrier()?;
    let times = alternate(batches, || {
        learner.sync.watch(spans::watcher())?;
        learner.step(&source.next()?, total, false)?;
        Ok(())
    })?;
    spans::log_buckets(&learner.sync);
    Ok((times, learner.sync.report().buckets))
}

/// Runs `batch` in turn with this thread's span recorder and without it. The first [`WARM_UP`] pairs of runs
/// are not timed. The next `batches` pairs are timed.
fn alternate(batches: usize, mut batch: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<Times> {
    let mut times = [Vec::with_capacity(batches), Vec::with_capacity(batches)];
    let mut away = None;
    for number in 0..WARM_UP + batches {
        if number == WARM_UP
            && let Some(mut recorder) = SpanRecorder::stop()
        {
            recorder.clear();
            recorder.start();
        }
        // The first run of each pair has colder caches, so the order alternates.
        for on in [number % 2 == 0, number % 2 == 1] {
            if !on {
                away = SpanRecorder::stop();
            }
            let began = Instant::now();
            begin_batch();
            batch()?;
            end_batch();
            let took = began.elapsed();
            if let Some(recorder) = away.take() {
                recorder.start();
            }
            if number >= WARM_UP {
                times[usize::from(!on)].push(took);
            }
        }
    }
    Ok(times)
}
