//! `mpiburn train`: prepares a training, runs it and records its results.

mod prepare;
mod resume;

use std::time::Instant;

use anyhow::Context;

use super::checkpoint::Noted;
use super::memory;
use super::outcome::{describe, print_compression, print_header, print_results, summarize};
use super::progress::{TrainingProgress, learning_rate};
use super::trace::{self, Tracing};
use super::{on_root, program};
use crate::machine::{self, CpuTime};
use crate::options::{RunConfig, RunRecord, TrainArgs};
use crate::spans::SpanRecorder;
use crate::train::{
    BackendKind, Recorder, Schedule, ScheduleKind, Setup, TrainError, Trainer, read_rank_tensors,
};
use crate::values::{self, Positive};
use burn_mpi::{Collective, ShardPlan, World};
use data::{Description, SampleSource, Split};
use launch::StopRequest;
pub(super) use prepare::check_size;
use prepare::{Begin, check_data, check_world_size, clip_limits};
use resume::Resumed;
use run_record::{DataRecord, Origin, RunDir, RunWriter, Start, Status, StepFile, count, now, quoted};

pub fn run(world: &World, args: &TrainArgs, stop: StopRequest) -> anyhow::Result<()> {
    let mut begun = None;
    let ended = phases(world, args, stop, &mut begun);
    if let (Err(error), Some(dir)) = (&ended, begun) {
        prepare::note_failure(&dir, error);
    }
    ended
}

/// Runs all phases of a training. On rank 0, sets `begun` to the directory of a new run as soon as the
/// directory exists, so that the caller can record a failure in it.
fn phases(
    world: &World,
    args: &TrainArgs,
    stop: StopRequest,
    begun: &mut Option<RunDir>,
) -> anyhow::Result<()> {
    // The time of the run counts from the start of the process, because MPI has started before this line.
    let entered = Instant::now();
    let started = entered.checked_sub(machine::process_age()).unwrap_or(entered);
    let Agreed { config, resumed, noted, source, plan, total } = agree(world, args)?;
    let dimensions = source.description().into();
    memory::check_weights(world, &config, dimensions)?;
    let network = config.network(dimensions, &config.device.device().autodiff());
    let quantizer = config.quantizer(&network)?;
    let layout = network.parameters();
    config.check_fragments(&layout)?;
    config.check_compression_of(&layout)?;
    memory::check_step(world, &config, &network, plan.batch_len(0, 0), true)?;

    let mut record = describe(&config, &layout, world)?;
    let begin = on_root(world, || prepare::prepare(args, &layout, resumed, &mut record, plan.steps()))?;
    let mut begin = begin.unwrap_or_default();
    *begun = begin.dir.clone().filter(|_| args.resume.is_none() && !begin.replaces);
    if trace_is_in_run(args) {
        trace::check_writable(world, &args.trace)?;
    }
    print_header(world, &record, &plan, dimensions);
    print_compression(world, &config, &layout);
    (begin.complete, begin.samples) = world.broadcast(&(begin.complete, begin.samples))?;
    // Only rank 0 has weights; the trainer broadcasts them.
    let network = match begin.weights.take() {
        Some(weights) => layout.write(network, &weights),
        None => network,
    };
    let collective = connect(world, &config)?;
    record.connection = collective.connection();
    let checkpoint = world.broadcast(&begin.checkpoint.take())?;
    let done = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.position.step);
    let traced = trace::steps(&args.trace, done, total)?;
    if let Some(Noted { data: noted, .. }) = &noted {
        let root = &config.data.data_root;
        let remedy = format!("accept the changed one by adding --data-root {}", root.display());
        for split in Split::ALL {
            begin.samples.check(world, &source, noted, split, root, &remedy)?;
        }
    }
    let tracing = traced.map(|steps| Tracing::start(world, &args.trace, steps, &config)).transpose()?;
    if let Some(tracing) = &tracing {
        SpanRecorder::of_training(tracing.log()).start();
    }
    let setup = Setup { source, network, quantizer, collective, stop };
    let mut trainer = Trainer::new(world, &config, setup)?;
    if let Some(checkpoint) = checkpoint {
        let own = read_rank_tensors(world, begin.ranks.take().as_ref())?;
        trainer.restore(checkpoint, own, begin.moments.take().as_ref())?;
    }
    record.data = data_record(&trainer);
    // Replace the old run as late as possible. The checks of options, data and memory have passed, and the
    // transport is connected. After this line, the start only writes files to the run directory.
    let emptied = match &begin.dir {
        Some(dir) if begin.replaces => dir.begin(&record).map(|()| *begun = Some(dir.clone())),
        _ => Ok(()),
    };
    world.agree(emptied)?;
    train(args, started, begin, record, trainer, tracing)
}

/// The configuration of a training, checked against its data set. All fields except `resumed` are equal on
/// all ranks.
struct Agreed {
    config: RunConfig,
    /// With `--resume`: the opened run; `None` except on rank 0.
    resumed: Option<Resumed>,
    /// With `--resume`: the run's own record of its data set.
    noted: Option<Noted>,
    source: SampleSource,
    plan: ShardPlan,
    /// Steps of the whole run.
    total: usize,
}

/// Determines the configuration, opens the data set, and checks the options against it.
fn agree(world: &World, args: &TrainArgs) -> anyhow::Result<Agreed> {
    let (mut config, resumed, noted) = configure(world, args)?;
    let mut source = super::open_data(world, &config.data.data_root)?;
    if let Some(noted) = &noted {
        noted.check_dimensions(&config, source.description(), args.typed.has("data-root"))?;
        if args.typed.has("data-root") {
            source = noted.as_trained(world, &config, source)?;
        }
    }
    // `is_noted` must be equal on all ranks. So it is computed from options, not from `resumed`, which only
    // rank 0 has.
    let is_noted = args.resume.is_none() || !args.typed.of_runs().0.is_empty();
    clip_limits(world, &mut config, &source, is_noted);
    let plan = config.plan(&source, Split::Train, world.size());
    let total = check_data(&config, &plan, &source)?;
    trace::steps(&args.trace, 0, total)?;
    match (&args.trace.trace, &args.out) {
        (Some(file), Some(out)) if trace_is_in_run(args) => trace::check_in_run(file, out)?,
        _ => trace::check_writable(world, &args.trace)?,
    }
    Ok(Agreed { config, resumed, noted, source, plan, total })
}

/// Returns the configuration, which is equal on all ranks, after a check that this build supports it. Sets up
/// this rank for it: deadline, GPU, convolutions and threads. With `--resume`, also returns the opened run
/// (on rank 0 only) and the run's record of its data set.
fn configure(world: &World, args: &TrainArgs) -> anyhow::Result<(RunConfig, Option<Resumed>, Option<Noted>)> {
    check_world_size(args, world)?;
    let (config, resumed, noted) = match &args.resume {
        None => (args.config.clone().completed()?, None, None),
        Some(path) => {
            let (read, resumed) = on_root(world, || Resumed::open(path, args, world))?.unzip();
            let (config, noted) = world.broadcast(&read)?.context("rank 0 sent no configuration")?;
            (config, resumed, Some(noted))
        }
    };
    config.check_built()?;
    super::set_up(world, &config)?;
    super::agree_on_products(world, &config)?;
    Ok((config, resumed, noted))
}

/// Connects the transport of the gradients.
fn connect(world: &World, config: &RunConfig) -> anyhow::Result<Box<dyn Collective>> {
    let (backend, transport, gpu) = (config.communication.backend, config.transport(), config.device.gpu());
    let collective = backend.connect(world, &transport, gpu)?;
    // Over gloo, small exchanges also run over gloo. With NCCL, they stay on MPI: a second communicator would
    // compete with the first one on the GPU.
    if backend == BackendKind::Gloo {
        world.exchange_over(backend.connect_primitives(world, &transport, gpu)?);
    }
    Ok(collective)
}

/// Returns the description of the samples for `run.json`.
fn data_record(trainer: &Trainer<'_>) -> DataRecord {
    let (source, test) = (&trainer.source, &trainer.evaluation.shard);
    let Description { shape, element, classes, class_names, mean, std, .. } = source.description().clone();
    let imported = source.imported();
    DataRecord {
        train_sha256: trainer.shard.digest().to_owned(),
        train_samples: trainer.plan.samples,
        train_available: source.len(Split::Train),
        test_samples: trainer.learner.options.plan(source, Split::Test, trainer.world.size()).samples,
        test_available: source.len(Split::Test),
        test_largest_class: test.class_counts().iter().copied().max().unwrap_or_default(),
        shape,
        classes,
        class_names,
        element: element.to_string(),
        mean,
        std,
        fit: imported.and_then(|set| set.fit).map(|fit| values::name(&fit)),
        features: imported.map(|set| set.features.clone()).unwrap_or_default(),
    }
}

/// Whether the file of `--trace` is in the run directory.
fn trace_is_in_run(args: &TrainArgs) -> bool {
    args.out.as_ref().zip(args.trace.trace.as_ref()).is_some_and(|(out, file)| file.starts_with(out))
}

/// Trains from the first step or from a checkpoint, and records the results.
fn train(
    args: &TrainArgs,
    started: Instant,
    begin: Begin,
    mut record: RunRecord,
    mut trainer: Trainer<'_>,
    tracing: Option<Tracing>,
) -> anyhow::Result<()> {
    let Begin { dir, curves, complete, .. } = begin;
    let (world, plan, config, position) = (trainer.world, trainer.plan, &record.config, &trainer.position);
    let earlier_seconds = position.seconds();
    if world.is_root() && !complete {
        say_start(&trainer, config);
    }
    let attempt = record.history.len().saturating_sub(1);
    let origin = Origin { config: serde_json::to_value(config)?, data: trainer.data_digests(), attempt };
    let (step, history) = (position.step, &position.history);
    let has_int8 = config.quantization.quantize.is_some();
    let start = Start { step, history, curves, origin, keep: config.keep.map(Positive::get), has_int8 };
    let mut recorder = world.agree(Recorder::open(world, dir.clone(), start))?;
    if complete {
        // Do not write run.json. It has the measurements of the processes that trained, and this process has
        // no measurements.
        if let Some(dir) = &dir {
            let shown = quoted(dir.path().display());
            let program = quoted(program());
            log::info!("the run is complete after {step} steps; {program} report {shown} shows it");
        }
        return Ok(world.barrier()?);
    }
    // Create the file of `--note-steps` before run.json says that this process has started.
    let noted = dir.as_ref().filter(|_| args.note_steps).map(|dir| StepFile::create(dir, step));
    let steps = world.agree(noted.transpose())?;
    // Write run.json only now, so that a rejected start leaves the run as it was.
    world.agree(dir.as_ref().map_or(Ok(()), |dir| dir.write_record(&record)))?;
    let mut progress = TrainingProgress::new(world.is_root(), &plan, config.epochs.get(), step, steps);
    trainer.position.start_up_seconds += started.elapsed().as_secs_f64();
    let before = CpuTime::now();
    let ended = trainer.run(&mut recorder, &mut progress);
    record.failed_checkpoints = recorder.writer.as_ref().and_then(RunWriter::failed_checkpoint).cloned();
    if let Err(error) = ended {
        return note_end_without_results(world, dir.as_ref(), record, tracing, error);
    }

    progress.complete();
    let cpu = CpuTime::now().since(before);
    let total_seconds = earlier_seconds + started.elapsed().as_secs_f64();
    let results = summarize(&trainer, cpu, total_seconds)?;
    if let Some(dir) = &dir {
        if let (Some(target), Some(false)) = (record.config.recipe.target_accuracy, results.target_reached) {
            log::warn!("target not reached: the accuracy was below {target}% in all tests");
        }
        let is_own = trainer.source.imported().is_some();
        print_results(&trainer.position.history, &results, &trainer.learner, dir, is_own);
    }
    record.status = Status::Completed;
    record.ended_at = Some(now());
    record.results = Some(results);
    world.agree(dir.as_ref().map_or(Ok(()), |dir| dir.write_record(&record)))?;
    if let Some(tracing) = tracing {
        tracing.finish_training(world, Ok(()))?;
    }
    world.barrier()?;
    Ok(())
}

/// Logs the step and epoch at which a resumed run continues. Warns if learning rates are negligible, or if a
/// training on imported data has few steps.
fn say_start(trainer: &Trainer<'_>, config: &RunConfig) {
    let (plan, position) = (trainer.plan, &trainer.position);
    if position.step > 0 {
        let is_done = position.is_done(config.epochs.get(), config.recipe.early_stopping.map(Positive::get));
        log::info!("resuming after step {}", resumed_at(position.step, position.epoch, is_done));
    }
    let first = position.history.first().map_or(0.0, |row| row.learning_rate);
    warn_of_negligible_rates(&trainer.schedule, position.epoch, first);
    if trainer.source.imported().is_some() {
        let warning = few_steps(config.epochs.get(), &plan, config.data.train_batch_size.get());
        warning.into_iter().for_each(|warning| log::warn!("{warning}"));
    }
}

/// Records in run.json that a training stopped or failed, and returns its error.
fn note_end_without_results(
    world: &World,
    dir: Option<&RunDir>,
    mut record: RunRecord,
    tracing: Option<Tracing>,
    error: TrainError,
) -> anyhow::Result<()> {
    let stopped = matches!(error, TrainError::Stopped { .. });
    if let Some(dir) = dir {
        record.status = if stopped { Status::Stopped } else { Status::Failed };
        record.error = Some(error.to_string());
        record.ended_at = Some(now());
        // If this write fails too, for example on a full disk, still return the error that ended the run.
        if let Err(error) = dir.write_record(&record) {
            log::debug!("{error}");
        }
    }
    if let Some(tracing) = tracing {
        tracing.finish_training(world, Err(&error))?;
    }
    if stopped {
        // Without this barrier, MPICH's ranks sometimes waited for each other forever: some shut down while
        // others still had messages in flight.
        world.barrier()?;
    }
    Err(error.into())
}

/// Describes where a resumed run continues: after step `step`, with `epoch` complete epochs. `is_done` is
/// true if no step is left.
fn resumed_at(step: usize, epoch: usize, is_done: bool) -> String {
    if is_done { format!("{step}, the last of the run") } else { format!("{step}, in epoch {}", epoch + 1) }
}

/// Returns a warning if a training on imported data is too short. The default options suit data sets of many
/// thousand samples.
fn few_steps(epochs: usize, plan: &ShardPlan, batch_size: usize) -> Option<String> {
    /// Smallest number of steps without a warning. In experiments, networks learned small tables in 100
    /// steps.
    const FEW: usize = 100;
    let steps = plan.steps();
    let all = epochs * steps;
    // A batch has at most the samples of the rank, so only a batch size below their number gives more steps.
    let batch_size = batch_size.min(plan.batch_len(0, 0));
    let smaller = format!(", or choose --train-batch-size below {batch_size}");
    (all < FEW).then(|| {
        format!(
            "only {} ({} of {}), in which a network learns little: raise --epochs above {epochs}{}",
            count(all, "step"),
            count(epochs, "epoch"),
            count(steps, "step"),
            if batch_size > 1 { &smaller } else { "" }
        )
    })
}

/// Warns if the learning rate becomes so low that epochs change next to nothing. Epochs before `epoch` do not
/// count. In a resumed run, `first` is the learning rate of the run's first epoch; in a new run, it is 0.
fn warn_of_negligible_rates(schedule: &Schedule, epoch: usize, first: f64) {
    let initial = schedule.initial().max(first);
    let Some(from) = schedule.negligible_from(epoch, initial) else { return };
    let epochs = match (from + 1, schedule.epochs) {
        (first, last) if first == last => format!("epoch {last} changes"),
        (first, last) => format!("epochs {first} to {last} change"),
    };
    let lr = schedule.rate(from, schedule.steps.saturating_sub(1)).lr;
    let remedy = match schedule.kind {
        ScheduleKind::Constant => "choose a larger --lr",
        _ if schedule.base.lr == 0.0 => "choose a larger --lr",
        ScheduleKind::OneCycle => "choose a larger --max-lr",
        ScheduleKind::Cosine => "choose a larger --lr, or fewer --epochs",
        ScheduleKind::Step => "choose a larger --step-size or --gamma, or fewer --epochs",
    };
    if lr == 0.0 {
        log::warn!("{epochs} no weights: the learning rate is 0; {remedy}")
    } else {
        log::warn!(
            "{epochs} weights by next to nothing: the learning rate is at most {}, less than a millionth of the initial \
             {}; {remedy}",
            learning_rate(lr),
            learning_rate(initial)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_is_in_an_epoch_that_it_has() {
        assert!(resumed_at(10, 1, false).ends_with("epoch 2"));
        let last = resumed_at(10, 1, true);
        assert!(last.starts_with("10,") && !last.contains('2'), "{last}");
    }

    #[test]
    fn the_warning_of_few_steps_names_a_batch_that_gives_more() {
        let warning =
            |samples, batch_size| few_steps(5, &ShardPlan { samples, world_size: 2, batch_size }, batch_size);
        let text = warning(12, 32).unwrap();
        assert!(text.contains("--epochs above 5") && text.ends_with("--train-batch-size below 6"), "{text}");
        let text = warning(12, 4).unwrap();
        assert!(text.contains("only 10 steps") && text.ends_with("--train-batch-size below 4"), "{text}");
        let text = warning(12, 1).unwrap();
        assert!(text.contains("only 30 steps") && !text.contains("batch"), "{text}");
        assert_eq!(warning(80, 2), None);
    }
}
