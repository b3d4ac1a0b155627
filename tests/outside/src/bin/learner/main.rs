//! Trains with burn-train over MPI, and compares the result with burn-train alone or with plain Burn:
//! `mpirun -n N learner [one-step|uneven|workers|resume|early|alone|fail|panic|few|other|batch|ahead|optimizer] FOLDER`.

mod task;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamConfig, GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use burn::train::metric::LossMetric;
use burn::train::metric::store::{Aggregate, EventStoreClient, Split};
use burn::train::renderer::CliMetricsRenderer;
use burn::train::{EarlyStoppingStrategy, Learner, SupervisedTraining};
use burn_mpi::{LearnerOptions, OverMpi, World, run};
use task::{Batch, Net, Numbers, OVERLAP, STEPS, Samples, loader, loader_ahead};

use burn::data::dataloader::batcher::Batcher;

const TRAIN: usize = 53;
const VALID: usize = 10;

fn main() -> ExitCode {
    run(check)
}

fn check(world: &World) -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(what), Some(folder)) = (arguments.next(), arguments.next()) else {
        return Err("usage: learner CHECK FOLDER".into());
    };
    let folder = PathBuf::from(folder);
    let faulty = world.rank() == world.size() - 1;
    match what.as_str() {
        "one-step" => one_step(world, &folder)?,
        "uneven" => uneven(world, &folder)?,
        "workers" => workers(world, &folder)?,
        "resume" => resume(world, &folder)?,
        "early" => early(world, &folder)?,
        "interrupted" => interrupted(world, &folder)?,
        "alone" => alone(world, &folder)?,
        "fail" => {
            let broken = faulty.then_some(TRAIN - 1);
            Training { broken, ..Training::new(&folder) }.run(Some(world), 8);
        }
        "panic" => {
            if faulty {
                panic!("a bug of this rank");
            }
            Training::new(&folder).run(Some(world), 8);
        }
        "few" => {
            Training { samples: world.size() - 1, ..Training::new(&folder) }.run(Some(world), 8);
        }
        "other" => {
            Training::new(&folder).run(Some(world), 8 + world.rank());
        }
        "batch" => {
            let batch = if faulty { 2 } else { 4 };
            Training { batch, ..Training::new(&folder) }.run(Some(world), 8);
        }
        "ahead" => {
            Training { ahead: true, ..Training::new(&folder) }.run(Some(world), 8);
        }
        "optimizer" => {
            Training { adam: faulty, ..Training::new(&folder) }.run(Some(world), 8);
        }
        _ => return Err(format!("unknown check '{what}'").into()),
    }
    println!("rank {} of {}: {what} holds", world.rank(), world.size());
    Ok(())
}

/// A training of the small regression in `task.rs`.
#[derive(Clone)]
struct Training {
    folder: PathBuf,
    samples: usize,
    batch: usize,
    epochs: usize,
    accumulation: Option<usize>,
    checkpoint: Option<usize>,
    checkpoints: bool,
    adam: bool,
    norm: bool,
    shuffle: bool,
    workers: usize,
    ahead: bool,
    broken: Option<usize>,
    /// The rank that is asked to stop. `reason` is why this rank stopped, filled at the end.
    stopped_by: Option<usize>,
    reason: Arc<Mutex<Option<String>>>,
    /// True if the metrics of the training are means over all ranks.
    all_metrics: bool,
    /// Stops the training after a certain epoch, and remembers the validation losses.
    watch: Watch,
}

impl Training {
    fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            samples: TRAIN,
            batch: 4,
            epochs: 3,
            accumulation: None,
            checkpoint: None,
            checkpoints: false,
            adam: false,
            norm: false,
            shuffle: false,
            workers: 0,
            ahead: false,
            broken: None,
            stopped_by: None,
            reason: Arc::default(),
            all_metrics: true,
            watch: Watch::default(),
        }
    }

    /// Trains, and returns the model on this rank. Without a world, burn-train trains with its own strategy.
    fn run(&self, world: Option<&World>, width: usize) -> Net {
        let device = Device::flex().autodiff();
        // Each rank draws different initial weights.
        device.seed(3 + world.map_or(0, World::rank) as u64);
        let net = Net::new(width, self.norm, &device);
        let numbers = Numbers { first: 0, count: self.samples, broken: self.broken };
        let train = if self.ahead {
            loader_ahead(numbers)
        } else {
            loader(numbers, self.batch, self.shuffle, self.workers)
        };
        let valid = loader(Numbers { first: 900, count: VALID, broken: None }, 3, false, self.workers);
        let mut training = SupervisedTraining::<Net>::new(&self.folder, train, valid)
            .metrics((LossMetric::new(),))
            .num_epochs(self.epochs)
            .early_stopping(self.watch.clone());
        if let Some(steps) = self.accumulation {
            training = training.grads_accumulation(steps);
        }
        if self.checkpoints {
            training = training.with_default_checkpointers();
        }
        if let Some(epoch) = self.checkpoint {
            training = training.checkpoint(epoch);
        }
        let metrics_of_all_ranks = self.all_metrics;
        training = match world {
            Some(world) => training
                .over_mpi(world, LearnerOptions::default().with_metrics_of_all_ranks(metrics_of_all_ranks)),
            // burn-train's terminal UI does not work under mpirun.
            None => training.renderer(Box::new(CliMetricsRenderer::new())),
        };
        let scheduler = rates();
        let learner = if self.adam {
            Learner::new(net, AdamConfig::new().init().into(), scheduler)
        } else {
            Learner::new(net, SgdConfig::new().init().into(), scheduler)
        };
        let interrupter = training.interrupter();
        if self.stopped_by.is_some_and(|rank| world.is_some_and(|world| world.rank() == rank)) {
            interrupter.stop(Some("enough"));
        }
        let model = training.launch(learner).model;
        *self.reason.lock().expect("a reason") = interrupter.interruption().and_then(|stop| stop.reason);
        model
    }
}

fn rates() -> ModuleLrScheduler {
    LinearLrSchedulerConfig::new(0.2, 0.01, 60).init().expect("a scheduler")
}

/// Remembers the validation loss of each epoch, and stops after `last`.
#[derive(Clone, Default)]
struct Watch {
    last: Option<usize>,
    losses: Arc<Mutex<Vec<f64>>>,
}

impl EarlyStoppingStrategy for Watch {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let loss = store.find_metric("Loss", epoch, Aggregate::Mean, &Split::Valid);
        self.losses.lock().expect("losses").extend(loss);
        self.last == Some(epoch)
    }
}

/// Takes one step on all samples: the weights must be plain Burn's, with and without overlap.
fn one_step(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    for overlap in [false, true] {
        OVERLAP.store(overlap, Ordering::Relaxed);
        let samples = 3 * world.size() + 1;
        let training = Training { samples, batch: samples, epochs: 1, ..Training::new(folder) };
        let found = training.run(Some(world), 16);
        let device = Device::flex().autodiff();
        let steps = vec![Samples.batch((0..samples).collect(), &device)];
        near_plain_burn(&found, steps).map_err(|reason| format!("overlap {overlap}: {reason}"))?;
    }
    Ok(())
}

/// Loaders with worker threads, whose batches come in any order; the last one, which is shorter, may come
/// first. After each step, the weights must be plain Burn's on the samples of all ranks, with the same weight
/// for each sample.
fn workers(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    let shard = TRAIN / world.size();
    let batches = [4, 2 * shard / 3];
    for (workers, batch, run) in [0, 2, 4].into_iter().flat_map(|workers| {
        batches.into_iter().flat_map(move |batch| (0..5).map(move |run| (workers, batch, run)))
    }) {
        STEPS.lock().expect("steps").clear();
        let training = Training { workers, batch, epochs: 2, shuffle: run % 2 == 0, ..Training::new(folder) };
        let found = training.run(Some(world), 16);
        let mine = STEPS.lock().expect("steps").clone();
        let ranks: Vec<Vec<(Vec<f32>, Vec<f32>)>> = world.gather(&mine)?;
        let device = Device::flex().autodiff();
        let (mut steps, mut samples) = (Vec::new(), 0);
        for epoch in 0..2 {
            let ranks: Vec<_> = ranks.iter().map(|rank| rank.chunks(rank.len() / 2).nth(epoch)).collect();
            let longest = ranks.iter().flatten().map(|rank| rank.len()).max().unwrap_or(0);
            for step in 0..longest {
                let (mut x, mut y) = (Vec::new(), Vec::new());
                for (own_x, own_y) in ranks.iter().flatten().filter_map(|rank| rank.get(step)) {
                    x.extend_from_slice(own_x);
                    y.extend_from_slice(own_y);
                }
                samples += y.len();
                steps.push(Batch::new(x, y, &device));
            }
        }
        if samples != 2 * TRAIN {
            return Err(
                format!("{workers} workers, batches of {batch}: {samples} samples were trained").into()
            );
        }
        near_plain_burn(&found, steps)
            .map_err(|reason| format!("{workers} workers, batches of {batch}: {reason}"))?;
    }
    Ok(())
}

/// Checks that `found` has the weights of a single process that takes these steps from rank 0's initial
/// weights.
fn near_plain_burn(found: &Net, steps: Vec<Batch>) -> Result<(), String> {
    let device = Device::flex().autodiff();
    device.seed(3);
    let net = Net::new(16, false, &device);
    let (mut rates, mut optimizer, mut expected) = (rates(), SgdConfig::new().init(), net.clone());
    for batch in steps {
        let gradients = GradientsParams::from_grads(expected.output(batch).loss.backward(), &expected);
        expected = optimizer.step(rates.step(), expected, gradients);
    }
    let (before, found, expected) = (weights(&net), weights(found), weights(&expected));
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    let difference = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    let step = norm(&mut before.iter().zip(&expected).map(|(a, b)| a - b));
    if difference > 1e-5 * step {
        return Err(format!(
            "weights differ from plain Burn's by {difference:e}; the steps changed them by {step:e}"
        ));
    }
    Ok(())
}

/// Numbers of samples that do not divide evenly, with accumulation and batch norm, or with overlap. The
/// training must learn, and its validation loss must be the loss of the whole validation set. (`over_mpi`
/// itself checks at the end that all ranks have equal weights.)
fn uneven(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    for (accumulation, norm, overlap) in [(None, false, true), (Some(3), true, false)] {
        OVERLAP.store(overlap, Ordering::Relaxed);
        let all_metrics = overlap;
        let training =
            Training { accumulation, norm, all_metrics, adam: true, epochs: 20, ..Training::new(folder) };
        let net = training.run(Some(world), 16);
        let losses = training.watch.losses.lock().expect("losses").clone();
        if !world.is_root() {
            continue;
        }
        let batch = Samples.batch((900..900 + VALID).collect(), &Device::flex());
        let loss = f64::from(net.output(batch).loss.into_scalar::<f32>());
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        // On one rank, burn-train takes the mean over its batches, and the last batch is smaller.
        let exact = world.size() == 1 || (loss - last).abs() <= 1e-5 * loss;
        if losses.len() != 20 || !exact || last > 0.7 * first {
            return Err(format!("the loss is {loss}, but these losses were shown: {losses:?}").into());
        }
    }
    Ok(())
}

/// Trains four epochs at once, and two epochs followed by two after a resume.
fn resume(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    let named = |name: &str| Training { adam: true, checkpoints: true, ..Training::new(&folder.join(name)) };
    let whole = Training { epochs: 4, ..named("whole") }.run(Some(world), 16);
    Training { epochs: 2, ..named("parts") }.run(Some(world), 16);
    let resumed = Training { epochs: 4, checkpoint: Some(2), ..named("parts") }.run(Some(world), 16);
    if weights(&whole) == weights(&resumed) {
        Ok(())
    } else {
        Err("a resumed training has other weights than an uninterrupted one".into())
    }
}

/// Early stopping on rank 0 ends all ranks.
fn early(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    let watch = Watch { last: Some(2), ..Watch::default() };
    let stopped = Training { epochs: 9, watch, ..Training::new(folder) };
    let two = Training { epochs: 2, ..Training::new(folder) };
    if weights(&stopped.run(Some(world), 16)) == weights(&two.run(Some(world), 16)) {
        Ok(())
    } else {
        Err("a training stopped after two epochs has other weights than a training of two epochs".into())
    }
}

/// If one rank is asked to stop, all ranks stop, and each rank knows the reason.
fn interrupted(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    for rank in 0..world.size() {
        let training = Training { stopped_by: Some(rank), ..Training::new(folder) };
        training.run(Some(world), 16);
        let reason = training.reason.lock().expect("a reason").clone().unwrap_or_default();
        let named = format!("rank {rank} on {}: enough", world.places()[rank].host);
        if reason != if rank == world.rank() { "enough" } else { &named } {
            return Err(
                format!("rank {rank} was asked to stop, but the reason on this rank is '{reason}'").into()
            );
        }
    }
    Ok(())
}

/// With one rank, the weights are bit for bit those of burn-train's own strategy, also if samples are
/// shuffled.
fn alone(world: &World, folder: &Path) -> Result<(), Box<dyn Error>> {
    for (accumulation, shuffle) in [(None, false), (None, true), (Some(3), true)] {
        let named = |name: &str| Training {
            accumulation,
            shuffle,
            adam: true,
            norm: true,
            ..Training::new(&folder.join(name))
        };
        let (over, plain) = (named("over"), named("plain"));
        let same = weights(&over.run(Some(world), 16)) == weights(&plain.run(None, 16));
        let losses = [over, plain].map(|training| training.watch.losses.lock().expect("losses").clone());
        if !same || losses[0] != losses[1] || losses[0].len() != 3 {
            return Err(
                format!("accumulation {accumulation:?}: weights equal {same}, losses {losses:?}").into()
            );
        }
    }
    Ok(())
}

fn weights(net: &Net) -> Vec<f32> {
    struct Weights(Vec<f32>);
    impl ModuleVisitor for Weights {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>());
        }
    }
    let mut visitor = Weights(Vec::new());
    net.visit(&mut visitor);
    visitor.0
}
