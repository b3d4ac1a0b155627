//! Options as words of a command line, and one-line messages for clap's errors.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde_json::Value;

use super::ConfigError;
use crate::train::spec;
use crate::values::shortened;

/// Options by their long names, with their values. The value of a flag is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words(pub BTreeMap<String, Option<OsString>>);

impl Words {
    /// Returns the options of `command` that were typed.
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

    /// Returns whether `option` was typed.
    pub fn has(&self, option: &str) -> bool {
        self.0.contains_key(option)
    }

    /// Rejects `--reshard` without `--resume`. Also rejects `--quantized` together with `--quantize none`: the
    /// configuration cannot show this conflict, because `none` is stored like an option that was left out.
    ///
    /// # Errors
    /// Names the option to leave out.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.has("reshard") && !self.has("resume") {
            return Err(ConfigError::new("reshard", "", "requires --resume RUN: leave it out in a new run"));
        }
        let quantize = self.0.get("quantize").and_then(Option::as_ref);
        if self.has("quantized") && quantize.is_some_and(|kind| kind == "none") {
            Err(ConfigError::new(
                "quantized",
                "",
                "means --quantize qat, which conflicts with --quantize none",
            ))
        } else {
            Ok(())
        }
    }

    /// Returns the options that are part of a run's configuration.
    pub fn of_runs(&self) -> Self {
        let of_runs = self.0.iter().filter(|(option, _)| spec(option).is_some());
        Self(of_runs.map(|(option, value)| (option.clone(), value.clone())).collect())
    }

    /// Returns the options as words of a command line.
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

/// Returns the options of `command` with their values, defaults included. Leaves out `--verbose`, `--quiet`,
/// `--help` and `--version`.
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
        let word = |(option, value): (&String, &Option<OsString>)| match value {
            Some(value) => format!("--{option} {}", value.to_string_lossy()),
            None => format!("--{option}"),
        };
        f.write_str(&self.0.iter().map(word).collect::<Vec<_>>().join(" "))
    }
}

/// Returns whether clap rejected an option's value, rather than, for example, an unknown option.
pub fn is_of_value(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::TooManyValues)
}

/// Formats an error of clap in one line. The line for a rejected value has the form of this program's own
/// messages.
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
            // The option was typed without a value.
            String::new()
        } else {
            " ''".into()
        };
        return in_line(&format!("{option}{value}: {problem}"));
    }
    let text = error.to_string();
    // Cut the text at the first empty line. Usage and tips come after it, a list of missing arguments before
    // it.
    in_line(text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: "))
}

/// Explains a value that a parser of the standard library rejected, without naming types of Rust.
fn of_number(error: &(dyn Error + 'static)) -> Option<String> {
    if error.is::<ParseFloatError>() {
        return Some("must be a number, such as 0.1".into());
    }
    error.downcast_ref::<ParseIntError>().map(|error| match error.kind() {
        IntErrorKind::PosOverflow => format!("must be at most {}", u64::MAX),
        _ => "must be a whole number from 0".into(),
    })
}

/// Returns a stored value as it would be typed.
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
