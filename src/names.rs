//! Names of option values, defined once in clap's `ValueEnum` for `Display`, `FromStr`
//! and `--help`. Types of the libraries, which have no clap, list their names
//! themselves.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, Resettable, StringValueParser, TypedValueParser};
use clap::{Arg, Command, ValueEnum};

/// The option name of `value`.
pub fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A number and its noun, of which a regular plural is made: `1 batch`, `2 batches`.
pub fn count(number: usize, noun: &str) -> String {
    let ending = match number {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// The value named `text`; `what` describes the option in errors.
///
/// # Errors
/// When the name is unknown; the message lists the known names.
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

/// An option that is typed as one of some names, or as several with commas
/// between them. `--help` lists the names; whether one was typed is checked with
/// the other options, by [`parse`] or the type's own `FromStr`, so that all
/// errors of options read alike.
#[derive(Debug, Clone)]
pub struct OneOf(Vec<PossibleValue>);

impl OneOf {
    /// Names of a type that knows nothing of clap.
    pub fn names(names: impl IntoIterator<Item = &'static str>) -> Self {
        Self(names.into_iter().map(PossibleValue::new).collect())
    }

    /// Names of `T`'s values.
    pub fn values<T: ValueEnum>() -> Self {
        let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        // With a description of any value, clap would spread all options of `--help` over
        // several lines each.
        Self(values.map(|value| value.help(Resettable::Reset)).collect())
    }
}

impl TypedValueParser for OneOf {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().cloned()))
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
    fn a_single_thing_is_no_plural() {
        let counted = [(1, "batch"), (2, "batch"), (1, "inference"), (0, "run")].map(|(n, of)| count(n, of));
        assert_eq!(counted, ["1 batch", "2 batches", "1 inference", "0 runs"]);
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
        let listed = |parser: OneOf| -> Vec<String> {
            parser.possible_values().unwrap().map(|value| value.get_name().to_owned()).collect()
        };
        assert_eq!(listed(OneOf::values::<Order>()), ["by-rank", "native", "random"]);
        assert_eq!(listed(OneOf::names(["mpi", "gloo"])), ["mpi", "gloo"]);
    }
}
