//! `mpiburn train`: puts a training together and writes down what came of it.

mod prepare;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::checkpoint;
use super::collective::primitives;
use super::outcome::{Ended, describe, print_header, print_results, summarize};
use super::progress::Progress;
use crate::cli::TrainArgs;
use crate::config::{self, ConfigError, RunConfig};
use crate::data::{self, ShardPlan, Split};
use crate::machine::{self, CpuTime};
use crate::model::Network;
use crate::record::{DataRecord, Recorder, RunDir, Status, now};
use crate::stop::StopRequest;
use crate::train::{TrainError, Trainer};
use burn_mpi::{Backend, Launcher, ParamLayout, World, connect};

pub fn run(world: &World, args: &TrainArgs) -> anyhow::Result<()> {
    // MPI has started before; the run counts from the start of the process.
    let entered = Instant::now();
    let started = entered.checked_sub(machine::process_age()).unwrap_or(entered);
    let typed = match args.resume {
        Some(_) => None,
        None => Some(RunConfig::try_from(args)?),
    };
    warn_of_ignored_options(args, world);
    check_world_size(args, world)?;
    let (config, resumed) = world.agree(configure(args, typed, world))?;
    check_same_program(&config, args.resume.is_some(), world)?;
    let (config, resumed) = world.broadcast(&(config, resumed))?;
    config.check_built()?;
    world.set_deadline(Duration::from_secs_f64(config.comm_timeout));
    super::use_threads(config.threads)?;
    config.conv.use_algorithm();
    super::agree_on_products(world, config.precision)?;

    let source = world.agree(data::open(&config.data_root))?;
    let options = config.train_options();
    let plan = options.plan(source.as_ref(), Split::Train, world.size());
    check_data(&config, &plan, source.as_ref())?;
    let classes = source.description().classes;
    let device = config.device.device().autodiff();
    let network = Network::with_options(config.model, &config.network, classes, config.seed, &device)
        .fused(config.fused);
    let quantizer = config.quantizer(&network)?;
    let layout = ParamLayout::of(&network);
    world.check_equal("the network's parameters", &layout.describe())?;
    let mut record = describe(&config, &layout, world)?;
    let (dir, network, saved) = checkpoint::agree_or_refuse(
        world,
        prepare::prepare(args, &config, world, &layout, network, resumed, &record),
    )?;
    print_header(world, &record, &plan);

    let collective = connect(world, config.backend, &config.transport())?;
    if config.backend != Backend::Mpi {
        world.exchange_over(primitives(world, config.backend, &config.transport())?);
    }
    record.connection = collective.connection();
    let mut data = DataRecord {
        train_sha256: String::new(),
        train_samples: plan.samples,
        train_available: source.len(Split::Train),
        test_samples: options.plan(source.as_ref(), Split::Test, world.size()).samples,
        test_available: source.len(Split::Test),
    };
    let stop = StopRequest::listen().context("cannot listen to signals")?;
    let mut trainer = Trainer::new(world, &options, source, network, quantizer, collective, stop)?;
    if let Some(checkpoint) = prepare::share(world, saved)? {
        trainer.restore(checkpoint)?;
    }
    data.train_sha256 = trainer.data_sha256().to_owned();
    record.data = Some(data);
    let position = trainer.position();
    let earlier = position.seconds();
    if world.is_root() && position.step > 0 {
        log::info!("going on after step {}, in epoch {}", position.step, position.epoch + 1);
    }
    let recorder = Recorder::open(world, dir.clone(), position.step, &position.history);
    let mut recorder = world.agree(recorder)?;
    let mut progress = Progress::new(world.is_root(), &plan, config.epochs, position.step);
    trainer.count_start_up(started.elapsed());
    let before = CpuTime::now();
    if let Err(error) = trainer.run(&mut recorder, &mut progress) {
        let stopped = matches!(error, TrainError::Stopped { .. });
        if let Some(dir) = &dir {
            record.status = if stopped { Status::Stopped } else { Status::Failed };
            record.error = Some(error.to_string());
            record.ended_at = Some(now());
            dir.write_record(&record)?;
        }
        if stopped {
            // MPICH's ranks were seen to wait for each other forever where some
            // shut down while others still had messages on the way.
            world.barrier()?;
        }
        return Err(error.into());
    }

    progress.finish();
    let cpu = CpuTime::now().since(before);
    let ended = Ended { cpu, total_seconds: earlier + started.elapsed().as_secs_f64() };
    let results = summarize(world, &trainer, &plan, &config, &ended)?;
    record.status = Status::Completed;
    record.ended_at = Some(now());
    if let Some(dir) = &dir {
        print_results(&trainer.position().history, &results, &trainer.sync_report(), dir);
        record.results = Some(results);
        dir.write_record(&record)?;
    }
    world.barrier()?;
    Ok(())
}

/// Options beside `--resume` have no effect, which a warning says.
fn warn_of_ignored_options(args: &TrainArgs, world: &World) {
    let ignored: Vec<String> = args
        .typed
        .iter()
        .filter(|id| !["resume", "quiet", "verbose"].contains(&id.as_str()))
        .map(|id| format!("--{}", id.replace('_', "-")))
        .collect();
    if args.resume.is_some() && world.is_root() && !ignored.is_empty() {
        log::warn!(
            "--resume takes everything from the run's own run.json; without effect: {}",
            ignored.join(" ")
        );
    }
}

fn check_world_size(args: &TrainArgs, world: &World) -> anyhow::Result<()> {
    match args.world_size {
        Some(n) if n != world.size() && Launcher::detect().is_none() => Err(ConfigError::new(
            "world-size",
            n,
            format!(
                "no launcher started this process, and ranks started by hand form no MPI job; start them together: \
                 mpirun -n {n} --bind-to core mpiburn train …, or mpiburn launch 1x{n} -- train …"
            ),
        )
        .into()),
        Some(n) if n != world.size() => Err(ConfigError::new(
            "world-size",
            n,
            format!(
                "mpirun started {} ranks; leave the option out or start {n} (mpirun -n {n})",
                world.size()
            ),
        )
        .into()),
        _ => Ok(()),
    }
}

/// All ranks have to run the same program with the same options; where they do
/// not, the error names rank, host and field.
pub(super) fn check_same_program(config: &RunConfig, resumed: bool, world: &World) -> anyhow::Result<()> {
    let version = format!("{} of {}", env!("CARGO_PKG_VERSION"), env!("MPIBURN_GIT"));
    world.check_equal("the version of mpiburn", &version)?;
    // On a resumed run, rank 0 alone has read the options.
    if !resumed {
        let fields = serde_json::to_value(config)?;
        for (name, value) in fields.as_object().into_iter().flatten() {
            world.check_equal(&format!("--{}", name.replace('_', "-")), &value.to_string())?;
        }
    }
    Ok(())
}

/// The run's configuration and, where it goes on, its folder. Read by rank 0.
fn configure(
    args: &TrainArgs,
    typed: Option<RunConfig>,
    world: &World,
) -> anyhow::Result<(RunConfig, Option<PathBuf>)> {
    let (None, Some(path)) = (&typed, &args.resume) else {
        return typed.map(|config| (config, None)).context("no configuration");
    };
    if !world.is_root() {
        // Replaced by rank 0's, whose disk the run directory is on.
        let placeholder = RunConfig::try_from(&TrainArgs { resume: None, ..args.clone() })?;
        return Ok((placeholder, None));
    }
    let (_, record) = RunDir::open::<RunConfig>(path)
        .with_context(|| format!("--resume {}: not a run directory", path.display()))?;
    ensure!(
        record.world_size == world.size(),
        "--resume {}: the run has {} ranks and this job {}; start it with mpirun -n {}",
        path.display(),
        record.world_size,
        world.size(),
        record.world_size
    );
    Ok((record.config, Some(path.clone())))
}

/// The network takes samples of one shape.
pub(super) fn check_shape(config: &RunConfig, source: &dyn data::SampleSource) -> Result<(), ConfigError> {
    let (shape, expected) = (source.description().shape, config.model.input_shape());
    if shape != expected {
        return Err(ConfigError::new(
            "model",
            config.model,
            format!("takes images of {expected:?}, and {} has {shape:?}", config.data_root.display()),
        ));
    }
    Ok(())
}

fn check_data(config: &RunConfig, plan: &ShardPlan, source: &dyn data::SampleSource) -> anyhow::Result<()> {
    check_shape(config, source)?;
    config::check_data(&config.recipe, &config.data_root, source.description())?;
    let classes = source.description().classes;
    if let Some(n) = config.num_classes
        && n != classes
    {
        return Err(ConfigError::new("num-classes", n, format!("the data set has {classes} classes")).into());
    }
    let known = config.train_samples.unwrap_or(usize::MAX).min(source.len(Split::Train));
    if let Some(n) = config.quantization.calibration.filter(|&n| n > known) {
        let problem = format!("the run trains on {known} samples; name at most as many");
        return Err(ConfigError::new("calibration", n, problem).into());
    }
    for (split, option) in [(Split::Train, config.train_samples), (Split::Test, config.test_samples)] {
        let samples = option.map_or(usize::MAX, |n| n).min(source.len(split));
        if samples < plan.world_size {
            return Err(ConfigError::new(
                "data-root",
                config.data_root.display(),
                format!(
                    "{samples} {} samples for {} ranks; use fewer ranks or more samples",
                    if split == Split::Train { "training" } else { "test" },
                    plan.world_size
                ),
            )
            .into());
        }
    }
    Ok(())
}
