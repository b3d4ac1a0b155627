//! Names of option values, defined once in clap's `ValueEnum`, and of numbers of things.

use clap::ValueEnum;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_thing_is_no_plural() {
        let counted = [(1, "batch"), (2, "batch"), (1, "inference"), (0, "run")].map(|(n, of)| count(n, of));
        assert_eq!(counted, ["1 batch", "2 batches", "1 inference", "0 runs"]);
    }
}
