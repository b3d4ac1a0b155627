//! Batch normalisation, and the running statistics that it is tested with.

mod batch_norm;
mod moving_average;

pub use batch_norm::{Normalised, batch_norm};
pub use moving_average::moving_average;
