//! Options as they are typed, and a configuration as the options that make it.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::sync::LazyLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Map, Value};

use super::{ConfigError, Part, RunConfig, can_change, part};
use crate::values::{name, shortened, takes};
use ::launch::sweep::Takes;

/// Options by their long names, with their values; `None` for a switch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words(pub BTreeMap<String, Option<OsString>>);

impl Words {
    /// Those of `command` that were typed.
    pub fn typed(command: &Command, matches: &ArgMatches) -> Self {
        let word = |arg: &Arg| {
            let id = arg.get_id().as_str();
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                return None;
            }
            let value = arg.get_action().takes_values().then(|| raw(matches, id).last().map(OsStr::to_owned));
            Some((arg.get_long()?.to_owned(), value.flatten()))
        };
        Self(command.get_arguments().filter_map(word).collect())
    }

    /// Whether the option of that name is among them.
    pub fn has(&self, option: &str) -> bool {
        self.0.contains_key(option)
    }

    /// Checks that two names of one option do not contradict each other. Of a configuration, nobody can tell `none` from
    /// an option that was left out.
    ///
    /// # Errors
    /// If they do.
    pub fn check(&self) -> Result<(), ConfigError> {
        let quantize = self.0.get("quantize").and_then(Option::as_ref);
        if self.has("quantized") && quantize.is_some_and(|kind| kind == "none") {
            Err(ConfigError::new("quantized", "", "is --quantize qat, beside --quantize none"))
        } else {
            Ok(())
        }
    }

    /// Those that a run has.
    pub fn of_runs(&self) -> Self {
        let of_runs = self.0.iter().filter(|(option, _)| part(option) != Part::Job);
        Self(of_runs.map(|(option, value)| (option.clone(), value.clone())).collect())
    }

    /// As words of a command line.
    pub fn to_args(&self) -> impl Iterator<Item = OsString> {
        self.0.iter().map(|(option, value)| {
            let mut word = OsString::from(format!("--{option}"));
            if let Some(value) = value {
                word.push("=");
                word.push(value);
            }
            word
        })
    }
}

/// All options of `command` with their values, defaults included.
pub fn values(command: &Command, matches: &ArgMatches) -> Vec<(String, String)> {
    let text = |value: &OsStr| value.to_str().map_or_else(|| format!("{value:?}"), ToOwned::to_owned);
    let value = |arg: &Arg| {
        let id = arg.get_id().as_str();
        let values: Vec<String> = raw(matches, id).map(text).collect();
        let name = arg.get_long().map_or_else(|| id.to_owned(), |long| format!("--{long}"));
        (name, if values.is_empty() { "none".to_owned() } else { values.join(" ") })
    };
    let is_compared = |arg: &&Arg| !["verbose", "quiet", "help", "version"].contains(&arg.get_id().as_str());
    command.get_arguments().filter(is_compared).map(value).collect()
}

fn raw<'a>(matches: &'a ArgMatches, id: &str) -> impl Iterator<Item = &'a OsStr> {
    matches.try_get_raw(id).ok().flatten().into_iter().flatten()
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<OsString> = self.to_args().collect();
        f.write_str(&words.join(OsStr::new(" ")).to_string_lossy())
    }
}

impl RunConfig {
    /// The configuration that these words of a command line make.
    ///
    /// # Errors
    /// The first option that is unknown or invalid, alone or together with others.
    pub fn read(words: impl IntoIterator<Item: Into<OsString> + Clone>) -> Result<Self, ConfigError> {
        let command = Self::augment_args(Command::new("train").no_binary_name(true).args_override_self(true));
        let read = command.try_get_matches_from(words).and_then(|found| Self::from_arg_matches(&found));
        read.map_err(|error| ConfigError::Words(one_line(&error)))?.completed()
    }

    /// The options that make this configuration.
    ///
    /// # Errors
    /// If it cannot be written as JSON.
    pub fn words(&self) -> Result<Words, ConfigError> {
        let fields = serde_json::to_value(self).map_err(|error| ConfigError::Words(error.to_string()))?;
        Ok(Words::of_fields(fields.as_object().unwrap_or(&Map::new())))
    }

    /// The options with their values as `run.json` has them, by which ranks compare them: of those that are given
    /// alone if `typed` says which.
    pub fn compared(&self, typed: Option<&Words>) -> Vec<(String, String)> {
        let fields = serde_json::to_value(self).unwrap_or_default();
        let value = |(field, value): (&String, &Value)| {
            let option = field.replace('_', "-");
            let is_typed =
                |typed: &Words| typed.has(&option) || option == "quantize" && typed.has("quantized");
            let text = match value {
                _ if !typed.is_none_or(is_typed) => "the run's own".to_owned(),
                Value::Null => "none".to_owned(),
                Value::String(text) => text.clone(),
                Value::Bool(_) if SWITCHES.contains(&option) => as_typed(value),
                other => other.to_string(),
            };
            (format!("--{option}"), text)
        };
        fields.as_object().into_iter().flatten().map(value).collect()
    }
}

impl Words {
    /// The options that make the configuration with these fields.
    fn of_fields(fields: &Map<String, Value>) -> Self {
        let word = |(field, value): (&String, &Value)| {
            let option = field.replace('_', "-");
            let value = match value {
                Value::Null => return None,
                Value::Bool(on) if !SWITCHES.contains(&option) => return on.then_some((option, None)),
                value => as_typed(value),
            };
            Some((option, Some(value.into())))
        };
        Self(fields.iter().filter_map(word).collect())
    }
}

/// The options of a training that are `on` or `off`.
static SWITCHES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let command = RunConfig::augment_args(Command::new("train"));
    let switches = command.get_arguments().filter(|arg| takes(arg) == Takes::Switch);
    switches.filter_map(Arg::get_long).map(ToOwned::to_owned).collect()
});

/// The long names of a training's options, aliases included.
static NAMES: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let command = RunConfig::augment_args(Command::new("train"));
    let names = command.get_arguments().filter_map(Arg::get_long_and_visible_aliases);
    names.flatten().map(ToOwned::to_owned).collect()
});

/// A stored value as it is typed.
pub fn as_typed(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::Bool(on) => if *on { "on" } else { "off" }.into(),
        Value::String(text) => text.clone(),
        other => {
            let number = other.to_string();
            number.strip_suffix(".0").map_or(number.clone(), ToOwned::to_owned)
        }
    }
}

/// A stored configuration, which somebody may have edited, is read as the options that make it.
impl TryFrom<Map<String, Value>> for RunConfig {
    type Error = ConfigError;

    fn try_from(fields: Map<String, Value>) -> Result<Self, ConfigError> {
        if let Some(field) = fields.keys().find(|field| !NAMES.contains(&field.replace('_', "-"))) {
            let problem = format!(
                "`config.{field}` is no option of this version: correct the name, or put a copy back"
            );
            return Err(ConfigError::Words(problem));
        }
        Self::read(Words::of_fields(&fields).to_args())
    }
}

/// Whether the error is a wrong value of an option.
pub fn is_of_value(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::TooManyValues)
}

/// An error of clap in one line, and in the form of other errors of options if it is of a value.
pub fn one_line(error: &clap::Error) -> String {
    let in_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let context = |kind| error.get(kind).map(ToString::to_string);
    if let (true, Some(arg), Some(value)) =
        (is_of_value(error), context(ContextKind::InvalidArg), context(ContextKind::InvalidValue))
    {
        let option = arg.split([' ', '=']).next().unwrap_or_default().trim_matches(['<', '>', '[', ']', '.']);
        let choices = match error.get(ContextKind::ValidValue) {
            Some(ContextValue::Strings(names)) if !names.is_empty() => format!("choose {}", names.join(", ")),
            _ => String::new(),
        };
        let problem = match error.source() {
            _ if error.kind() == ErrorKind::TooManyValues => {
                format!("takes no value: write {option} alone, or leave it out")
            }
            Some(source) => of_number(source).unwrap_or_else(|| source.to_string()),
            None if value.is_empty() && choices.is_empty() => "a value is missing".to_owned(),
            None => choices,
        };
        let value = if value.trim() != value {
            format!(" '{}'", shortened(&value))
        } else if !value.is_empty() {
            format!(" {}", shortened(&value))
        } else if error.kind() == ErrorKind::InvalidValue {
            // Nothing was typed, as far as clap tells.
            String::new()
        } else {
            " ''".into()
        };
        return in_line(&format!("{option}{value}: {problem}"));
    }
    let text = error.to_string();
    // Usage and tips follow an empty line; a list of what is missing does not.
    in_line(text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: "))
}

/// What a parser of the standard library rejects, in words of our own.
fn of_number(error: &(dyn Error + 'static)) -> Option<String> {
    if error.is::<ParseFloatError>() {
        return Some("must be a number, such as 0.1".into());
    }
    error.downcast_ref::<ParseIntError>().map(|error| match error.kind() {
        IntErrorKind::PosOverflow => format!("must be at most {}", u64::MAX),
        _ => "must be a whole number from 0".into(),
    })
}

/// Options of the schedule, which another schedule does not have.
const OF_SCHEDULES: [&str; 3] = ["max-lr", "step-size", "gamma"];

impl RunConfig {
    /// The configuration with the options that were `typed` beside `--resume`.
    ///
    /// # Errors
    /// If an option cannot change, or has an invalid value.
    pub fn changed(&self, typed: &Words) -> Result<Self, ConfigError> {
        let before = self.words()?;
        let mut words = before.clone();
        let schedule = typed.0.get("schedule");
        if schedule.is_some_and(|schedule| before.0.get("schedule") != Some(schedule)) {
            words.0.retain(|option, _| !OF_SCHEDULES.contains(&option.as_str()));
        }
        words.0.extend(typed.of_runs().0);
        let changed = Self::read(words.to_args())?;
        let after = changed.words()?;
        for option in before.0.keys().chain(after.0.keys()) {
            let value = after.0.get(option);
            if let (true, Err(reason)) = (before.0.get(option) != value, can_change(option)) {
                let shown = match (value, typed.0.get(option)) {
                    (_, Some(typed)) => typed.clone().unwrap_or_default(),
                    (Some(value), None) => value.clone().unwrap_or_default(),
                    (None, None) => "none".into(),
                };
                let problem = format!("cannot change in a resumed run: {reason}");
                return Err(ConfigError::new(option.clone(), shown.display(), problem));
            }
        }
        self.check_velocity(&changed)?;
        Ok(changed)
    }

    /// Checks that `changed` has a velocity if this configuration has one: the checkpoint holds it, or lacks it.
    fn check_velocity(&self, changed: &Self) -> Result<(), ConfigError> {
        let has =
            |config: &Self| config.recipe.optimizer.takes_momentum() && config.base_rate().momentum > 0.0;
        if has(self) == has(changed) {
            return Ok(());
        }
        let (before, after) = (&self.recipe, &changed.recipe);
        let (option, value) = if before.schedule == after.schedule {
            ("momentum", after.momentum.map_or_else(|| "none".into(), |momentum| momentum.to_string()))
        } else {
            ("schedule", name(&after.schedule))
        };
        let problem = if has(self) {
            "cannot end momentum in a resumed run: the checkpoint's moments are of a run with momentum"
        } else {
            "cannot begin momentum in a resumed run: the checkpoint's moments are of a run without momentum"
        };
        Err(ConfigError::new(option, value, problem))
    }
}

#[cfg(test)]
#[path = "changes_tests.rs"]
mod changes_tests;
