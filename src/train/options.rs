//! Options and recipe of a training.

use serde::{Deserialize, Serialize};

use super::{Curve, Precision, Rate, Rule, Schedule, ScheduleKind};
use crate::data::augment::Augmentation;
use crate::data::{SampleSource, ShardPlan, Split};
use crate::device::DeviceKind;
use crate::quant::PostTraining;
use burn_mpi::SyncOptions;

/// Default factor of StepLR: PyTorch's gamma.
pub const GAMMA: f64 = 0.1;

/// All options of a [`Trainer`](super::Trainer) and a [`Learner`](super::Learner),
/// except network, data set and transport.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainOptions {
    /// Name of the network, stored in checkpoints.
    pub model: String,
    /// Seed of shuffling, augmentation and dropout.
    pub seed: u64,
    /// Samples of one rank's training batch.
    pub train_batch_size: usize,
    /// Samples of one rank's test batch.
    pub test_batch_size: usize,
    /// Batches of one rank whose gradients make one step.
    pub accumulate: usize,
    /// Whether samples are shuffled in each epoch.
    pub shuffle: bool,
    /// First training samples to use; all if none.
    pub train_samples: Option<usize>,
    /// First test samples to use; all if none.
    pub test_samples: Option<usize>,
    /// Passes over the training set.
    pub epochs: usize,
    /// Learning rate without a schedule.
    pub lr: f64,
    /// L2 penalty, or AdamW's decay.
    pub weight_decay: f64,
    /// Optimizer, schedule, regularisation and augmentation.
    pub recipe: Recipe,
    /// How int8 models of the float weights are made after each epoch, if they are.
    pub post_training: Option<PostTraining>,
    /// Type of activations and products.
    pub precision: Precision,
    /// Compute device of the tensors.
    pub device: DeviceKind,
    /// How gradients are averaged.
    pub sync: SyncOptions,
    /// Steps between two lines of training metrics.
    pub log_every: usize,
    /// Steps between two checkpoints inside an epoch.
    pub checkpoint_every: Option<usize>,
}

/// Options of the optimization, except learning rate and weight decay. The
/// defaults match runs from before these options existed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recipe {
    /// Optimizer kind.
    pub optimizer: Rule,
    /// Momentum of SGD and RMSprop; `None` for PyTorch's default.
    pub momentum: Option<f64>,
    /// Learning rate schedule.
    pub schedule: ScheduleKind,
    /// Highest learning rate of OneCycle.
    pub max_lr: Option<f64>,
    /// StepLR: epochs between decays.
    pub step_size: Option<usize>,
    /// StepLR: factor of a decay.
    pub gamma: Option<f64>,
    /// Maximum norm of all gradients.
    pub clip_norm: Option<f64>,
    /// Weight of the sum of |w| in the loss.
    pub l1: f64,
    /// Weight of the sum of w^2 in the loss.
    pub l2: f64,
    /// Label smoothing: share of each label that is spread over all classes.
    pub label_smoothing: f64,
    /// Early stopping: epochs without a lower test loss before the run stops.
    pub early_stopping: Option<usize>,
    /// Augmentation of training images.
    pub augment: Option<Augmentation>,
}

impl Recipe {
    /// Learning rate and momentum without a schedule. OneCycle's momentum is never
    /// 0, with any optimizer.
    pub fn base_rate(&self, lr: f64) -> Rate {
        let momentum = match self.schedule {
            ScheduleKind::OneCycle => 0.95,
            _ => self.momentum.unwrap_or(self.optimizer.default_momentum()),
        };
        Rate { lr, momentum }
    }
}

impl TrainOptions {
    /// Sharding of the first samples of a split, and the batch size.
    pub fn plan(&self, source: &dyn SampleSource, split: Split, world_size: usize) -> ShardPlan {
        let (limit, batch_size) = match split {
            Split::Train => (self.train_samples, self.train_batch_size.saturating_mul(self.accumulate)),
            Split::Test => (self.test_samples, self.test_batch_size),
        };
        let all = source.len(split);
        ShardPlan { samples: limit.map_or(all, |n| n.min(all)), world_size, batch_size }
    }

    /// Learning rate and momentum before the first step.
    pub fn base_rate(&self) -> Rate {
        self.recipe.base_rate(self.lr)
    }

    /// The schedule's values for each step, with `steps` steps in an epoch.
    pub fn rates(&self, steps: usize) -> Schedule {
        let recipe = &self.recipe;
        let curve = match recipe.schedule {
            ScheduleKind::Constant => Curve::Constant,
            ScheduleKind::Step => {
                Curve::Step { size: recipe.step_size.unwrap_or(1), gamma: recipe.gamma.unwrap_or(GAMMA) }
            }
            ScheduleKind::Cosine => Curve::Cosine,
            ScheduleKind::OneCycle => Curve::OneCycle { max_lr: recipe.max_lr.unwrap_or(self.lr) },
        };
        Schedule { curve, base: self.base_rate(), epochs: self.epochs, steps }
    }
}
