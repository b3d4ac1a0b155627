//! Training steps with local updates: each rank updates its own parameters by its own gradients, and
//! `LocalUpdates` averages the changes every `--sync-every` steps.
//!
//! A rank does not wait for other ranks in a step. It learns of their signals (NaN or infinite loss, stop
//! request) some steps later, see [`LateSignals`]; and at once in the last step of an epoch, and before tests
//! and checkpoints inside an epoch. A rank whose loss is NaN or infinite makes no update until then, so that
//! its parameters stay finite; then all ranks end.

use std::time::{Duration, Instant};

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::Learner;
use super::own_gradients::OwnGradients;
use super::signals::LateSignals;
use crate::model::Network;
use crate::spans;
use crate::train::{LabelledBytes, OwnTensors, Tally, TrainError};
use burn_mpi::{
    CommError, CommTimes, FragmentState, LocalOptions, LocalState, LocalUpdates, MicroBatch, Signals, World,
};

/// What a checkpoint stores about local updates, in addition to tensors. All fields are equal on all ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LocalPosition {
    /// Number of local steps.
    pub steps: usize,
    /// For each fragment, the samples of all ranks in its last synchronisation.
    pub totals: Vec<u64>,
    /// For each rank, its samples since the last synchronisation of each fragment.
    pub samples: Vec<Vec<u64>>,
    /// For each rank, the number of updates of its optimizer.
    pub updates: Vec<u64>,
}

/// The state of a rank that trains with local updates.
pub struct Local {
    updates: LocalUpdates,
    options: LocalOptions,
    signals: LateSignals,
    gradients: OwnGradients,
    /// Number of steps of the run before the first local step.
    first_step: usize,
    /// This rank's own parameters and buffers, while [`Learner::params`] has their mean over ranks.
    pub own: Option<Vec<f32>>,
    /// This rank's first loss that is NaN or infinite, and its step of the run, from 1.
    pub failed: Option<(f64, usize)>,
    /// Number of synchronisations that have ended in this process.
    synchronisations: usize,
    /// Communication times of the averaged gradients before the first local step.
    earlier: CommTimes,
    /// Communication times of tests and checkpoints, which are not part of steps.
    outside: CommTimes,
}

impl Local {
    /// Computes the gradients of `loss`, and adds them, multiplied by `weight`, to those of the step.
    pub(super) fn backward(&mut self, loss: &Tensor<1>, network: &Network, weight: f32) {
        let mut gradients = self.updates.backward(loss);
        self.gradients.add(&mut gradients, network, weight);
    }

    /// Number of steps of the run before the current one.
    pub(super) fn steps_of_run(&self) -> usize {
        self.first_step + self.updates.steps()
    }

    /// Returns the communication times of this process so far.
    pub(super) fn times(&self) -> CommTimes {
        let steps = difference(self.updates.times(), self.outside);
        let mut all = sum(self.earlier, steps);
        all.exposed += self.signals.waited;
        all
    }

    /// Runs `call` outside of a step: its communication does not count.
    fn outside_steps<T>(&mut self, call: impl FnOnce(&mut LocalUpdates) -> T) -> T {
        let before = self.updates.times();
        let result = call(&mut self.updates);
        self.outside = sum(self.outside, difference(self.updates.times(), before));
        result
    }

    /// Describes the synchronisations of this process in one line.
    pub fn report(&self) -> String {
        let (times, steps) = (self.times(), self.updates.steps().max(1));
        let ms = |time: Duration| 1e3 * time.as_secs_f64() / steps as f64;
        format!(
            "{} synchronisations of {} in {steps} local steps; per step {:.3} ms copied, {:.3} ms hidden, {:.3} ms \
             exposed",
            self.synchronisations,
            if self.options.fragments == 1 { "all parameters" } else { "a fragment" },
            ms(times.copy),
            ms(times.hidden),
            ms(times.exposed)
        )
    }
}

impl Learner<'_> {
    /// Begins local updates after `steps` steps of the run. From now on, the transport carries changes of
    /// parameters instead of gradients. All ranks must call it.
    ///
    /// # Errors
    /// If parameters differ between ranks, the network has fewer parameters than fragments, or the transport
    /// fails.
    pub fn begin_local(&mut self, steps: usize) -> Result<(), CommError> {
        let Some(options) = self.options.communication.local_options() else { return Ok(()) };
        let earlier = self.sync.times();
        // A rank without samples makes no update, and checkpoints have its moments too.
        self.optimizer.begin(self.layout.trainable());
        let collective = self.sync.take_collective()?;
        self.local = Some(Box::new(Local {
            updates: LocalUpdates::new(self.world, collective, &self.layout, &self.params, options)?,
            options,
            signals: LateSignals::new(self.world, &self.options.transport(), options.delay)?,
            gradients: OwnGradients::new(&self.layout),
            first_step: steps,
            own: None,
            failed: None,
            synchronisations: 0,
            earlier,
            outside: CommTimes::default(),
        }));
        Ok(())
    }

    /// Trains this rank on its own samples of a step. Returns the signals of an earlier step, summed over
    /// ranks; of all steps so far if `agrees` is true, which must be equal on all ranks.
    ///
    /// A rank without samples, and a rank whose loss is NaN or infinite, makes no update.
    ///
    /// # Errors
    /// If the transport fails, or parameters differ between ranks after a synchronisation.
    pub fn step_alone(
        &mut self,
        samples: &LabelledBytes<'_>,
        stop: bool,
        agrees: bool,
    ) -> Result<(Tally, Signals), CommError> {
        let mut tally = Tally::default();
        let (count, micro_batch) = (samples.count(), self.options.data.train_batch_size.get());
        self.local.iter_mut().for_each(|local| local.gradients.clear());
        for from in (0..count).step_by(micro_batch) {
            let range = from..(from + micro_batch).min(count);
            tally.add(&self.backward(samples, range, count, MicroBatch::More)?);
        }
        let Self { local, optimizer, params, rate, .. } = self;
        let Some(local) = local else { return Ok((tally, Signals::default())) };
        if !tally.loss.is_finite() {
            let step = local.steps_of_run() + 1;
            local.failed.get_or_insert((tally.mean_loss(), step));
        }
        let trains = count > 0 && local.failed.is_none();
        let began = Instant::now();
        if trains {
            spans::span(&spans::OPTIMIZER, || optimizer.update(params, &mut local.gradients, *rate))?;
        }
        self.times.optimizer += began.elapsed();
        let [not_finite, stop] = [local.failed.is_some(), stop].map(|is_set| f32::from(u8::from(is_set)));
        let signals = local.signals.exchange(Signals { not_finite, stop }, agrees)?;
        if signals.not_finite > 0.0 {
            // The training ends. Do not average parameters of which some lack updates.
            return Ok((tally, signals));
        }
        let sent = local.updates.bytes_sent();
        let is_merged = local.updates.step(params, if trains { count } else { 0 })?;
        self.bytes_sent += local.updates.bytes_sent() - sent;
        local.synchronisations += usize::from(is_merged);
        if trains || is_merged {
            let began = Instant::now();
            self.network.change(|network| self.layout.write_trainable(network, params));
            self.times.optimizer += began.elapsed();
        }
        Ok((tally, signals))
    }

    /// Shows the mean of the ranks' parameters in `params` and in the network, until
    /// [`hide_average`](Self::hide_average). All ranks must call it after the same step. Does nothing without
    /// local updates.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn show_average(&mut self) -> Result<(), CommError> {
        let Some(local) = &mut self.local else { return Ok(()) };
        let own = self.params.clone();
        local.outside_steps(|updates| updates.average(&mut self.params))?;
        local.own = Some(own);
        self.publish();
        Ok(())
    }

    /// Continues with this rank's own parameters after [`show_average`](Self::show_average).
    pub fn hide_average(&mut self) {
        if let Some(own) = self.local.as_mut().and_then(|local| local.own.take()) {
            self.params = own;
            self.publish();
        }
    }

    /// Returns what a checkpoint stores about local updates: a position, equal on all ranks, and tensors of
    /// this rank. The tensors that all ranks have in common are those of rank 0. `None` without local
    /// updates. All ranks must call it after the same step.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn local_position(&mut self) -> Result<Option<(LocalPosition, OwnTensors)>, CommError> {
        let Some(local) = &mut self.local else { return Ok(None) };
        let LocalState { steps, fragments, samples } = local.outside_steps(LocalUpdates::state)?;
        let ranks: Vec<(Vec<u64>, u64)> = self.world.gather(&(samples, self.optimizer.updates()))?;
        let (samples, updates) = ranks.into_iter().unzip();
        let totals = fragments.iter().map(|fragment| fragment.total).collect();
        let mut tensors = OwnTensors::new();
        if self.world.is_root() {
            for (at, FragmentState { anchor, velocity, arrived, .. }) in fragments.into_iter().enumerate() {
                let parts = [("anchor", Some(anchor)), ("velocity", Some(velocity)), ("sum", arrived)];
                let parts = parts.into_iter().filter_map(|(part, values)| Some((tensor(at, part), values?)));
                tensors.extend(parts);
            }
        }
        Ok(Some((LocalPosition { steps, totals, samples, updates }, tensors)))
    }

    /// Continues after `step` steps of the run from what [`local_position`](Self::local_position) returned,
    /// and from this rank's own parameters and moments, which are among its `tensors`. The network must have
    /// the mean of the ranks' parameters; call [`hide_average`](Self::hide_average) to train.
    ///
    /// # Errors
    /// If the checkpoint does not fit the options and the network, or the transport fails.
    pub fn restore_local(
        &mut self,
        saved: &LocalPosition,
        mut tensors: OwnTensors,
        step: usize,
    ) -> Result<(), TrainError> {
        self.begin_local(step.saturating_sub(saved.steps))?;
        let state = shared_state(self.world, saved, &mut tensors)?;
        let (values, length) = (self.layout.len(), self.layout.trainable());
        let names = self.optimizer.names();
        let mut own = |name: &str, length| take(&mut tensors, name, length);
        let read = own(PARAMS, values).and_then(|params| {
            let moments = names.into_iter().map(|name| Ok((name.clone(), own(&moment(&name), length)?)));
            Ok((params, moments.collect::<Result<Vec<_>, String>>()?))
        });
        let (params, moments) = self.world.agree(read)?;
        let updates = saved.updates.get(self.world.rank()).copied().unwrap_or_default();
        self.optimizer.restore(moments, updates)?;
        if let Some(local) = &mut self.local {
            local.updates.restore(state)?;
            local.own = Some(params);
        }
        Ok(())
    }

    /// Returns this rank's own parameters and moments, by the names that a checkpoint has for them.
    pub fn own_tensors(&mut self) -> impl Iterator<Item = (String, &mut [f32])> {
        let own = self.local.as_mut().and_then(|local| local.own.as_mut());
        let params = own.map(|params| (PARAMS.to_owned(), params.as_mut_slice()));
        let moments = self.optimizer.moments.iter_mut();
        params.into_iter().chain(moments.map(|(name, values)| (moment(name), values.as_mut_slice())))
    }
}

fn sum(a: CommTimes, b: CommTimes) -> CommTimes {
    CommTimes {
        copy: a.copy + b.copy,
        compress: a.compress + b.compress,
        hidden: a.hidden + b.hidden,
        exposed: a.exposed + b.exposed,
    }
}

fn difference(a: CommTimes, b: CommTimes) -> CommTimes {
    CommTimes {
        copy: a.copy - b.copy,
        compress: a.compress - b.compress,
        hidden: a.hidden - b.hidden,
        exposed: a.exposed - b.exposed,
    }
}

/// Name of a rank's own parameters in a checkpoint.
const PARAMS: &str = "params";

/// Name of a moment of a rank's own optimizer.
fn moment(name: &str) -> String {
    format!("moments.{name}")
}

/// Name of a tensor of a fragment, which all ranks have in common.
fn tensor(fragment: usize, part: &str) -> String {
    format!("local.{fragment}.{part}")
}

/// Removes a tensor of `length` values from `tensors`.
fn take(tensors: &mut OwnTensors, name: &str, length: usize) -> Result<Vec<f32>, String> {
    let found = tensors.remove(name).filter(|values| values.len() == length);
    found.ok_or_else(|| format!("the checkpoint has no tensor {name} of {length} values of this rank"))
}

/// Sends the tensors of fragments from rank 0 to all ranks, and returns the state of this rank.
fn shared_state(
    world: &World,
    saved: &LocalPosition,
    tensors: &mut OwnTensors,
) -> Result<LocalState, CommError> {
    let mut of_fragment = |at: usize, part: &str| {
        let found = tensors.remove(&tensor(at, part));
        let length: Option<usize> = world.broadcast(&found.as_ref().map(Vec::len))?;
        let Some(length) = length else { return Ok(None) };
        let mut values = found.unwrap_or_default();
        values.resize(length, 0.0);
        world.broadcast_f32(&mut values)?;
        Ok::<_, CommError>(Some(values))
    };
    let mut fragments = Vec::new();
    for (at, &total) in saved.totals.iter().enumerate() {
        let [anchor, velocity] = [of_fragment(at, "anchor")?, of_fragment(at, "velocity")?];
        fragments.push(FragmentState {
            anchor: anchor.unwrap_or_default(),
            velocity: velocity.unwrap_or_default(),
            total,
            arrived: of_fragment(at, "sum")?,
        });
    }
    let samples = saved.samples.get(world.rank()).cloned().unwrap_or_default();
    Ok(LocalState { steps: saved.steps, fragments, samples })
}
