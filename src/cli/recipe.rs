//! Options of `mpiburn train` on how weights are found: optimizer, schedule,
//! regularisation, augmentation.

use clap::Args;

use crate::data::augment::Augmentation;
use crate::names::OneOf;
use crate::train::{Rule, ScheduleKind};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Recipe")]
pub struct RecipeArgs {
    /// Learning rate; onecycle takes --max-lr instead.
    #[arg(
        long,
        visible_alias = "optimizer-lr",
        value_name = "X",
        default_value_t = 5e-4,
        allow_negative_numbers = true
    )]
    pub lr: f64,
    /// L2 penalty, added to the gradient inside the optimizer; with adamw, weights decay by
    /// learning rate times X instead.
    #[arg(
        long,
        visible_alias = "optimizer-lr-decay",
        value_name = "X",
        default_value_t = 5e-4,
        allow_negative_numbers = true
    )]
    pub weight_decay: f64,
    /// Optimizer, with PyTorch's defaults.
    #[arg(long, value_name = "NAME", default_value = "adam", value_parser = OneOf::values::<Rule>())]
    pub optimizer: String,
    /// Momentum of sgd and rmsprop, from 0 to below 1 [default: 0].
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub momentum: Option<f64>,
    /// Learning rate over time: step and cosine change it by epoch, onecycle by step.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "constant",
        value_parser = OneOf::values::<ScheduleKind>()
    )]
    pub schedule: String,
    /// OneCycleLR: highest learning rate.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub max_lr: Option<f64>,
    /// StepLR: epochs between decays [default: 30% of the epochs, at least 1].
    #[arg(long, value_name = "EPOCHS")]
    pub step_size: Option<usize>,
    /// StepLR: factor of each decay [default: 0.1].
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub gamma: Option<f64>,
    /// Clip gradients to this norm over all parameters.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub clip_norm: Option<f64>,
    /// Add X times the sum of |w| over all parameters to what is minimised.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub l1: f64,
    /// Add X times the sum of w^2 over all parameters to what is minimised; losses are shown
    /// without penalties.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub l2: f64,
    /// Share of each training label that is spread over all classes, from 0 to below 1; the test
    /// loss is without.
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub label_smoothing: f64,
    /// Stop after N epochs without a lower test loss, and keep the best epoch's checkpoint.
    #[arg(long, value_name = "N")]
    pub early_stopping: Option<usize>,
    /// Random augmentation of training images, drawn anew in each epoch; several as crop,flip.
    #[arg(long, value_name = "NAMES", value_parser = OneOf::names(Augmentation::NAMES))]
    pub augment: Option<String>,
}
