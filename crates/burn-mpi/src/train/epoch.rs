//! Epochs of training and validation over all ranks, as burn-train's on one device.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use burn::train::{
    EventProcessorTraining, InferenceStep, Interrupter, Learner, LearnerEvent, LearnerModel,
    SupervisedTrainingEventProcessor, TrainStep, TrainingItem,
};

use super::backward::{self, Gave};
use super::first_step;
use super::outputs::{self, RankOutput};
use super::turn::Turn;
use crate::{CommError, GradientSync, World};

/// A loader's items of this rank, with their samples.
struct Shard<'a, O> {
    iterator: Option<Box<dyn DataLoaderIterator<O> + 'a>>,
    processed: usize,
}

impl<'a, O> Shard<'a, O> {
    fn of(loader: Option<&'a dyn DataLoader<O>>) -> Self {
        Self { iterator: loader.map(|loader| loader.iter()), processed: 0 }
    }

    /// The next item, its samples, and whether it is the last; or why there is none.
    fn next(&mut self) -> Result<Option<(O, usize, bool)>, String> {
        let Some(iterator) = &mut self.iterator else { return Ok(None) };
        let item = match iterator.next() {
            Some(item) => item.map_err(|error| format!("the data loader fails: {error}"))?,
            None => return Ok(None),
        };
        let progress = iterator.progress();
        // A loader that does not count its items has equal batches.
        let samples = progress.items_processed.saturating_sub(self.processed).max(1);
        self.processed = progress.items_processed;
        Ok(Some((item, samples, progress.is_completed())))
    }

    /// This rank's item in the next step of all ranks, and the step.
    fn take_turn(
        &mut self,
        world: &World,
        interrupter: &Interrupter,
    ) -> Result<(Option<O>, Turn), CommError> {
        let error = interrupter.error().map(|error| error.to_string());
        let (item, failure) = match (error, self.next()) {
            (None, Ok(item)) => (item, None),
            (Some(error), _) | (None, Err(error)) => (None, Some(error)),
        };
        let own = item.as_ref().map_or(0, |(_, samples, _)| *samples);
        let last = item.as_ref().is_none_or(|(_, _, last)| *last);
        let turn = Turn::take(world, own, last, interrupter.should_stop(), failure)?;
        Ok((item.map(|(item, ..)| item), turn))
    }
}

/// Both loaders' shards of this rank, and what is the same in all epochs.
pub(super) struct Epochs<M: LearnerModel> {
    pub world: World,
    pub sync: Rc<RefCell<GradientSync>>,
    pub train: Option<Arc<dyn DataLoader<<M as TrainStep>::Input>>>,
    pub valid: Option<Arc<dyn DataLoader<<M as InferenceStep>::Input>>>,
    /// Samples of all ranks.
    pub train_items: usize,
    pub valid_items: usize,
    /// Samples of this rank's shard of the training set.
    pub own_items: usize,
    pub accumulation: Option<usize>,
    /// Whether training metrics are those of all ranks.
    pub all_metrics: bool,
    /// Where rank 0 computes metrics.
    pub device: Device,
}

impl<M: LearnerModel> Epochs<M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    /// Trains on every rank's shard; returns whether rank 0 was asked to stop. In the first epoch,
    /// batches are compared before the first step, and weights after it.
    pub fn train(
        &self,
        learner: &mut Learner<M>,
        processor: &mut SupervisedTrainingEventProcessor<M>,
        interrupter: &Interrupter,
        is_first: bool,
    ) -> Result<bool, CommError> {
        let mut shard = Shard::of(self.train.as_deref());
        let mut accumulator = GradientsAccumulator::new();
        let mut unchecked = is_first && self.world.size() > 1;
        let (mut accumulated, mut processed, mut iteration) = (0, 0, 0);
        loop {
            let (item, turn) = shard.take_turn(&self.world, interrupter)?;
            if turn.total == 0 || turn.stop {
                return Ok(turn.stop);
            }
            if unchecked && iteration == 0 {
                first_step::check_batches(&self.world, turn.own, self.own_items)?;
            }
            let (output, gradients) = self.step(learner, item, turn)?;
            match self.accumulation {
                Some(steps) => {
                    accumulator.accumulate(&learner.model(), gradients);
                    accumulated += 1;
                    if steps <= accumulated || turn.last {
                        learner.lr_step();
                        learner.optimizer_step(accumulator.grads());
                        accumulated = 0;
                    }
                }
                None => {
                    learner.lr_step();
                    learner.optimizer_step(gradients);
                }
            }
            if unchecked && accumulated == 0 {
                unchecked = false;
                first_step::check_weights(&self.world, &learner.model())?;
            }
            iteration += 1;
            processed += turn.total;
            let progress = Progress::new(processed, self.train_items, None);
            for output in self.shown(output, turn.own)? {
                let lr = Some(learner.lr_current());
                let item = TrainingItem::new(output, progress.clone(), Some(iteration), lr);
                interrupter.fail_on_error(processor.process_train(LearnerEvent::ProcessedItem(item)));
            }
        }
    }

    /// Forward and backward of this rank's item, if it has one, and the averaged gradients.
    #[allow(clippy::type_complexity)]
    fn step(
        &self,
        learner: &Learner<M>,
        item: Option<<M as TrainStep>::Input>,
        turn: Turn,
    ) -> Result<(Option<<M as TrainStep>::Output>, GradientsParams), CommError> {
        if self.world.size() == 1 {
            let output = item.map(|item| learner.train_step(item));
            let (gradients, output) = output.map(|output| (output.grads, output.item)).unzip();
            return Ok((output, gradients.unwrap_or_default()));
        }
        let model = learner.model();
        let mut shown = None;
        if let Some(item) = item {
            let step = || learner.train_step(item);
            let (output, gave) = backward::with(&self.sync, model.clone(), turn.own, turn.total, step)?;
            if let Gave::Output = gave {
                self.sync.borrow_mut().contribute(output.grads, &model, turn.own, turn.total)?;
            }
            shown = Some(output.item);
        }
        let gradients = self.sync.borrow_mut().finish(&model)?;
        Ok((shown, gradients))
    }

    /// The outputs of a training step that rank 0's metrics take.
    fn shown(
        &self,
        output: Option<<M as TrainStep>::Output>,
        samples: usize,
    ) -> Result<Vec<<M as TrainStep>::Output>, CommError> {
        match self.world.size() > 1 && self.all_metrics {
            true => outputs::on_root(&self.world, output, samples, &self.device),
            false => Ok(output.filter(|_| self.world.is_root()).into_iter().collect()),
        }
    }

    /// Validates on every rank's shard; rank 0 has the metrics of all.
    pub fn valid(
        &self,
        learner: &Learner<M>,
        processor: &mut SupervisedTrainingEventProcessor<M>,
        interrupter: &Interrupter,
    ) -> Result<bool, CommError> {
        let model = learner.model().valid();
        let mut shard = Shard::of(self.valid.as_deref());
        let (mut processed, mut iteration) = (0, 0);
        loop {
            let (item, turn) = shard.take_turn(&self.world, interrupter)?;
            if turn.total == 0 || turn.stop {
                return Ok(turn.stop);
            }
            iteration += 1;
            processed += turn.total;
            let progress = Progress::new(processed, self.valid_items, None);
            let output = item.map(|item| InferenceStep::step(&model, item));
            let outputs = match self.world.size() > 1 {
                true => outputs::on_root(&self.world, output, turn.own, &self.device)?,
                false => output.into_iter().collect(),
            };
            for output in outputs {
                let item = TrainingItem::new(output, progress.clone(), Some(iteration), None);
                interrupter.fail_on_error(processor.process_valid(LearnerEvent::ProcessedItem(item)));
            }
        }
    }
}
