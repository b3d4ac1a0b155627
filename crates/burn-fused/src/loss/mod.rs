//! Losses.

mod cross_entropy;
mod exp;

pub use cross_entropy::{Score, cross_entropy, smoothed_cross_entropy};
