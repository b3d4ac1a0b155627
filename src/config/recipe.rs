//! Validation of the training recipe: optimizer, schedule, regularisation,
//! augmentation.

use std::path::Path;

use clap::ValueEnum;

use super::{ConfigError, more_than_0, not_negative, parse, positive};
use crate::cli::RecipeArgs;
use crate::data::{Description, Element};
use crate::names;
use crate::train::{GAMMA, Recipe, Rule, ScheduleKind};

/// The validated options of a training of `epochs` epochs.
///
/// # Errors
/// If one is invalid, alone or together with the others.
pub(super) fn recipe(args: &RecipeArgs, epochs: usize) -> Result<Recipe, ConfigError> {
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
    Ok(Recipe {
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

/// Checks that the requested augmentation is possible on the data set in
/// `root`.
///
/// # Errors
/// If its samples are not images of bytes.
pub fn check_data(recipe: &Recipe, root: &Path, data: &Description) -> Result<(), ConfigError> {
    let images = data.element == Element::U8 && data.shape[1] > 1;
    match &recipe.augment {
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
fn check_momentum(momentum: f64, optimizer: Rule, cycles: bool) -> Result<(), ConfigError> {
    let refuse = |problem: String| Err(ConfigError::new("momentum", momentum, problem));
    if !optimizer.takes_momentum() {
        let takers: Vec<String> =
            Rule::value_variants().iter().filter(|rule| rule.takes_momentum()).map(names::name).collect();
        return refuse(format!(
            "is for {}, and the optimizer is {optimizer}: leave it out",
            takers.join(" and ")
        ));
    }
    if cycles {
        return refuse("the schedule onecycle moves it between 0.85 and 0.95: leave it out".into());
    }
    below_1("momentum", momentum).map(|_| ())
}

/// Rejects an option that belongs to another schedule.
fn only_with(
    fits: bool,
    option: &'static str,
    value: Option<f64>,
    schedule: &str,
) -> Result<(), ConfigError> {
    match value {
        Some(value) if !fits => {
            Err(ConfigError::new(option, value, format!("requires --schedule {schedule}")))
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
