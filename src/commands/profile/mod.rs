//! `mpiburn profile`: time and memory of each operator, in inference and in training.

mod inference;
mod int8;
mod of_run;
mod output;
mod subject;
mod training;

use std::time::{Duration, Instant};

use burn_mpi::World;

use self::output::Output;
use self::subject::Subject;
use super::checkpoint::agree_or_refuse;
use super::outputs;
use super::trace::{self, Tracing};
use crate::machine;
use crate::options::ProfileArgs;
use crate::profile::Profile;
use crate::spans::{Recorder, begin_batch, end_batch};
use burn_fused::simd::Level;

/// Batches before the first that is measured. The second step of a training has other
/// buckets than the first, which learns the order of gradients.
const WARM_UP: usize = 3;

pub fn run(world: &World, args: &ProfileArgs) -> anyhow::Result<()> {
    // Links may differ between hosts; rank 0 writes.
    let read = [args.checkpoint.as_ref(), args.config.init.as_ref()];
    let files = [("csv", &args.csv), ("json", &args.json), ("trace", &args.trace.trace)];
    let files @ [csv, json, _] = files.map(|(option, path)| (option, path.as_ref()));
    let check = || outputs::check_names(&files, &read).and_then(|()| outputs::check(&[csv, json], &read));
    agree_or_refuse(world, if world.is_root() { check() } else { Ok(()) })?;
    let traced = trace::steps(&args.trace, 0, args.batches)?;
    let subject = Subject::open(world, args)?;
    trace::check_writable(world, &args.trace)?;
    let config = subject.config.clone();
    let checkpoint_bytes = subject.stored_bytes()?;
    super::agree_on_products(world, &config)?;
    let start = |steps| Tracing::start(world, &args.trace, steps, &config);
    let tracing = traced.map(start).transpose()?;
    let log = tracing.as_ref().map(Tracing::log);
    let recorder = log.map_or_else(Recorder::default, |log| Recorder::default().with_log(log));
    recorder.start();
    let measured = match (args.train, args.int8) {
        (true, _) => training::profile(world, subject, args.batches)?,
        (false, false) => inference::profile(subject, args.batches)?,
        (false, true) => int8::profile(subject, args.batches)?,
    };
    let Measured { recorder, .. } = &measured;
    if let Some(tracing) = tracing {
        tracing.finish(world, recorder)?;
    }
    if world.is_root() {
        let output = Output {
            model: config.model,
            train: args.train,
            int8: args.int8,
            batches: args.batches,
            batch: config.data.train_batch_size,
            ranks: world.size(),
            device: config.device,
            precision: config.precision,
            fused: config.fused,
            threads: config.threads,
            simd: Level::current(),
            checkpoint: args.checkpoint.clone(),
            checkpoint_bytes,
            cpu: machine::of_this_process("").cpu,
            config,
            sort: args.sort,
            measured,
        };
        output.print();
        output.write([args.csv.as_deref(), args.json.as_deref()])?;
    }
    Ok(())
}

/// What was measured on this rank.
struct Measured {
    profile: Profile,
    recorder: Recorder,
    /// Times of whole batches, with profiling and without.
    profiled: Vec<Duration>,
    plain: Vec<Duration>,
}

/// Runs `batch` with this thread's recorder and without it, in turn: as often as needed to
/// warm up, and then `batches` times with either.
fn alternate<E>(batches: usize, mut batch: impl FnMut() -> Result<(), E>) -> Result<[Vec<Duration>; 2], E> {
    let mut times = [Vec::with_capacity(batches), Vec::with_capacity(batches)];
    let mut away = None;
    for number in 0..WARM_UP + batches {
        if number == WARM_UP
            && let Some(mut recorder) = Recorder::stop()
        {
            recorder.clear();
            recorder.start();
        }
        // Neither is always the first, which has colder caches.
        for on in [number % 2 == 0, number % 2 == 1] {
            if !on {
                away = Recorder::stop();
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
