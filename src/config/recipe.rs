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
    let schedule: ScheduleKind = parse("schedule", &args.schedule)?;
    let falls = schedule == ScheduleKind::Step;
    let recipe = Recipe {
        optimizer: parse("optimizer", &args.optimizer)?,
        momentum: args.momentum,
        schedule,
        max_lr: args.max_lr,
        step_size: args.step_size.or(falls.then(|| (epochs * 3 / 10).max(1))),
        gamma: args.gamma.or(falls.then_some(GAMMA)),
        clip_norm: args.clip_norm,
        l1: args.l1,
        l2: args.l2,
        label_smoothing: args.label_smoothing,
        early_stopping: args.early_stopping,
        augment: args.augment.as_deref().map(|names| parse("augment", names)).transpose()?,
    };
    check(&recipe)?;
    Ok(recipe)
}

/// Checks the options against each other.
pub(super) fn check(recipe: &Recipe) -> Result<(), ConfigError> {
    let falls = recipe.schedule == ScheduleKind::Step;
    let cycles = recipe.schedule == ScheduleKind::OneCycle;
    if let Some(momentum) = recipe.momentum {
        check_momentum(momentum, recipe.optimizer, cycles)?;
    }
    only_with(falls, "step-size", recipe.step_size.map(|n| n as f64), "step")?;
    only_with(falls, "gamma", recipe.gamma, "step")?;
    only_with(cycles, "max-lr", recipe.max_lr, "onecycle")?;
    let refuse = |problem| Err(ConfigError::new("schedule", names::name(&recipe.schedule), problem));
    if cycles && recipe.max_lr.is_none() {
        return refuse("needs its highest learning rate: add --max-lr X");
    }
    if falls && (recipe.step_size.is_none() || recipe.gamma.is_none()) {
        return refuse("needs --step-size and --gamma");
    }
    for (option, value) in [("step-size", recipe.step_size), ("early-stopping", recipe.early_stopping)] {
        value.map(|value| positive(option, value)).transpose()?;
    }
    for (option, value) in
        [("gamma", recipe.gamma), ("max-lr", recipe.max_lr), ("clip-norm", recipe.clip_norm)]
    {
        value.map(|value| more_than_0(option, value)).transpose()?;
    }
    not_negative("l1", recipe.l1)?;
    not_negative("l2", recipe.l2)?;
    below_1("label-smoothing", recipe.label_smoothing)?;
    Ok(())
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
