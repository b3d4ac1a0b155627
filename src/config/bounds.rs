//! Bounds of the values of options.

use std::fmt;

use super::ConfigError;
use crate::cli::GLOO_ALGORITHMS;

pub(super) fn parse<T: std::str::FromStr<Err = String>>(
    option: &'static str,
    text: &str,
) -> Result<T, ConfigError> {
    text.parse().map_err(|problem: String| ConfigError::new(option, text, problem))
}

pub(super) fn gloo_algorithm(name: &str) -> Result<String, ConfigError> {
    match GLOO_ALGORITHMS.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(ConfigError::new(
            "gloo-algorithm",
            name,
            format!("unknown algorithm {name}: choose {}", GLOO_ALGORITHMS.join(", ")),
        )),
    }
}

pub(super) fn positive(option: &'static str, value: usize) -> Result<usize, ConfigError> {
    match value {
        0 => Err(ConfigError::new(option, 0, "must be at least 1")),
        _ => Ok(value),
    }
}

/// Maximum number of threads: more than the cores of any machine, and what every system starts.
const MAX_THREADS: usize = 1024;

pub(super) fn threads(count: usize) -> Result<usize, ConfigError> {
    at_most("threads", positive("threads", count)?, MAX_THREADS, "each takes memory and a core")
}

/// Maximum seconds of a collective: a year, which clocks can count.
const MAX_TIMEOUT: f64 = 31_536_000.0;

pub(super) fn timeout(value: f64) -> Result<f64, ConfigError> {
    seconds("comm-timeout", value)
}

/// The seconds of an option.
///
/// # Errors
/// If they are not above 0, or above a year.
pub fn seconds(option: &'static str, value: f64) -> Result<f64, ConfigError> {
    at_most(option, more_than_0(option, value)?, MAX_TIMEOUT, "a year of seconds")
}

/// A value that is not above `most`, for a `reason`.
///
/// # Errors
/// If it is.
pub fn at_most<T: PartialOrd + fmt::Display + fmt::LowerExp>(
    option: &'static str,
    value: T,
    most: T,
    reason: &str,
) -> Result<T, ConfigError> {
    match value <= most {
        true => Ok(value),
        false => {
            let text = Some(value.to_string()).filter(|text| text.len() < 24);
            let text = text.unwrap_or_else(|| format!("{value:e}"));
            Err(ConfigError::new(option, text, format!("must be at most {most}: {reason}")))
        }
    }
}

/// A finite number above 0.
///
/// # Errors
/// If it is none.
pub fn more_than_0(option: &'static str, value: f64) -> Result<f64, ConfigError> {
    match value.is_finite() && value > 0.0 {
        true => Ok(value),
        false => Err(ConfigError::new(option, value, "must be a finite number above 0")),
    }
}

/// A finite number, 0 or more.
///
/// # Errors
/// If it is none.
pub fn not_negative(option: &'static str, value: f64) -> Result<f64, ConfigError> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(value),
        false => Err(ConfigError::new(option, value, "must be a finite number, 0 or more")),
    }
}
