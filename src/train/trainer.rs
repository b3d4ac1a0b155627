//! The training loop: epochs of steps, and a test and a checkpoint after each epoch.
//!
//! All ranks run the same loop and must make the same decisions. If one rank stopped or skipped a step, the
//! others would wait for it in a collective. Decisions therefore depend only on values that are equal on all
//! ranks, such as sums of an all-reduce or gathered tallies. A Unix signal may reach only some ranks, so
//! [`Learner::step`] sums the stop requests with the gradients.

mod checkpoints;

use std::time::Instant;

use burn::module::Module;

use super::batches::{self, Batches, order_of};
use super::evaluation::{Evaluation, Tested};
use super::step::Learner;
use super::{MixedPrecision, Position, Recipe, Recorder, RunConfig, Schedule, Tally, TrainError, best_epoch};
use crate::model::Network;
use crate::quant::{Int8File, PostQuantizer, Quantizer};
use crate::spans;
use crate::values::Positive;
use burn_fused::memory::live_bytes;
use burn_mpi::{Collective, CommError, Reached, ShardPlan, SharedError, TargetAccuracy, World};
use data::shard::digest;
use data::{SampleSource, Shard, Split};
use launch::StopRequest;
use run_record::files::sha256_of_f32;
use run_record::{Curve, DataDigests, EpochRow, Phases, StepMs};

/// One rank's part of a training: data, network and optimizer, and position.
pub struct Trainer<'w> {
    /// The ranks of the job.
    pub world: &'w World,
    /// The data set.
    pub source: SampleSource,
    /// Assigns training samples to ranks and steps.
    pub plan: ShardPlan,
    /// This rank's training samples.
    pub shard: Shard,
    /// This rank's test samples, and the test on them.
    pub evaluation: Evaluation,
    batches: Batches,
    /// The network, its optimizer and the averaging of gradients.
    pub learner: Learner<'w>,
    post_quantizer: Option<PostQuantizer>,
    /// Learning rate and momentum of each step.
    pub schedule: Schedule,
    /// Epoch and step reached, and results so far.
    pub position: Position,
    epoch_tally: Tally,
    window_tally: Tally,
    /// Number of steps of the epoch before the window. The window is the steps since the last point of the
    /// training curve; `window_tally` is its tally.
    window_begin: usize,
    /// This rank's points of the training curve (step and tally) since the last checkpoint. The next
    /// checkpoint writes them.
    unwritten: Vec<(usize, Tally)>,
    comm_before: f64,
    /// If the run was resumed: bytes that each rank sent in the steps of the earlier processes.
    bytes_before: u64,
    /// If the run was resumed: seconds of each phase in the earlier processes, mean over ranks.
    phases_before: Phases<f64>,
    phase_steps_before: usize,
    /// Seconds that this rank has spent in training loops since this process started.
    loop_seconds: f64,
    stop: StopRequest,
    stopping: bool,
    steps_here: usize,
    /// Step of the last checkpoint that was written.
    checkpoint_step: Option<usize>,
    /// Bytes of live tensors after the last step of the previous epoch.
    live_after_steps: Option<usize>,
    /// Bytes that tests and the history of epochs allocated and still hold. They are not part of a step's
    /// memory.
    kept_between: usize,
}

/// Observer of a training, such as a progress bar or a log. A [`Tally`] has the number of samples, the number
/// of correct samples, and the sum of losses.
pub trait Watch {
    /// Called after every step, with this rank's tally of the epoch.
    fn step(&mut self, position: &Position, epoch: &Tally);
    /// Called every `--log-every` steps of an epoch, with this rank's tally of the steps since the previous
    /// call, or since the start of the epoch.
    fn line(&mut self, position: &Position, window: &Tally);
    /// Called after every test inside an epoch, with the test's results over all ranks.
    fn test(&mut self, position: &Position, test: &Tally);
    /// Called when a test has reached `--target-accuracy`.
    fn target(&mut self, epochs: f64, reached: &Reached);
    /// Called after every epoch, with the epoch's results over all ranks.
    fn epoch(&mut self, row: &EpochRow);
}

/// What a [`Trainer`] needs in addition to its options.
pub struct Setup {
    /// The data set, the same on all ranks.
    pub source: SampleSource,
    /// The network to start from; all ranks get rank 0's weights.
    pub network: Network,
    /// Fake quantization, and the ranges of the network's values; `None` except in quantization-aware
    /// training.
    pub quantizer: Option<Quantizer>,
    /// Transport that sums the gradients.
    pub collective: Box<dyn Collective>,
    /// This rank's stop request, which a signal sets. A request on any rank stops all ranks.
    pub stop: StopRequest,
}

/// Checks that all ranks also have the same samples beyond the limits `--train-samples` and `--test-samples`,
/// because the next run may use these samples. This run does not use them, so the check also passes if no
/// rank can read them, as long as all ranks have the same error.
fn check_unused(world: &World, source: &SampleSource, options: &RunConfig) -> Result<(), TrainError> {
    for split in Split::ALL {
        let available = source.len(split);
        let digest = if options.plan(source, split, world.size()).samples < available {
            digest(source, split, available).unwrap_or_else(|error| error.to_string())
        } else {
            String::new()
        };
        world.check_equal(&format!("the digest of the whole {} split", split.name()), &digest)?;
    }
    Ok(())
}

/// Returns the advice in errors about NaN and infinite values: the options of `recipe` to lower or to set.
fn remedy(recipe: &Recipe) -> String {
    let penalties = [("--l1", recipe.l1), ("--l2", recipe.l2)];
    let given = penalties.into_iter().filter(|(_, penalty)| penalty.get() > 0.0).map(|(option, _)| option);
    let lower: Vec<&str> = ["--lr"].into_iter().chain(given).collect();
    let clip = if recipe.clip_norm.is_none() { " or set --clip-norm" } else { "" };
    format!("lower {}{clip}", lower.join(" or "))
}

/// Whether something that happens every `every` steps happens after `step` steps of the run.
fn is_due(every: Option<Positive>, step: usize) -> bool {
    every.is_some_and(|every| step.is_multiple_of(every.get()))
}

/// The int8 model of an epoch, equal on all ranks, and its test results.
struct TestedInt8 {
    file: Int8File,
    test: Tested,
}

impl<'w> Trainer<'w> {
    /// Returns a trainer before its first step.
    ///
    /// # Errors
    /// If a shard or the calibration samples cannot be read, if ranks have different data sets, or if the
    /// transport fails.
    pub fn new(world: &'w World, options: &RunConfig, setup: Setup) -> Result<Self, TrainError> {
        let Setup { source, network, quantizer, collective, stop } = setup;
        let (plan, shard) = batches::shard(world, options, &source, Split::Train, order_of(options, 0))?;
        check_unused(world, &source, options)?;
        let evaluation = Evaluation::load(world, &source, options)?;
        let post = options
            .quantization
            .post_training()
            .map(|post| post.load(&source, options.data.train_samples.map(Positive::get)));
        let post_quantizer = world.agree(post.transpose())?;
        let mut learner = Learner::new(world, options, network, quantizer, collective)?;
        learner.class_weights = options.recipe.class_weights.for_counts(shard.class_counts());
        Ok(Self {
            learner,
            batches: Batches::new(options, source.description()),
            post_quantizer,
            schedule: options.rates(plan.steps(), world.size()),
            position: Position {
                target: options.recipe.target_accuracy.map(|accuracy| TargetAccuracy::new(accuracy.get())),
                ..Position::default()
            },
            epoch_tally: Tally::default(),
            window_tally: Tally::default(),
            window_begin: 0,
            unwritten: Vec::new(),
            comm_before: 0.0,
            bytes_before: 0,
            phases_before: Phases::default(),
            phase_steps_before: 0,
            loop_seconds: 0.0,
            stop,
            stopping: false,
            steps_here: 0,
            checkpoint_step: None,
            live_after_steps: None,
            kept_between: 0,
            evaluation,
            world,
            source,
            plan,
            shard,
        })
    }

    /// Trains to the end of the last epoch, or until early stopping or `--stop-at-target` ends it.
    ///
    /// # Errors
    /// If a loss or a running statistic is NaN or infinite, if weights or int8 models differ between ranks,
    /// if samples cannot be read, if a file cannot be written, or if the transport fails. Returns
    /// [`TrainError::Stopped`] after a signal, once a checkpoint is written.
    pub fn run(&mut self, recorder: &mut Recorder<'_>, watch: &mut dyn Watch) -> Result<(), TrainError> {
        while !self.is_done() {
            if self.learner.options.data.shuffle
                && self.position.step_in_epoch == 0
                && self.position.epoch > 0
            {
                let started = Instant::now();
                self.load_shard()?;
                self.learner.count_data(started.elapsed());
                self.count_loop(started);
            }
            let local_after = self.learner.options.communication.local.local_after.map_or(0, Positive::get);
            if self.learner.local.is_none() && self.position.epoch >= local_after {
                self.learner.begin_local(self.position.step)?;
            }
            if let Some(quantizer) = &mut self.learner.quantizer {
                quantizer.set_epoch(self.position.epoch);
            }
            self.train_epoch(recorder, watch)?;
            if self.stopping && self.position.step_in_epoch < self.plan.steps() {
                return Err(self.stopped(recorder));
            }
            let started = Instant::now();
            self.check_statistics()?;
            self.learner.average_buffers()?;
            self.learner.show_average()?;
            let (Tested { tallies, seconds, confusion, .. }, int8) = spans::span(&spans::EVALUATION, || {
                let tested = self.evaluation.run(self.world, &self.learner.network)?;
                self.check_test(&tested.tallies)?;
                Ok::<_, TrainError>((tested, self.test_int8()?))
            })?;
            if let Some(int8) = &int8 {
                let [float, integer] = self.position.inference_seconds.get_or_insert_default();
                *float += seconds;
                *integer += int8.test.seconds;
            }
            self.position.confusion = confusion;
            self.compare_with_target(&tallies, watch)?;
            self.position.test_seconds += started.elapsed().as_secs_f64();
            let started = Instant::now();
            self.finish_epoch(recorder, watch, tallies, int8)?;
            self.position.checkpoint_seconds += started.elapsed().as_secs_f64();
            if self.stopping && !self.is_done() {
                return Err(self.stopped(recorder));
            }
            // A complete run keeps the average: it is the network that was tested and saved.
            if !self.is_done() {
                self.learner.hide_average();
            }
        }
        Ok(())
    }

    /// Whether all epochs are complete, or early stopping or `--stop-at-target` has ended the training.
    fn is_done(&self) -> bool {
        let RunConfig { epochs, recipe, .. } = &self.learner.options;
        self.position.is_done(epochs.get(), recipe.early_stopping.map(Positive::get))
    }

    /// Whether a test has reached the target accuracy, and `--stop-at-target` ends the training then.
    fn stops_at_target(&self) -> bool {
        self.learner.options.recipe.stop_at_target && self.position.has_reached_target()
    }

    /// Trains to the end of the epoch, or until a signal or a test that reaches the target ends it.
    fn train_epoch(&mut self, recorder: &mut Recorder<'_>, watch: &mut dyn Watch) -> Result<(), TrainError> {
        if let Some(before) = self.live_after_steps {
            self.kept_between += live_bytes::live().saturating_sub(before);
        }
        let mut started = Instant::now();
        while self.position.step_in_epoch < self.plan.steps() && !self.stops_at_target() {
            self.step()?;
            let (step, in_epoch, steps) =
                (self.position.step, self.position.step_in_epoch, self.plan.steps());
            watch.step(&self.position, &self.epoch_tally);
            let log_every = self.learner.options.log_every.get();
            let has_line = in_epoch.is_multiple_of(log_every);
            if has_line {
                watch.line(&self.position, &self.window_tally);
            }
            // An epoch of fewer than `--log-every` steps has one point of the training curve, over all its
            // steps. It has no log line except the line after the test.
            if has_line || (in_epoch == steps && steps < log_every) {
                self.unwritten.push((step, std::mem::take(&mut self.window_tally)));
                self.window_begin = in_epoch;
            }
            let RunConfig { eval_every, checkpoint_every, .. } = self.learner.options;
            // After the epoch's last step, `run` tests the network, and `finish_epoch` writes the checkpoint.
            if is_due(eval_every, step) && in_epoch < steps {
                self.count_loop(started);
                let paused = Instant::now();
                self.test_inside_epoch(recorder, watch)?;
                self.position.test_seconds += paused.elapsed().as_secs_f64();
                started = Instant::now();
            }
            // The test comes first, so that the checkpoint knows whether it reached the target.
            if (is_due(checkpoint_every, step) || self.stopping) && in_epoch < steps {
                self.count_loop(started);
                let paused = Instant::now();
                self.checkpoint_inside_epoch(recorder)?;
                self.position.checkpoint_seconds += paused.elapsed().as_secs_f64();
                started = Instant::now();
            }
            if self.stopping {
                break;
            }
        }
        // A test that reaches the target is after the last step, so nothing was trained since. The training
        // time then equals the time to the target.
        if !self.stops_at_target() {
            self.count_loop(started);
        }
        let (in_epoch, log_every) = (self.position.step_in_epoch, self.learner.options.log_every.get());
        if self.stops_at_target() && in_epoch < log_every && self.window_tally.samples > 0.0 {
            // The incomplete epoch has one point too, unless it has points already.
            self.unwritten.push((self.position.step, std::mem::take(&mut self.window_tally)));
        }
        self.live_after_steps = Some(live_bytes::live());
        Ok(())
    }

    /// Tests the network in the middle of an epoch. The test does not change the training: the test uses
    /// running statistics, and with local updates also parameters, averaged over ranks. Each rank then goes
    /// on with its own.
    fn test_inside_epoch(
        &mut self,
        recorder: &mut Recorder<'_>,
        watch: &mut dyn Watch,
    ) -> Result<(), TrainError> {
        let before = live_bytes::live();
        self.check_statistics()?;
        let own = self.learner.buffers();
        self.learner.average_buffers()?;
        self.learner.show_average()?;
        let tested =
            spans::span(&spans::EVALUATION, || self.evaluation.run(self.world, &self.learner.network));
        let tallies = tested?.tallies;
        self.check_test(&tallies)?;
        self.learner.hide_average();
        if !own.is_empty() {
            self.learner.set_buffers(&own);
        }
        self.compare_with_target(&tallies, watch)?;
        if !self.stops_at_target() {
            // Otherwise, `run` tests the network again, as after an epoch, and writes this point.
            let point = Tally::curve_point(self.position.step, &tallies);
            recorder.write(|writer| writer.points(Curve::Test, &[point]))?;
            watch.test(&self.position, &Tally::total(&tallies));
        }
        self.kept_between += live_bytes::live().saturating_sub(before);
        Ok(())
    }

    /// Compares a test, given by the tally of each rank, with `--target-accuracy`.
    fn compare_with_target(&mut self, tallies: &[Tally], watch: &mut dyn Watch) -> Result<(), TrainError> {
        let was_reached = self.position.has_reached_target();
        let Position { target, step, train_seconds, epoch_seconds, .. } = &mut self.position;
        let Some(target) = target else { return Ok(()) };
        let accuracy = Tally::total(tallies).accuracy();
        target.test(self.world, accuracy, *step, *train_seconds + *epoch_seconds)?;
        if let Some(reached) = target.reached().filter(|_| !was_reached) {
            watch.target(reached.steps as f64 / self.plan.steps() as f64, &reached);
        }
        Ok(())
    }

    /// Adds the time since `started` to `epoch_seconds` and to `loop_seconds`.
    fn count_loop(&mut self, started: Instant) {
        let seconds = started.elapsed().as_secs_f64();
        self.position.epoch_seconds += seconds;
        self.loop_seconds += seconds;
    }

    fn step(&mut self) -> Result<(), TrainError> {
        spans::begin_step(self.position.step + 1);
        if self.learner.local.is_none() {
            self.learner.sync.watch(spans::watcher())?;
        }
        let step = self.position.step_in_epoch;
        let (began, size) = (Instant::now(), self.plan.batch_size);
        let epoch = self.position.epoch;
        let samples =
            spans::span(&spans::SAMPLES, || self.batches.samples(&self.shard, step * size, size, epoch));
        let samples = samples.map_err(|error| {
            let (rank, host) = (self.world.rank(), self.world.host());
            TrainError::Samples(format!("rank {rank} ({host}): {error}; then continue with --resume"))
        })?;
        self.learner.count_data(began.elapsed());
        let total = self.plan.global_batch_len(step);
        self.learner.rate = self.schedule.rate(self.position.epoch, step);
        live_bytes::begin_step();
        let stop = self.stop.signal().is_some();
        let (tally, signals) = if self.learner.local.is_some() {
            // After the last step of an epoch, before a test and before a checkpoint, all ranks must know of
            // a NaN loss.
            let RunConfig { eval_every, checkpoint_every, .. } = self.learner.options;
            let next = self.position.step + 1;
            let is_last = step + 1 == self.plan.steps();
            let agrees = is_last || is_due(eval_every, next) || is_due(checkpoint_every, next);
            self.learner.step_alone(&samples, stop, agrees)?
        } else {
            self.learner.step(&samples, total, stop)?
        };
        live_bytes::end_step(self.kept_between + self.shard.index_bytes());
        spans::end_step(&self.learner.sync);
        if signals.not_finite > 0.0 {
            return Err(self.not_finite(&tally)?);
        }
        self.stopping |= signals.stop > 0.0;
        self.epoch_tally.add(&tally);
        self.window_tally.add(&tally);
        self.position.step += 1;
        self.steps_here += 1;
        self.position.step_in_epoch += 1;
        Ok(())
    }

    /// Compares weights between ranks, writes the epoch's results and a checkpoint, and begins the next
    /// epoch.
    fn finish_epoch(
        &mut self,
        recorder: &mut Recorder<'_>,
        watch: &mut dyn Watch,
        test: Vec<Tally>,
        int8: Option<TestedInt8>,
    ) -> Result<(), TrainError> {
        self.check_equal_models(int8.as_ref())?;
        let int8_tallies = int8.as_ref().map_or_else(Vec::new, |int8| int8.test.tallies.clone());
        let row = self.epoch_row(&test, &int8_tallies)?;
        let step = self.position.step;
        recorder.write(|writer| {
            writer.points(Curve::Test, &[Tally::curve_point(step, &test)])?;
            if int8.is_some() {
                writer.points(Curve::Int8, &[Tally::curve_point(step, &int8_tallies)])?;
            }
            writer.mean("train/learning_rate", step, self.learner.rate.lr)
        })?;
        self.position.train_seconds += self.position.epoch_seconds;
        self.position.epoch_seconds = 0.0;
        self.position.finish(row.clone());
        self.position.stopped_at_target = self.stops_at_target();
        if self.learner.options.recipe.early_stopping.is_some()
            && best_epoch(self.position.compared()) == Some(row.epoch)
        {
            self.position.best_step = Some(step);
        }
        let accuracies = self.position.compared().iter().map(|earlier| earlier.test_accuracy);
        if accuracies.rev().skip(1).all(|earlier| earlier < row.test_accuracy) {
            self.position.most_accurate_step = Some(step);
        }
        self.position.test_tallies = test;
        self.position.int8_tallies = int8_tallies;
        self.begin_next_epoch();
        self.checkpoint(recorder, int8.as_ref().map(|int8| &int8.file))?;
        recorder.write(|writer| writer.epoch(&row))?;
        watch.epoch(&row);
        Ok(())
    }

    /// Checks that all ranks have equal weights and an equal int8 model.
    fn check_equal_models(&self, int8: Option<&TestedInt8>) -> Result<(), TrainError> {
        self.world.check_equal("the weights' digest", &self.weights_sha256())?;
        if let Some(int8) = int8 {
            self.world.check_equal("the int8 model's scales", &format!("{:?}", int8.file.activations))?;
            if let Some(quantizer) = &self.learner.quantizer {
                self.world.check_equal("the ranges of quantization", &format!("{:?}", quantizer.ranges()))?;
            }
        }
        Ok(())
    }

    /// Returns the epoch's results over all ranks.
    ///
    /// `epoch_seconds` becomes the mean over ranks, because the waits for gradients are reported as a mean
    /// over ranks. If `epoch_seconds` were the time of one rank that came late, the mean wait could exceed
    /// it.
    fn epoch_row(&mut self, test: &[Tally], int8: &[Tally]) -> Result<EpochRow, TrainError> {
        let ranks: Vec<(Tally, f64)> = self.world.gather(&(self.epoch_tally, self.position.epoch_seconds))?;
        let (tallies, seconds): (Vec<Tally>, Vec<f64>) = ranks.into_iter().unzip();
        self.position.epoch_seconds = seconds.iter().sum::<f64>() / seconds.len() as f64;
        let (train, test, int8) = (Tally::total(&tallies), Tally::total(test), Tally::total(int8).metrics());
        Ok(EpochRow {
            epoch: self.position.epoch + 1,
            train_loss: train.mean_loss(),
            train_accuracy: train.accuracy(),
            test_loss: test.mean_loss(),
            test_accuracy: test.accuracy(),
            seconds: self.position.epoch_seconds,
            learning_rate: self.learner.rate.lr,
            int8_test_accuracy: int8.map(|metrics| metrics.accuracy),
            int8_test_loss: int8.map(|metrics| metrics.loss),
        })
    }

    /// Moves the position to the first step of the next epoch, unless the training has ended inside an epoch.
    fn begin_next_epoch(&mut self) {
        if self.position.step_in_epoch < self.plan.steps() {
            return;
        }
        self.position.epoch += 1;
        self.position.step_in_epoch = 0;
        (self.window_tally, self.window_begin) = (Tally::default(), 0);
        // After the last epoch, keep its tally: the results need it.
        if !self.is_done() {
            self.epoch_tally = Tally::default();
        }
    }

    /// Reads this rank's samples in the order of the current epoch.
    fn load_shard(&mut self) -> Result<(), TrainError> {
        let order = order_of(&self.learner.options, self.position.epoch as u64);
        let numbers = self.plan.shard(self.world.rank(), order);
        Ok(self.world.agree(self.shard.reload(&self.source, numbers))?)
    }

    /// Derives the int8 model of the current weights, and tests it on all ranks' shards. Returns `None`
    /// without quantization. If the weights cannot be quantized, logs a warning and returns `None`, and the
    /// float training goes on.
    fn test_int8(&self) -> Result<Option<TestedInt8>, TrainError> {
        let network = || self.learner.network.valid();
        let model = match (&self.learner.quantizer, &self.post_quantizer) {
            (Some(quantizer), _) => quantizer.integer_model(&network()),
            (None, Some(quantizer)) => quantizer.quantize(&network()),
            (None, None) => return Ok(None),
        };
        let mut model = match self.world.agree(model) {
            Ok(model) => model,
            Err(CommError::Shared(SharedError::Elsewhere { reason, .. })) => {
                if self.world.is_root() {
                    let epoch = self.position.epoch + 1;
                    log::warn!(
                        "no int8 model after epoch {epoch}: {reason}; the checkpoint of this epoch has only float weights"
                    );
                }
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let test = self.evaluation.run_int8(self.world, &mut model)?;
        Ok(Some(TestedInt8 { file: model.file, test }))
    }

    /// Returns the error for a training that a signal stopped. The checkpoint has been written.
    fn stopped(&self, recorder: &Recorder<'_>) -> TrainError {
        let signal = self.stop.signal().unwrap_or("a signal to another rank");
        let writer = recorder.writer.as_ref();
        let run = writer.map_or(String::new(), |writer| writer.path().display().to_string());
        TrainError::Stopped { signal, step: self.position.step, run }
    }

    /// Returns the error for a step in which some rank's loss is NaN or infinite. `mine` is this rank's
    /// tally.
    fn not_finite(&self, mine: &Tally) -> Result<TrainError, TrainError> {
        // With local updates, the loss of a rank may have been NaN in an earlier step.
        let failed = self.learner.local.as_ref().and_then(|local| local.failed);
        let mine = failed.unwrap_or((mine.mean_loss(), self.position.step + 1));
        let losses: Vec<(f64, usize)> = self.world.gather(&mine)?;
        let rank = losses.iter().position(|(loss, _)| !loss.is_finite()).unwrap_or(0);
        // In f16 the first step can already overflow, whatever the learning rate: samples or weights that fit
        // bf16 and f32 may exceed 65504.
        let remedy = match self.learner.options.precision {
            MixedPrecision::Fp16 => {
                "fp16 cannot represent values above 65504: scale the samples, lower --lr, or train with --precision bf16"
                    .to_owned()
            }
            _ => self.remedy(),
        };
        let (loss, step) = losses[rank];
        let epoch = (step - 1) / self.plan.steps() + 1;
        Ok(self.ends(rank, format!("loss is {loss} at epoch {epoch}, step {step}; {remedy}")))
    }

    fn remedy(&self) -> String {
        remedy(&self.learner.options.recipe)
    }

    /// Checks that each rank's test loss is finite.
    fn check_test(&self, tallies: &[Tally]) -> Result<(), TrainError> {
        let Some(rank) = tallies.iter().position(|tally| !tally.loss.is_finite()) else { return Ok(()) };
        let Position { epoch, step_in_epoch, .. } = self.position;
        let place = if step_in_epoch < self.plan.steps() {
            format!("at epoch {}, step {}", epoch + 1, self.position.step)
        } else {
            format!("after epoch {}", epoch + 1)
        };
        let remedy = self.remedy();
        Err(self.ends(rank, format!("test loss is NaN or infinite {place}; {remedy}")))
    }

    /// Checks that each rank's running statistics of batch norm are finite. The loss may stay finite although
    /// activations overflow, because batch norm rescales them.
    fn check_statistics(&self) -> Result<(), TrainError> {
        if !self.learner.layout().has_buffers() {
            return Ok(());
        }
        let found: Vec<Option<String>> = self.world.gather(&self.learner.overflown_buffer())?;
        let found = found.into_iter().enumerate().find_map(|(rank, name)| Some((rank, name?)));
        let Some((rank, name)) = found else { return Ok(()) };
        let step = self.position.step;
        let what = format!(
            "{name} contains NaN or infinite values after step {step}: activations overflow f32; {}",
            self.remedy()
        );
        Err(self.ends(rank, what))
    }

    /// Returns the error that ends the training because of `what` on rank `rank`. The error names the last
    /// checkpoint.
    fn ends(&self, rank: usize, what: String) -> TrainError {
        let checkpoint = match self.checkpoint_step {
            Some(step) => format!("the last checkpoint is of step {step}"),
            None => "there is no checkpoint yet".to_owned(),
        };
        TrainError::Ends(format!("rank {rank} ({}): {what}; {checkpoint}", self.world.places()[rank].host))
    }

    /// SHA-256 of all parameters and buffers.
    pub fn weights_sha256(&self) -> String {
        sha256_of_f32(&self.learner.params)
    }

    /// Seconds of each phase of this process's steps on this rank. `rest` is the time that no other phase
    /// measured, so the phases sum to `loop_seconds`.
    fn phases(&self) -> Phases<f64> {
        let phases = self.learner.times().map(|time| time.as_secs_f64());
        let known: f64 = phases.into_array().iter().sum();
        Phases { rest: (self.loop_seconds - known).max(0.0), ..phases }
    }

    /// Milliseconds of each phase of a step, mean over ranks and steps up to the last checkpoint.
    pub fn step_ms(&self) -> StepMs {
        let steps = self.position.phase_steps.max(1) as f64;
        self.position.phase_seconds.map(|seconds| 1e3 * seconds / steps)
    }

    /// Bytes of gradients, or of changes of parameters, that a rank has passed to the transport in a step,
    /// mean over steps up to the last checkpoint.
    pub fn bytes_per_step(&self) -> f64 {
        self.position.bytes_sent as f64 / self.position.step.max(1) as f64
    }

    /// Digests of the training and test samples that this run uses.
    pub fn data_digests(&self) -> DataDigests {
        let digest_of = |samples| self.source.description().digest(samples);
        DataDigests { train: digest_of(self.shard.digest()), test: digest_of(self.evaluation.shard.digest()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_only_what_can_still_be_changed() {
        let advice = |words: &[&str]| remedy(&RunConfig::read(words).unwrap().recipe);
        for (words, named, other) in [
            (&[][..], &["--lr", "--clip-norm"][..], &["--l1", "--l2"][..]),
            (&["--clip-norm=1"], &["--lr"], &["--clip-norm"]),
            (&["--l2=1e30", "--clip-norm=1"], &["--lr", "--l2"], &["--l1", "--clip-norm"]),
        ] {
            let advice = advice(words);
            assert!(named.iter().all(|option| advice.contains(option)), "{advice}");
            assert!(!other.iter().any(|option| advice.contains(option)), "{advice}");
        }
    }
}
