//! Epochs of training and validation over all ranks, modelled on burn-train's epochs on one device.

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

use super::backward;
use super::first_step;
use super::outputs::{self, RankOutput};
use super::strategy::{is_stop_asked, shard_range};
use crate::module::{AFTER_A_STEP, check_equal};
use crate::{CommError, GradientSync, World};

/// One step of all ranks, as this rank sees it.
struct Turn<O> {
    /// This rank's item; `None` if its shard is exhausted.
    item: Option<O>,
    /// Samples of this rank.
    own: usize,
    /// Samples of all ranks; 0 after the last step.
    total: usize,
    /// Whether no rank has samples after this step.
    last: bool,
    /// Whether a rank has been asked to stop.
    stop: bool,
}

/// The items of this rank's shard of a loader.
struct ShardItems<'a, O> {
    iterator: Option<Box<dyn DataLoaderIterator<O> + 'a>>,
    /// Samples of the items so far.
    processed: usize,
}

impl<'a, O> ShardItems<'a, O> {
    fn from_loader(loader: Option<&'a dyn DataLoader<O>>) -> Self {
        Self { iterator: loader.map(|loader| loader.iter()), processed: 0 }
    }

    /// Takes this rank's next item. Ranks exchange the number of samples in their items, whether the item is
    /// the last of the rank's shard, and whether the rank is asked to stop.
    ///
    /// # Errors
    /// On all ranks, the error of the first rank with a failed loader or display.
    fn take_turn(&mut self, world: &World, interrupter: &Interrupter) -> Result<Turn<O>, CommError> {
        let next = self.iterator.as_mut().and_then(|iterator| iterator.next()).transpose();
        let failure = interrupter.error().map(|error| error.to_string());
        let mut failure =
            failure.or(next.as_ref().err().map(|error| format!("the data loader failed: {error}")));
        let item = next.ok().flatten();
        let (mut own, mut ends) = (0, true);
        if let (Some(iterator), Some(_)) = (&self.iterator, &item) {
            let progress = iterator.progress();
            own = match progress.items_processed {
                // The loader does not count items: count each batch as one sample, so that all batches have
                // the same weight.
                0 => 1,
                // This also works with several workers: a batch arrives with the progress of its worker, so
                // batches that have not arrived are not counted.
                counted => counted.saturating_sub(self.processed),
            };
            if own == 0 {
                failure = failure.or(Some(format!(
                    "the data loader returned a batch, but its progress stays at {} samples; gradients are weighted by \
                     this count, so it has to include every batch returned so far",
                    self.processed
                )));
            }
            self.processed = progress.items_processed;
            ends = progress.is_completed();
        }
        let stop = interrupter.should_stop();
        let mut sums = [own as f64, ends.into(), stop.into(), failure.is_some().into()];
        world.sum_f64(&mut sums)?;
        let [total, ended, stops, failures] = sums;
        if failures > 0.0 {
            world.agree(failure.map_or(Ok(()), Err))?;
        }
        let last = ended as usize == world.size();
        let stop = stops > 0.0 && is_stop_asked(world, interrupter)?;
        Ok(Turn { item, own, total: total as usize, last, stop })
    }
}

/// This rank's shards of the training and validation loaders, and the values that all epochs use.
pub(super) struct Epochs<M: LearnerModel> {
    pub world: World,
    pub sync: Rc<RefCell<GradientSync>>,
    pub train: Option<Arc<dyn DataLoader<<M as TrainStep>::Input>>>,
    pub valid: Option<Arc<dyn DataLoader<<M as InferenceStep>::Input>>>,
    /// Training samples of all ranks.
    pub train_items: usize,
    /// Validation samples of all ranks.
    pub valid_items: usize,
    /// Number of steps over which gradients are summed before each step of the optimizer.
    pub accumulation: usize,
    /// Whether training metrics cover the samples of all ranks; if false, only rank 0's samples.
    pub all_metrics: bool,
    /// Device on which rank 0 computes metrics.
    pub device: Device,
}

impl<M: LearnerModel> Epochs<M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    /// Trains one epoch on this rank's shard, until all shards end or a rank is asked to stop. In the first
    /// epoch, ranks compare batch sizes once two batches are known, and weights after the first step of the
    /// optimizer.
    pub fn train(
        &self,
        learner: &mut Learner<M>,
        processor: &mut SupervisedTrainingEventProcessor<M>,
        interrupter: &Interrupter,
        is_first: bool,
    ) -> Result<(), CommError> {
        let mut shard = ShardItems::from_loader(self.train.as_deref());
        let mut accumulator = GradientsAccumulator::new();
        let checked = is_first && self.world.size() > 1;
        let (mut unchecked, mut first_batch) = (checked, 0);
        let (mut accumulated, mut processed, mut iteration) = (0, 0, 0);
        loop {
            let Turn { item, own, total, last, stop } = shard.take_turn(&self.world, interrupter)?;
            if checked && !stop && iteration == 1 {
                let items = shard_range(&self.world, self.train_items).len();
                first_step::check_batches(&self.world, [first_batch, own], items)?;
            }
            if total == 0 || stop {
                return Ok(());
            }
            if iteration == 0 {
                first_batch = own;
            }
            let (output, gradients) = self.step(learner, item, own, total)?;
            accumulator.accumulate(&learner.model(), gradients);
            accumulated += 1;
            if self.accumulation <= accumulated || last {
                learner.lr_step();
                learner.optimizer_step(accumulator.grads());
                accumulated = 0;
            }
            if unchecked && accumulated == 0 {
                unchecked = false;
                check_equal(&self.world, &learner.model(), false, AFTER_A_STEP)?;
            }
            iteration += 1;
            processed += total;
            let progress = Progress::new(processed, self.train_items, None);
            for output in self.shown(output, own, self.all_metrics)? {
                let lr = Some(learner.lr_current());
                let item = TrainingItem::new(output, progress.clone(), Some(iteration), lr);
                interrupter.fail_on_error(processor.process_train(LearnerEvent::ProcessedItem(item)));
            }
        }
    }

    /// Runs forward and backward of this rank's item, if it has one. Returns the item's output and the
    /// gradients, averaged over the ranks.
    #[allow(clippy::type_complexity)]
    fn step(
        &self,
        learner: &Learner<M>,
        item: Option<<M as TrainStep>::Input>,
        own: usize,
        total: usize,
    ) -> Result<(Option<<M as TrainStep>::Output>, GradientsParams), CommError> {
        if self.world.size() == 1 {
            let output = item.map(|item| learner.train_step(item));
            let (gradients, output) = output.map(|output| (output.grads, output.item)).unzip();
            return Ok((output, gradients.unwrap_or_default()));
        }
        let model = learner.model();
        let averaging = |item| {
            let step = || learner.train_step(item);
            backward::run_step(&self.sync, &model, own, total, step)
        };
        let shown = item.map(averaging).transpose()?;
        let gradients = self.sync.borrow_mut().finish(&model)?;
        Ok((shown, gradients))
    }

    /// Returns the outputs of a step for rank 0's metrics: of all ranks if `of_all`, otherwise rank 0's own.
    /// On other ranks, returns an empty vector.
    fn shown<O: RankOutput>(
        &self,
        output: Option<O>,
        samples: usize,
        of_all: bool,
    ) -> Result<Vec<O>, CommError> {
        if self.world.size() > 1 && of_all {
            outputs::on_root(&self.world, output, samples, &self.device)
        } else {
            Ok(output.filter(|_| self.world.is_root()).into_iter().collect())
        }
    }

    /// Validates on this rank's shard, until all shards end or a rank is asked to stop. Rank 0 computes the
    /// metrics of all ranks.
    pub fn valid(
        &self,
        learner: &Learner<M>,
        processor: &mut SupervisedTrainingEventProcessor<M>,
        interrupter: &Interrupter,
    ) -> Result<(), CommError> {
        let model = learner.model().valid();
        let mut shard = ShardItems::from_loader(self.valid.as_deref());
        let (mut processed, mut iteration) = (0, 0);
        loop {
            let Turn { item, own, total, stop, .. } = shard.take_turn(&self.world, interrupter)?;
            if total == 0 || stop {
                return Ok(());
            }
            iteration += 1;
            processed += total;
            let progress = Progress::new(processed, self.valid_items, None);
            let output = item.map(|item| InferenceStep::step(&model, item));
            for output in self.shown(output, own, true)? {
                let item = TrainingItem::new(output, progress.clone(), Some(iteration), None);
                interrupter.fail_on_error(processor.process_valid(LearnerEvent::ProcessedItem(item)));
            }
        }
    }
}
