//! Options that change when a run is resumed: `--set KEY=VALUE`.
//!
//! The stored configuration is written as the options that make it, one of them is replaced, and
//! the command line is read again: a value is checked as that of the option.

use std::collections::BTreeMap;

use clap::{Args, FromArgMatches};
use serde_json::Value;

use super::{ConfigError, RunConfig};
use crate::cli::TrainArgs;

/// Options that a resumed run may change.
const CHANGEABLE: [&str; 33] = [
    "epochs",
    "lr",
    "weight-decay",
    "momentum",
    "schedule",
    "max-lr",
    "step-size",
    "gamma",
    "clip-norm",
    "l1",
    "l2",
    "label-smoothing",
    "early-stopping",
    "augment",
    "dropout",
    "freeze-after",
    "fold-after",
    "calibration",
    "data-root",
    "test-batch-size",
    "test-samples",
    "fused",
    "conv",
    "backend",
    "interface",
    "gloo-algorithm",
    "reduce",
    "grad-dtype",
    "overlap",
    "bucket-mb",
    "comm-timeout",
    "threads",
    "log-every",
];
/// The others of the same kind, which only decide what is written.
const OF_CHECKPOINTS: [&str; 2] = ["checkpoint-every", "keep"];

/// Whether `option` can change in a resumed run.
///
/// # Errors
/// The reason why it cannot.
pub fn change_of(option: &str) -> Result<(), &'static str> {
    match CHANGEABLE.iter().chain(&OF_CHECKPOINTS).any(|known| *known == option) {
        true => Ok(()),
        false => Err(reason(option)),
    }
}

/// Why another option stays as it is.
fn reason(option: &str) -> &'static str {
    match option {
        "model" | "activation" | "batch-norm" | "hidden" => "the checkpoint's weights are of this network",
        "init" => "the weights are the checkpoint's",
        "seed" => "the order of the samples, augmentation and dropout so far are of this seed",
        "train-batch-size" | "accumulate" | "train-samples" | "shuffle" => {
            "the checkpoint counts steps of these samples"
        }
        "optimizer" => "the checkpoint has this optimizer's moments",
        "quantize" | "quantized" | "weight-scheme" => "the checkpoint's ranges are of this quantization",
        "precision" => "the checkpoint's loss scale and weights are of this precision",
        "num-classes" => "the checkpoint's weights are of these classes",
        "device" => "the checkpoint is resumed to the same bits on the same device alone",
        _ => "it is no option of a stored run",
    }
}

/// Options of the schedule, which another schedule does not have.
const OF_SCHEDULES: [&str; 3] = ["max-lr", "step-size", "gamma"];

impl RunConfig {
    /// The configuration with each of `changes`, `KEY=VALUE` with an option's name and value;
    /// `none` is an option that is not given.
    ///
    /// # Errors
    /// If an option is unknown, cannot change, or has an invalid value.
    pub fn changed(&self, changes: &[String]) -> Result<Self, ConfigError> {
        if changes.is_empty() {
            return Ok(self.clone());
        }
        let mut words = self.words()?;
        let listed = || CHANGEABLE.into_iter().chain(OF_CHECKPOINTS).collect::<Vec<_>>().join(", ");
        // The options of a schedule are typed before or after it.
        let of_schedule = |change: &&String| !change.starts_with("schedule=");
        let mut ordered: Vec<&String> = changes.iter().collect();
        ordered.sort_by_key(of_schedule);
        for change in ordered {
            let refuse = |problem: String| Err(ConfigError::new("set", change, problem));
            let Some((name, value)) = change.split_once('=') else {
                return refuse("must be KEY=VALUE, such as lr=0.001".into());
            };
            let Some(option) = canonical(name) else {
                return refuse(format!("there is no option --{name}; a resumed run can change {}", listed()));
            };
            if let Err(reason) = change_of(&option) {
                return refuse(format!("--{option} cannot change in a resumed run: {reason}"));
            }
            if option == "schedule" && words.get(&option) != Some(&Some(value.to_owned())) {
                OF_SCHEDULES.iter().for_each(|of| drop(words.remove(*of)));
            }
            words.remove(&option);
            if value != "none" {
                words.insert(option, Some(value.to_owned()));
            }
        }
        read(&words).map_err(|problem| ConfigError::new("set", changes.join(" --set "), problem))
    }

    /// The options that make this configuration, with their values; `None` for a switch.
    fn words(&self) -> Result<BTreeMap<String, Option<String>>, ConfigError> {
        let fields = serde_json::to_value(self)
            .map_err(|error| ConfigError::new("resume", "", format!("run.json: {error}")))?;
        let mut words = BTreeMap::new();
        for (name, value) in fields.as_object().into_iter().flatten() {
            let option = name.replace('_', "-");
            let value = match (option.as_str(), value) {
                // It is stored in every run, and typed with --quantize alone.
                ("weight-scheme", _) if self.quantization.quantize.is_none() => continue,
                (_, Value::Null | Value::Bool(false)) if !is_on_off(&option) => continue,
                (_, Value::Bool(on)) if is_on_off(&option) => Some(if *on { "on" } else { "off" }.to_owned()),
                (_, Value::Bool(_)) => None,
                (_, Value::String(text)) => Some(text.clone()),
                (_, other) => Some(other.to_string()),
            };
            words.insert(option, value);
        }
        Ok(words)
    }
}

fn is_on_off(option: &str) -> bool {
    ["fused", "overlap"].contains(&option)
}

/// The name of the option that `name`, which may be an alias, stands for.
fn canonical(name: &str) -> Option<String> {
    let command = TrainArgs::augment_args(clap::Command::new("train"));
    let arguments: Vec<_> = command.get_arguments().collect();
    let known = |arg: &&&clap::Arg| arg.get_long_and_visible_aliases().unwrap_or_default().contains(&name);
    arguments.iter().find(known).and_then(|arg| arg.get_long()).map(ToOwned::to_owned)
}

fn read(words: &BTreeMap<String, Option<String>>) -> Result<RunConfig, String> {
    let word = |(option, value): (&String, &Option<String>)| match value {
        Some(value) => format!("--{option}={value}"),
        None => format!("--{option}"),
    };
    let command = TrainArgs::augment_args(clap::Command::new("train").no_binary_name(true));
    let matches = command.try_get_matches_from(words.iter().map(word)).map_err(|error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })?;
    let typed = TrainArgs::from_arg_matches(&matches).map_err(|error| error.to_string())?;
    RunConfig::try_from(&typed).map_err(|error| error.to_string())
}

#[cfg(test)]
#[path = "changes_tests.rs"]
mod tests;
