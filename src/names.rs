//! The names of an option's values, written once: in clap's `ValueEnum`.
//!
//! `Display`, `FromStr` and `--help` take them from there.

use std::ffi::OsStr;
use std::marker::PhantomData;

use clap::builder::{PossibleValue, Resettable, StringValueParser, TypedValueParser};
use clap::{Arg, Command, ValueEnum};

/// The name of `value`.
pub fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The value named `text`, of those that are a `what`.
///
/// # Errors
/// When there is none: its name, and those that there are.
pub fn parse<T: ValueEnum>(what: &str, text: &str) -> Result<T, String> {
    T::from_str(text, false).map_err(|_| {
        let names: Vec<String> = T::value_variants().iter().map(name).collect();
        let listed = match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => names.concat(),
        };
        format!("unknown {what} {text}: choose {listed}")
    })
}

/// An option that is typed as a name of `T`. `--help` lists the names; whether
/// one was typed is checked with the other options, by [`parse`], so that all
/// errors of options read alike.
#[derive(Debug)]
pub struct NameOf<T>(PhantomData<fn() -> T>);

impl<T> NameOf<T> {
    /// The parser for clap.
    pub fn parser() -> Self {
        Self(PhantomData)
    }
}

impl<T> Clone for NameOf<T> {
    fn clone(&self) -> Self {
        Self::parser()
    }
}

impl<T: ValueEnum + 'static> TypedValueParser for NameOf<T> {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        // With a description of any value, clap would spread all options of `--help` over
        // several lines each.
        Some(Box::new(values.map(|value| value.help(Resettable::Reset))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, ValueEnum)]
    enum Order {
        ByRank,
        Native,
        Random,
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for order in Order::value_variants() {
            assert_eq!(parse("order", &name(order)).as_ref(), Ok(order));
        }
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let message = parse::<Order>("order", "Native").unwrap_err();
        assert_eq!(message, "unknown order Native: choose by-rank, native or random");
    }

    #[test]
    fn help_lists_the_names() {
        let parser = NameOf::<Order>::parser();
        let names: Vec<_> = parser.possible_values().unwrap().map(|v| v.get_name().to_owned()).collect();
        assert_eq!(names, ["by-rank", "native", "random"]);
    }
}
