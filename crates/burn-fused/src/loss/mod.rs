//! Losses.

mod cross_entropy;

pub use cross_entropy::{Score, cross_entropy, smoothed_cross_entropy};
