//! The strategy by which burn-train trains over all ranks of a job.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use burn::data::dataloader::DataLoader;
use burn::module::Module;
use burn::tensor::{Device, Distribution, Tensor};
use burn::train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, LearnerModel,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainStep, TrainingComponents,
    ValidLoader,
};

use crate::train::epoch::Epochs;
use crate::train::outputs::RankOutput;
use crate::train::over_mpi::LearnerOptions;
use crate::train::state;
use crate::{CommError, GradientSync, World, broadcast_module, check_equal_weights, connect};

/// Trains on one shard per rank, with averaged gradients.
pub(super) struct MpiStrategy {
    pub world: World,
    pub options: LearnerOptions,
}

impl MpiStrategy {
    /// Prepares what all epochs need: copies rank 0's state to `learner`, makes the shards, and connects the
    /// transport.
    ///
    /// # Errors
    /// On all ranks, if ranks have different trainings (epochs, checkpoint, accumulation, samples, metrics or
    /// modules), or if a rank has no samples. Other errors come from the transport.
    fn prepare<M: LearnerModel>(
        &self,
        components: &TrainingComponents<M>,
        learner: &mut Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
    ) -> Result<Epochs<M>, CommError> {
        let world = &self.world;
        let TrainingComponents { num_epochs, checkpoint, grad_accumulation, .. } = components;
        let (train_items, valid_items) = (train.num_items(), valid.num_items());
        world.check_equal(
            "the training (epochs, checkpoint, accumulation, training samples, validation samples)",
            &format!("{num_epochs}, {checkpoint:?}, {grad_accumulation:?}, {train_items}, {valid_items}"),
        )?;
        let all_metrics = self.options.metrics_of_all_ranks;
        world.check_equal("LearnerOptions::metrics_of_all_ranks", &all_metrics.to_string())?;
        world.check_samples(train_items)?;
        let device = training_device(&learner.model());
        learner.fork(&device);
        if world.size() > 1 {
            let model = broadcast_module(world, learner.model())?;
            learner.load_model(model.into_record());
            if checkpoint.is_some() {
                state::broadcast(world, learner, &components.event_store)?;
            }
        }
        seed_apart(world, &device);
        let collective = connect(world, self.options.backend, &self.options.transport)?;
        let sync = GradientSync::of_module(world, collective, &learner.model(), self.options.sync);
        Ok(Epochs {
            world: world.clone(),
            sync: Rc::new(RefCell::new(sync)),
            train: shard(world, train, &device),
            valid: shard(world, valid, &device.clone().inner()),
            train_items,
            valid_items,
            accumulation: grad_accumulation.unwrap_or(1),
            all_metrics,
            device: device.inner(),
        })
    }
}

/// Returns the value of `result`. An error ends the job with one line, because a strategy of burn-train
/// cannot return errors.
fn or_end<T>(world: &World, result: Result<T, CommError>) -> T {
    result.unwrap_or_else(|error| {
        world.report(&error);
        if world.seat().is_some() {
            panic!("{error}");
        }
        // The exit handler waits for the other ranks, or ends the job.
        std::process::exit(1)
    })
}

/// Gives ranks above 0 different random numbers. Programs seed all ranks alike, and dropout would then have
/// the same masks on every rank. The new numbers depend only on the program's seed and on the rank.
fn seed_apart(world: &World, device: &Device) {
    if world.is_root() {
        return;
    }
    let drawn = Tensor::<1>::random([2], Distribution::Uniform(0.0, 1.0), &device.clone().inner());
    let bits =
        drawn.into_data().iter::<f32>().fold(0, |bits, value| (bits << 32) | u64::from(value.to_bits()));
    device.seed(bits.wrapping_add(world.rank() as u64));
}

/// Returns the device of a model, with automatic differentiation.
fn training_device<M: Module>(model: &M) -> Device {
    let device = model.devices().into_iter().next().unwrap_or_default();
    if device.is_autodiff() { device } else { device.autodiff() }
}

/// Returns this rank's part of a loader; `None` if it is empty. With one rank, returns the whole loader.
fn shard<O>(
    world: &World,
    loader: Arc<dyn DataLoader<O>>,
    device: &Device,
) -> Option<Arc<dyn DataLoader<O>>> {
    let items = loader.num_items();
    if world.size() == 1 {
        return Some(loader.to_device(device));
    }
    let Range { start, end } = shard_range(world, items);
    (start < end).then(|| loader.slice(start, end).to_device(device))
}

/// Returns the range of this rank's part of `items` items.
pub(super) fn shard_range(world: &World, items: usize) -> Range<usize> {
    range_of(items, world.size(), world.rank())
}

/// Returns the range of `rank`'s part of `items` items. Multiplies in u128, because a data set that computes
/// its items may have so many items that the product overflows a usize.
fn range_of(items: usize, size: usize, rank: usize) -> Range<usize> {
    let before = |rank: usize| (items as u128 * rank as u128 / size as u128) as usize;
    before(rank)..before(rank + 1)
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for MpiStrategy
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let world = &self.world;
        #[cfg(feature = "mpi")]
        if world.seat().is_none() {
            crate::end_the_job_on_panic();
        }
        let epochs = or_end(world, self.prepare(&components, &mut learner, train, valid));
        let TrainingComponents { num_epochs, interrupter, event_store, .. } = components;
        let mut processor = components.event_processor;
        let mut checkpointer = components.checkpointer.filter(|_| world.is_root());
        let mut early_stopping = components.early_stopping.filter(|_| world.is_root());

        for epoch in starting_epoch..=num_epochs {
            let begin = LearnerEvent::StartSplit { epoch_number: epoch, total_items: epochs.train_items };
            interrupter.fail_on_error(processor.process_train(begin));
            let is_first = epoch == starting_epoch;
            or_end(world, epochs.train(&mut learner, &mut processor, &interrupter, is_first));
            interrupter.fail_on_error(processor.process_train(LearnerEvent::EndSplit(epoch)));
            if or_end(world, is_stop_asked(world, &interrupter)) {
                break;
            }
            if world.size() > 1 {
                let averaged = epochs.sync.borrow().average_buffers(learner.model());
                learner.load_model(or_end(world, averaged).into_record());
            }
            let begin = LearnerEvent::StartSplit { epoch_number: epoch, total_items: epochs.valid_items };
            interrupter.fail_on_error(processor.process_valid(begin));
            or_end(world, epochs.valid(&learner, &mut processor, &interrupter));
            interrupter.fail_on_error(processor.process_valid(LearnerEvent::EndSplit(epoch)));
            interrupter.fail_on_error(processor.process_train(LearnerEvent::EndEpoch(epoch)));
            if checkpointer.is_some() || early_stopping.is_some() {
                interrupter.fail_on_error(processor.flush());
            }
            if or_end(world, is_stop_asked(world, &interrupter)) {
                break;
            }
            if let Some(checkpointer) = &mut checkpointer {
                checkpointer.checkpoint(&learner, epoch, &event_store);
            }
            let early = early_stopping.as_mut().is_some_and(|early| early.should_stop(epoch, &event_store));
            if or_end(world, world.broadcast(&early)) {
                break;
            }
        }
        let model = learner.model();
        if world.size() > 1 {
            or_end(world, check_equal_weights(world, &model));
        }
        (model, processor)
    }
}

/// Returns whether the interrupter of at least one rank is asked to stop. If so, stops the interrupters of
/// all ranks with the reason of the first such rank. All ranks must call it.
pub(super) fn is_stop_asked(world: &World, interrupter: &Interrupter) -> Result<bool, CommError> {
    let reason = || interrupter.get_message().unwrap_or_else(|| "it was asked to stop".to_owned());
    let ranks: Vec<Option<String>> = world.gather(&interrupter.should_stop().then(reason))?;
    let first = ranks.into_iter().enumerate().find_map(|(rank, reason)| Some((rank, reason?)));
    let Some((rank, reason)) = first else { return Ok(false) };
    if !interrupter.should_stop() {
        interrupter.stop(Some(&format!("rank {rank} on {}: {reason}", world.host_of(rank))));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_any_number_of_items_once() {
        for items in [0, 1, 7, 1 << 32, usize::MAX] {
            let parts: Vec<_> = (0..3).map(|rank| range_of(items, 3, rank)).collect();
            assert_eq!((parts[0].start, parts[2].end), (0, items));
            assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{parts:?}");
            assert!(parts.iter().all(|part| part.len().abs_diff(items / 3) <= 1), "{parts:?}");
        }
    }
}
