//! Names of option values, defined once in clap's `ValueEnum` for `Display`, `FromStr`
//! and `--help`.

use std::ffi::OsStr;
use std::marker::PhantomData;

use clap::builder::{PossibleValue, Resettable, StringValueParser, TypedValueParser};
use clap::{Arg, Command, ValueEnum};

/// The option name of `value`.
pub fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
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

/// Parser of an option that takes a name of `T`. `--help` lists the names; the name is
/// checked with the other options, by [`parse`], so that all errors of options have
/// the same form.
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
        // If a value had a description, clap would print every option of `--help` over
        // several lines.
        Some(Box::new(values.map(|value| value.help(Resettable::Reset))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Activation, ModelKind};

    #[test]
    fn names_are_parsed_as_displayed() {
        for kind in ModelKind::value_variants() {
            assert_eq!(kind.to_string().parse(), Ok(*kind));
        }
        for activation in Activation::value_variants() {
            assert_eq!(activation.to_string().parse(), Ok(*activation));
            assert_eq!(serde_json::to_value(activation).unwrap(), activation.to_string());
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_with_the_known_names() {
        let message = "swish".parse::<Activation>().unwrap_err();
        assert_eq!(message, "unknown activation swish: choose relu, tanh, sigmoid or gelu");
        let message = "Vgg".parse::<ModelKind>().unwrap_err();
        assert_eq!(message, "unknown model Vgg: choose convnet, vgg or mlp");
    }

    #[test]
    fn help_lists_the_names() {
        let parser = NameOf::<ModelKind>::parser();
        let names: Vec<_> = parser.possible_values().unwrap().map(|v| v.get_name().to_owned()).collect();
        assert_eq!(names, ["convnet", "vgg", "mlp"]);
    }
}
