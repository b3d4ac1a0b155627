//! Parses the values of options, and checks their bounds.
//!
//! The errors say what the option accepts. The standard library's "invalid digit found in string" and clap's
//! "is not in 1..=1000" do not tell the user what to type.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, Resettable, TypedValueParser};
use clap::{Arg, ValueEnum};
use run_record::Takes;
use serde::de::{Deserialize, Deserializer, Error};

/// An option whose value may be `none`, which cancels a value that was typed earlier on the command line.
/// clap does not see through the alias, so the parser returns the whole value: `None` or `Some`. For a plain
/// `Option`, clap would set `None` only if the option is missing, and could not parse `none`.
pub type Optional<T> = Option<T>;

/// An option that is `on` or `off`. clap makes a plain `bool` a flag. It does not see through the alias, so
/// it expects a value.
pub type Switch = bool;

/// Defines number types with bounds. Typed and stored values are checked alike. Code of this crate may
/// construct such a type from a number that it knows to be in bounds.
macro_rules! bounded {
    ($($(#[$doc:meta])* $name:ident($number:ty) = $parse:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, PartialOrd, serde::Serialize)]
        pub struct $name(pub(crate) $number);

        impl $name {
            /// The number.
            pub const fn get(self) -> $number {
                self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                ($parse)(text).map(Self)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(stored: D) -> Result<Self, D::Error> {
                $crate::values::stored(stored)
            }
        }
    )+};
}
pub(crate) use bounded;

bounded! {
    /// A whole number from 1.
    Positive(usize) = positive;
    /// A whole number from 0.
    Whole(usize) = from_0::<usize>;
    /// A finite number above 0.
    Above0(f64) = above_0;
    /// A finite number, 0 or more.
    NotNegative(f64) = not_negative;
    /// A number above 0, up to 100.
    Percent(f64) = percent;
    /// A number from 0 to below 1.
    #[derive(Default)]
    Below1(f64) = below_1;
    /// Seconds above 0, up to a year.
    Seconds(f64) = seconds;
}

impl Positive {
    /// Returns this number times `part / whole`, rounded down, but at least 1.
    pub fn share(self, part: usize, whole: usize) -> Self {
        let share = self.0 as u128 * part as u128 / whole as u128;
        Self(usize::try_from(share).unwrap_or(usize::MAX).max(1))
    }

    /// Returns the lower of this number and `limit`, but at least 1.
    pub fn at_most(self, limit: usize) -> Self {
        Self(self.0.min(limit.max(1)))
    }
}

/// Reads a stored number with the parser that also reads typed numbers. Accepts 2.0 for 2, because some
/// programs that edit JSON write 2.0.
///
/// # Errors
/// If the value is not a number, or the option does not accept it.
pub fn stored<'de, T, D>(stored: D) -> Result<T, D::Error>
where
    T: FromStr<Err = String>,
    D: Deserializer<'de>,
{
    let number = serde_json::Number::deserialize(stored)?.to_string();
    number.strip_suffix(".0").unwrap_or(&number).parse().map_err(D::Error::custom)
}

/// Returns how `option` is typed: as a flag, with on or off, or with another value.
pub fn takes(option: &Arg) -> Takes {
    match option.get_possible_values().iter().map(PossibleValue::get_name).collect::<Vec<_>>()[..] {
        _ if !option.get_action().takes_values() => Takes::Flag,
        ["on", "off"] => Takes::Switch,
        _ => Takes::Value,
    }
}

/// Returns the name of `value` on the command line.
pub fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Implements `Display` for option types: prints the value's name on the command line.
macro_rules! display_names {
    ($($kind:ty),+) => {$(
        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&crate::values::name(self))
            }
        }
    )+};
}
pub(crate) use display_names;

/// Returns a parser of `T`'s values. `--help` lists their names without descriptions: if any value had a
/// description, clap would print every option on several lines.
pub fn one_of<T: ValueEnum + Clone + Send + Sync + 'static>() -> impl TypedValueParser<Value = T> {
    let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(values.map(|value| value.help(Resettable::Reset)))
        .try_map(|name| T::from_str(&name, false))
}

/// Returns a parser that accepts one of `names`, and converts it to a `T` by `FromStr`. It suits types of
/// crates that do not depend on clap, and so do not implement `ValueEnum`.
pub fn named<T, N>(names: N) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
    N: IntoIterator<Item = &'static str>,
{
    PossibleValuesParser::new(names.into_iter().map(PossibleValue::new)).try_map(|name| name.parse())
}

/// Returns a parser of `T`'s values and `none`.
pub fn one_of_or_none<T: ValueEnum + Clone + Send + Sync + 'static>()
-> impl TypedValueParser<Value = Optional<T>> {
    let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let names = names.map(|value| value.help(Resettable::Reset)).chain([PossibleValue::new("none")]);
    PossibleValuesParser::new(names).try_map(|name| match name.as_str() {
        "none" => Ok(None),
        name => T::from_str(name, false).map(Some),
    })
}

/// Parses a value, or `none`.
///
/// # Errors
/// If `text` is not `none` and not a valid value.
pub fn or_none<T: FromStr<Err: ToString>>(text: &str) -> Result<Optional<T>, String> {
    if text == "none" {
        Ok(None)
    } else {
        text.parse().map(Some).map_err(|problem: T::Err| problem.to_string())
    }
}

/// Shortens a typed value to 100 characters, for an error.
pub fn shortened(value: &str) -> String {
    const MOST: usize = 100;
    if value.chars().count() > MOST {
        value.chars().take(MOST).chain(['…']).collect()
    } else {
        value.to_owned()
    }
}

/// Returns a parser of paths that `run.json` can store: text in JSON is UTF-8.
pub fn stored_path() -> impl TypedValueParser<Value = PathBuf> {
    let problem = "is not UTF-8, so JSON results cannot contain it: choose another name";
    PathBufValueParser::new().try_map(move |path| path.to_str().is_some().then_some(path).ok_or(problem))
}

/// Returns a parser of paths that `run.json` can store, and `none`. A file named `none` is typed as `./none`.
pub fn path_or_none() -> impl TypedValueParser<Value = Optional<PathBuf>> {
    stored_path().map(|path| (path != Path::new("none")).then_some(path))
}

/// Returns a parser of `on` and `off`.
pub fn on_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|text| text == "on")
}

/// Parses a whole number from 1.
///
/// # Errors
/// If `text` is not such a number.
pub fn positive(text: &str) -> Result<usize, String> {
    whole(text, 1, usize::MAX as u64)
}

/// Parses a whole number from 0, such as a seed.
///
/// # Errors
/// If `text` is not such a number.
pub fn from_0<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    whole(text, 0, u64::MAX)
}

/// Returns a parser of whole numbers from `low` to `high`.
pub fn range<T: TryFrom<u64>>(low: u64, high: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| whole(text, low, high)
}

/// Returns a parser of whole numbers from 1 to `most`. The error for a larger number gives the `reason`.
pub fn up_to(most: usize, reason: &'static str) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| {
        whole(text, 1, most as u64).map_err(|problem| {
            if problem == too_large(most as u64) { format!("{problem}: {reason}") } else { problem }
        })
    }
}

/// Parses a whole number from `low` to `high`. If `high` is the largest 64-bit number, only the error for a
/// number above `high` mentions it.
fn whole<T: TryFrom<u64>>(text: &str, low: u64, high: u64) -> Result<T, String> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse::<u64>() {
        Ok(number) if (low..=high).contains(&number) => T::try_from(number).map_err(|_| too_large(high)),
        Ok(number) if number > high => Err(too_large(high)),
        // The number has more than 64 bits.
        Err(_) if is_number => Err(too_large(high)),
        _ if high == u64::MAX => Err(format!("must be a whole number from {low}")),
        _ => Err(format!("must be a whole number from {low} to {high}")),
    }
}

fn too_large(high: u64) -> String {
    format!("must be at most {high}")
}

/// Parses a number of seconds above 0. The number is at most a year, so that adding it to a clock's time
/// cannot overflow.
///
/// # Errors
/// If `text` is not such a number.
pub fn seconds(text: &str) -> Result<f64, String> {
    match above_0(text)? {
        seconds if seconds > 31_536_000.0 => Err("must be at most 31536000 (a year)".into()),
        seconds => Ok(seconds),
    }
}

/// Parses a finite number above 0.
///
/// # Errors
/// If `text` is not such a number.
pub fn above_0(text: &str) -> Result<f64, String> {
    number(text, |value| value > 0.0, "must be a finite number above 0, such as 0.1")
}

/// Parses a finite number, 0 or more.
///
/// # Errors
/// If `text` is not such a number.
pub fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |value| value >= 0.0, "must be a finite number, 0 or more, such as 0.1")
}

/// Parses a number above 0, up to 100.
///
/// # Errors
/// If `text` is not such a number.
pub fn percent(text: &str) -> Result<f64, String> {
    number(text, |value| value > 0.0 && value <= 100.0, "must be a number above 0, up to 100, such as 97.5")
}

/// Parses a number from 0 to below 1.
///
/// # Errors
/// If `text` is not such a number.
pub fn below_1(text: &str) -> Result<f64, String> {
    number(text, |value| (0.0..1.0).contains(&value), "must be a number from 0 to below 1, such as 0.1")
}

/// Returns a parser of numbers from `low` to `high`.
pub fn between(low: f64, high: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let problem = format!("must be a number from {low} to {high}");
        number(text, |value| (low..=high).contains(&value), &problem)
    }
}

fn number(text: &str, fits: impl Fn(f64) -> bool, problem: &str) -> Result<f64, String> {
    text.parse().ok().filter(|value: &f64| value.is_finite() && fits(*value)).ok_or_else(|| problem.into())
}
