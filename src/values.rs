//! Parsers of the values of options, with their bounds.

use std::error::Error;
use std::fmt::Display;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, Resettable, TypedValueParser};

/// An option whose value may be `none`. The alias makes clap take the type as a whole: of a plain
/// `Option`, it would know no value that takes an earlier one back.
pub type Optional<T> = Option<T>;

/// An option that is `on` or `off`. The alias makes clap take a value: of a plain `bool`, it would make a flag.
pub type Switch = bool;

/// The option name of `value`.
pub fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Displays each of these types by the name of the option's value.
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

/// The parser of one of `T`'s values. `--help` lists their names: with a description of any, clap would spread
/// all options over several lines each.
pub fn one_of<T: ValueEnum + Clone + Send + Sync + 'static>() -> impl TypedValueParser<Value = T> {
    let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(values.map(|value| value.help(Resettable::Reset)))
        .try_map(|name| T::from_str(&name, false))
}

/// The parser of one of `names`, of a type that knows nothing of clap.
pub fn named<T, N>(names: N) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
    N: IntoIterator<Item = &'static str>,
{
    PossibleValuesParser::new(names.into_iter().map(PossibleValue::new)).try_map(|name| name.parse())
}

/// A value, or `none`.
pub fn optional<T>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<Optional<T>, String> + Clone {
    move |text| if text == "none" { Ok(None) } else { parse(text).map(Some) }
}

/// Any text.
///
/// # Errors
/// Never.
pub fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

/// The parser of `on` or `off`.
pub fn on_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|text| text == "on")
}

/// A number from 1 on.
///
/// # Errors
/// If it is none.
pub fn positive(text: &str) -> Result<usize, String> {
    match number(text).map_err(|_| "must be a whole number of at least 1")? {
        0 => Err("must be at least 1".into()),
        value => Ok(value),
    }
}

/// A number from 1 on that is not above `most`, for a `reason`.
pub fn up_to(most: usize, reason: &'static str) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| at_most(positive(text)?, most, reason)
}

/// Seconds above 0, up to a year, which clocks can count.
///
/// # Errors
/// If it is another number or none.
pub fn seconds(text: &str) -> Result<f64, String> {
    at_most(above_0(text)?, 31_536_000.0, "a year of seconds")
}

fn at_most<T: PartialOrd + Display>(value: T, most: T, reason: &str) -> Result<T, String> {
    if value <= most { Ok(value) } else { Err(format!("must be at most {most}: {reason}")) }
}

/// A finite number above 0.
///
/// # Errors
/// If it is none.
pub fn above_0(text: &str) -> Result<f64, String> {
    within(text, |value| value > 0.0, "must be a finite number above 0")
}

/// A finite number, 0 or more.
///
/// # Errors
/// If it is none.
pub fn not_negative(text: &str) -> Result<f64, String> {
    within(text, |value| value >= 0.0, "must be a finite number, 0 or more")
}

/// A number from 0 to below 1.
///
/// # Errors
/// If it is none.
pub fn below_1(text: &str) -> Result<f64, String> {
    within(text, |value| (0.0..1.0).contains(&value), "must be from 0 to below 1")
}

/// A number from `low` to `high`.
pub fn between(low: f64, high: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| {
        let value: f64 = number(text)?;
        if (low..=high).contains(&value) { Ok(value) } else { Err(format!("must be from {low} to {high}")) }
    }
}

fn within(text: &str, bounds: fn(f64) -> bool, problem: &str) -> Result<f64, String> {
    let value: f64 = number(text)?;
    if value.is_finite() && bounds(value) { Ok(value) } else { Err(problem.into()) }
}

fn number<T: FromStr<Err: Error>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}
