//! Describes each option of a run: the `schema` field of `run.json`.
//!
//! The trainer writes this field from its table of options. Reports read it, so they also handle options that
//! were added after the report program was built.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json_problem::short;

/// Description of each option, by its field in `config`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schema(pub BTreeMap<String, OptionSchema>);

/// Description of an option. The file leaves out a field that has its most frequent value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OptionSchema {
    /// Subject of the option.
    pub part: Part,
    /// What follows the option on a command line.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub takes: Takes,
    /// Value in `config` if the option is not given.
    pub default: Value,
    /// Value that has the same effect as null in `config`. Null if no such value can be given on a command
    /// line.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub unset: Value,
    /// What the option affects.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub affects: Affects,
    /// Whether the option may be changed when a run is resumed.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub may_change: bool,
    /// Another field, and the value that it must have for this option to have an effect.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub only_with: Option<(String, String)>,
    /// Whether the option is a technique: off by default, and named beside published figures if it was used.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub technique: bool,
}

/// Subject of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The samples.
    Data,
    /// The network and its operators.
    Network,
    /// Quantization to int8 models.
    Quantization,
    /// How gradients are averaged.
    Communication,
    /// The length of a run, and its random seed.
    Run,
    /// How a process works, and what it writes.
    Process,
    /// How weights are trained. Also stands for subjects that this version does not know.
    #[serde(other)]
    Recipe,
}

/// What follows an option on a command line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Takes {
    /// Nothing.
    Flag,
    /// `on` or `off`.
    Switch,
    /// A value.
    #[default]
    #[serde(other)]
    Value,
}

/// What an option affects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Affects {
    /// Neither results nor times.
    Nothing,
    /// The tests, but not the weights.
    Test,
    /// Times, but not results.
    Times,
    /// The weights, and so all results.
    #[default]
    #[serde(other)]
    Results,
}

fn yes() -> bool {
    true
}

fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Schema {
    /// Returns the options of runs that were written before `run.json` had a schema.
    ///
    /// # Panics
    /// Never: the file is part of the program.
    pub fn of_older_runs() -> Self {
        serde_json::from_str(include_str!("older_schema.json")).expect("it is a schema")
    }

    /// Returns the description of the option with this field in `config`.
    pub fn row(&self, field: &str) -> Option<&OptionSchema> {
        self.0.get(field)
    }

    /// Whether the option `field` has an effect, given the other options in `config`.
    pub fn has_effect(&self, config: &Map<String, Value>, field: &str) -> bool {
        let Some(row) = self.row(field) else { return true };
        let is_met =
            |(other, value): &(String, String)| config.get(other).is_some_and(|other| other == value);
        row.affects != Affects::Nothing && row.only_with.as_ref().is_none_or(is_met)
    }

    /// Adds options that `config` lacks, with their defaults. Older versions of the program did not have
    /// these options.
    pub fn complete(&self, config: &mut Map<String, Value>) {
        for (field, row) in &self.0 {
            config.entry(field.clone()).or_insert_with(|| row.default.clone());
        }
    }

    /// Checks that each value of `config` has the type of its default: somebody may have edited the file.
    ///
    /// # Errors
    /// The first field that has another type, as text.
    pub fn check(&self, config: &Map<String, Value>) -> Result<(), String> {
        let wrong = |(field, row): (&String, &OptionSchema)| {
            let value = config.get(field).unwrap_or(&row.default);
            let (is_one, expected) = match &row.default {
                Value::Bool(_) => (value.is_boolean(), "true or false"),
                Value::String(_) => (value.is_string(), "text"),
                Value::Number(number) if number.is_u64() => (value.is_u64(), "a whole number from 0"),
                Value::Number(_) => (value.is_number(), "a number"),
                _ => (true, ""),
            };
            (!is_one)
                .then(|| format!("config.{field}: expected {expected}, found {}", short(&value.to_string())))
        };
        self.0.iter().find_map(wrong).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_answers_are_left_out_of_the_file_and_read_again() {
        let schema = Schema::of_older_runs();
        let text = serde_json::to_string(&schema).unwrap();
        assert_eq!(serde_json::from_str::<Schema>(&text).unwrap(), schema);
        let later =
            r#"{"part": "energy", "takes": "watts", "affects": "heat", "default": 1, "colour": "red"}"#;
        let row: OptionSchema = serde_json::from_str(later).unwrap();
        assert_eq!((row.part, row.takes, row.affects), (Part::Recipe, Takes::Value, Affects::Results));
        let row = serde_json::to_value(schema.row("lr")).unwrap();
        assert_eq!(row, serde_json::json!({"part": "recipe", "default": 0.0005}));
        let row = serde_json::to_value(schema.row("freeze_after")).unwrap();
        let only_with = serde_json::json!(["quantize", "qat"]);
        assert_eq!(row, serde_json::json!({"part": "quantization", "default": null, "only_with": only_with}));
    }

    #[test]
    fn a_value_of_another_type_is_named() {
        let schema = Schema::of_older_runs();
        for (field, value, expected) in [
            ("lr", Value::from(1), None),
            ("lr", "much".into(), Some("config.lr: expected a number, found \"much\"")),
            ("accumulate", (-1).into(), Some("config.accumulate: expected a whole number from 0, found -1")),
            ("overlap", "on".into(), Some("config.overlap: expected true or false, found \"on\"")),
            ("backend", Value::Null, Some("config.backend: expected text, found null")),
            ("momentum", 0.5.into(), None),
            ("unknown", Value::Null, None),
        ] {
            let config = [(field.to_owned(), value)].into_iter().collect();
            assert_eq!(schema.check(&config).err().as_deref(), expected);
        }
        let config = [("lr".to_owned(), Value::from("x".repeat(900)))].into_iter().collect();
        let message = schema.check(&config).unwrap_err();
        assert!(
            message.chars().count() < 110 && message.contains("expected a number") && message.ends_with('…'),
            "{message}"
        );
    }

    #[test]
    fn an_option_has_an_effect_beside_the_value_that_it_needs() {
        let schema = Schema::of_older_runs();
        let config = |backend: &str| [("backend".to_owned(), Value::from(backend))].into_iter().collect();
        for (field, mpi, gloo) in [
            ("interface", false, true),
            ("gloo_algorithm", false, true),
            ("lr", true, true),
            ("keep", false, false),
            ("unknown", true, true),
        ] {
            let has = |backend| schema.has_effect(&config(backend), field);
            assert_eq!((has("mpi"), has("gloo")), (mpi, gloo), "{field}");
        }
    }
}
