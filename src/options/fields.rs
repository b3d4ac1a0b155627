//! Converts a configuration to and from its fields in `run.json`, compares it between ranks, and changes it
//! in a resumed run.

use std::ffi::OsString;
use std::sync::LazyLock;

use clap::{Args, Command, FromArgMatches};
use run_record::{OptionSchema, Schema, json_problem};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{ConfigError, RunConfig, Words, as_typed, one_line};
use crate::train::{OPTIONS, OptionSpec, spec};
use crate::values::{name, takes};

/// The fields of the default configuration.
static DEFAULTS: LazyLock<Map<String, Value>> =
    LazyLock::new(|| RunConfig::parsed([""; 0]).expect("defaults are valid").fields());

/// The table of a training's options for `run.json`.
pub fn schema() -> Schema {
    let command = RunConfig::augment_args(Command::new("train"));
    let row = |spec: &OptionSpec| {
        let default = DEFAULTS.get(spec.field)?.clone();
        let takes = command.get_arguments().find(|arg| arg.get_id() == spec.field).map(takes)?;
        let row = OptionSchema {
            part: spec.part,
            takes,
            default,
            unset: spec.unset.map_or(Value::Null, Into::into),
            affects: spec.affects,
            may_change: spec.change.is_ok(),
            only_with: spec.only_with.map(|(field, value)| (field.to_owned(), value.to_owned())),
            technique: spec.technique,
        };
        Some((spec.field.to_owned(), row))
    };
    Schema(OPTIONS.iter().filter_map(row).collect())
}

impl RunConfig {
    /// Reads a configuration from the words of a command line.
    ///
    /// # Errors
    /// Names the first option that is unknown, invalid, or contradicts another option.
    pub fn read(words: impl IntoIterator<Item: Into<OsString> + Clone>) -> Result<Self, ConfigError> {
        Self::parsed(words)?.completed()
    }

    /// Parses words without checking whether the options fit each other.
    fn parsed(words: impl IntoIterator<Item: Into<OsString> + Clone>) -> Result<Self, ConfigError> {
        let command = Self::augment_args(Command::new("train").no_binary_name(true).args_override_self(true));
        let read = command.try_get_matches_from(words).and_then(|found| Self::from_arg_matches(&found));
        read.map_err(|error| ConfigError::Message(one_line(&error)))
    }

    /// Returns the fields of this configuration as `run.json` stores them.
    pub fn fields(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            other => unreachable!("a configuration is an object of valid text: {other:?}"),
        }
    }

    /// Reads a configuration from stored fields, which somebody may have edited. A field that is missing or
    /// null has its default, and so has an optional field with the value `none`.
    ///
    /// # Errors
    /// Names the first field that is unknown, invalid, or contradicts another field.
    pub fn from_fields(mut stored: Map<String, Value>) -> Result<Self, ConfigError> {
        let mut fields = DEFAULTS.clone();
        let is_optional = |field: &String| DEFAULTS.get(field).is_some_and(Value::is_null);
        stored.retain(|field, value| !(value.is_null() || *value == "none" && is_optional(field)));
        for (field, value) in &stored {
            if fields.insert(field.clone(), value.clone()).is_none() {
                let problem = format!("`config.{field}` is not an option of this version");
                return Err(ConfigError::Message(problem));
            }
        }
        let read = |fields| Self::deserialize(Value::Object(fields));
        // serde does not name the wrong field of a flattened struct, so each field is read alone.
        let name = |(field, value): (String, Value)| {
            let alone = DEFAULTS.iter().map(|(other, default)| (other.clone(), default.clone()));
            let error = read(alone.chain([(field.clone(), value.clone())]).collect()).err()?;
            Some(ConfigError::new(field.replace('_', "-"), as_typed(&value), json_problem(&error)))
        };
        match read(fields) {
            Ok(config) => config.completed(),
            Err(error) => {
                Err(stored.into_iter().find_map(name).unwrap_or(ConfigError::Message(json_problem(&error))))
            }
        }
    }

    /// Returns the options and their values for the comparison between ranks. Equal values have equal text,
    /// such as `0.1` for `1e-1`. If `typed` is given, an option that was not typed has the text "the run's
    /// own" in place of its value.
    pub fn compared(&self, typed: Option<&Words>) -> Vec<(String, String)> {
        let value = |(field, value): (String, Value)| {
            let is_own = typed.is_some_and(|typed| !typed.sets(&field));
            let text = if is_own { "the run's own".to_owned() } else { as_typed(&value) };
            (option(&field), text)
        };
        self.fields().into_iter().map(value).collect()
    }

    /// Returns this configuration, changed by the options that were `typed` beside `--resume`.
    ///
    /// # Errors
    /// If an option cannot change, or has an invalid value.
    pub fn changed(&self, typed: &Words) -> Result<Self, ConfigError> {
        let mut fields = self.fields();
        let before = fields.clone();
        typed.overlay(&mut fields)?;
        if fields["schedule"] != before["schedule"] {
            // Remove the options that only the old schedule has.
            let is_of_schedules = |field: &String| {
                spec(field).is_some_and(|spec| spec.only_with.is_some_and(|(with, _)| with == "schedule"))
            };
            fields.retain(|field, _| !is_of_schedules(field) || typed.sets(field));
        }
        // Check this before `from_fields`. If `none` removes an option that another option of the run
        // requires, `from_fields` would name the other option, which the user did not type.
        for (field, value) in &fields {
            let is_fixed = spec(field).and_then(|spec| spec.change.err()).filter(|_| before[field] != *value);
            if let Some(reason) = is_fixed {
                let problem = format!("cannot change in a resumed run: {reason}");
                let shown = if *value == true { String::new() } else { as_typed(value) };
                return Err(ConfigError::new(field.replace('_', "-"), shown, problem));
            }
        }
        let changed = Self::from_fields(fields)?;
        self.check_velocity(&changed)?;
        Ok(changed)
    }

    /// Checks that `changed` uses momentum if and only if this configuration does: a checkpoint has
    /// velocities only if its run used momentum.
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
            "cannot turn off momentum in a resumed run: the checkpoint has the moments of a run with momentum"
        } else {
            "cannot turn on momentum in a resumed run: the checkpoint has the moments of a run without momentum"
        };
        Err(ConfigError::new(option, value, problem))
    }
}

impl Words {
    /// Sets the fields of the typed options.
    ///
    /// # Errors
    /// If an option has an invalid value, or `--quantized` contradicts `--quantize`.
    pub fn overlay(&self, fields: &mut Map<String, Value>) -> Result<(), ConfigError> {
        let typed = RunConfig::parsed(self.of_runs().to_args())?.with_one_name()?.fields();
        fields.extend(typed.into_iter().filter(|(field, _)| self.sets(field)));
        Ok(())
    }

    /// Returns whether the option of `field`, or an alias of it, was typed.
    fn sets(&self, field: &str) -> bool {
        self.has(&field.replace('_', "-")) || field == "quantize" && self.has("quantized")
    }
}

/// Returns the option's name for a field: `batch_norm` is `--batch-norm`.
fn option(field: &str) -> String {
    format!("--{}", field.replace('_', "-"))
}

impl Serialize for RunConfig {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, to)
    }
}

impl<'de> Deserialize<'de> for RunConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::from_fields(Map::deserialize(from)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
#[path = "fields_tests.rs"]
mod fields_tests;
