//! How weights are found: optimizer, schedule, regularisation, augmentation.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{ConfigError, RunConfig, more_than_0, not_negative, parse, positive};
use crate::cli::RecipeArgs;
use crate::data::augment::Augmentation;
use crate::data::{Description, Element};
use crate::train::{Curve, Rate, Rule, Schedule, ScheduleKind};

/// Factor of a stepwise schedule, unless another is asked for: PyTorch's.
const GAMMA: f64 = 0.1;

/// The part of [`RunConfig`] that decides how weights are found, beside learning
/// rate and weight decay. The defaults are those of runs from before there was
/// a choice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recipe {
    /// How gradients become new weights.
    pub optimizer: Rule,
    /// Momentum of SGD and RMSprop; PyTorch's default if none.
    pub momentum: Option<f64>,
    /// Learning rate over time.
    pub schedule: ScheduleKind,
    /// Highest learning rate of OneCycle.
    pub max_lr: Option<f64>,
    /// Epochs at one rate of a stepwise schedule.
    pub step_size: Option<usize>,
    /// Factor of a stepwise schedule.
    pub gamma: Option<f64>,
    /// Norm of all gradients at most.
    pub clip_norm: Option<f64>,
    /// Weight of the sum of |w| in the loss.
    pub l1: f64,
    /// Weight of the sum of w^2 in the loss.
    pub l2: f64,
    /// Share of each label that is spread over all classes.
    pub label_smoothing: f64,
    /// Epochs without a lower test loss after which to stop.
    pub early_stopping: Option<usize>,
    /// Changes made to training images.
    pub augment: Option<Augmentation>,
}

impl Recipe {
    /// What the options mean in a training of `epochs` epochs.
    ///
    /// # Errors
    /// When one makes no sense, alone or beside the others.
    pub fn new(args: &RecipeArgs, epochs: usize) -> Result<Self, ConfigError> {
        let optimizer: Rule = parse("optimizer", &args.optimizer)?;
        let schedule: ScheduleKind = parse("schedule", &args.schedule)?;
        let falls = schedule == ScheduleKind::Step;
        let cycles = schedule == ScheduleKind::OneCycle;
        if let Some(momentum) = args.momentum {
            check_momentum(momentum, optimizer, cycles)?;
        }
        only_with(falls, "step-size", args.step_size.map(|n| n as f64), "step")?;
        only_with(falls, "gamma", args.gamma, "step")?;
        only_with(cycles, "max-lr", args.max_lr, "onecycle")?;
        if cycles && args.max_lr.is_none() {
            return Err(ConfigError::new(
                "schedule",
                "onecycle",
                "needs its highest learning rate: add --max-lr X",
            ));
        }
        let step_size = args.step_size.map(|n| positive("step-size", n)).transpose()?;
        let gamma = args.gamma.map(|x| more_than_0("gamma", x)).transpose()?;
        Ok(Self {
            optimizer,
            momentum: args.momentum,
            schedule,
            max_lr: args.max_lr.map(|x| more_than_0("max-lr", x)).transpose()?,
            step_size: if falls { step_size.or(Some((epochs * 3 / 10).max(1))) } else { None },
            gamma: if falls { gamma.or(Some(GAMMA)) } else { None },
            clip_norm: args.clip_norm.map(|x| more_than_0("clip-norm", x)).transpose()?,
            l1: not_negative("l1", args.l1)?,
            l2: not_negative("l2", args.l2)?,
            label_smoothing: below_1("label-smoothing", args.label_smoothing)?,
            early_stopping: args.early_stopping.map(|n| positive("early-stopping", n)).transpose()?,
            augment: args.augment.as_deref().map(|names| parse("augment", names)).transpose()?,
        })
    }

    /// Learning rate and momentum without a schedule. OneCycle's momentum is
    /// never 0, whatever the optimizer.
    pub fn base_rate(&self, lr: f64) -> Rate {
        let momentum = match self.schedule {
            ScheduleKind::OneCycle => 0.95,
            _ => self.momentum.unwrap_or(self.optimizer.default_momentum()),
        };
        Rate { lr, momentum }
    }

    /// Checks that what is asked for can be done to the data set in `root`.
    ///
    /// # Errors
    /// When its samples are no images of bytes.
    pub fn check_data(&self, root: &Path, data: &Description) -> Result<(), ConfigError> {
        let images = data.element == Element::U8 && data.shape[1] > 1;
        match &self.augment {
            Some(augment) if !images => Err(ConfigError::new(
                "augment",
                augment,
                format!(
                    "changes images of bytes, and {} holds {} of {} values: leave it out",
                    root.display(),
                    data.kind,
                    data.shape.iter().product::<usize>()
                ),
            )),
            _ => Ok(()),
        }
    }
}

impl RunConfig {
    /// Learning rate and momentum of each step, with `steps` steps in an epoch.
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
        Schedule { curve, base: recipe.base_rate(self.lr), epochs: self.epochs, steps }
    }
}

fn check_momentum(momentum: f64, optimizer: Rule, cycles: bool) -> Result<(), ConfigError> {
    let refuse = |problem: String| Err(ConfigError::new("momentum", momentum, problem));
    if !optimizer.takes_momentum() {
        return refuse(format!("is for sgd and rmsprop, and the optimizer is {optimizer}: leave it out"));
    }
    if cycles {
        return refuse("the schedule onecycle moves it between 0.85 and 0.95: leave it out".into());
    }
    below_1("momentum", momentum).map(|_| ())
}

/// Refuses an option of one schedule beside another.
fn only_with(
    fits: bool,
    option: &'static str,
    value: Option<f64>,
    schedule: &str,
) -> Result<(), ConfigError> {
    match value {
        Some(value) if !fits => {
            Err(ConfigError::new(option, value, format!("has a meaning with --schedule {schedule} alone")))
        }
        _ => Ok(()),
    }
}

fn below_1(option: &'static str, value: f64) -> Result<f64, ConfigError> {
    match (0.0..1.0).contains(&value) {
        true => Ok(value),
        false => Err(ConfigError::new(option, value, "must be from 0 to below 1")),
    }
}

#[cfg(test)]
#[path = "recipe_tests.rs"]
mod tests;
