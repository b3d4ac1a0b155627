//! Batch normalisation.

mod batch_norm;

pub use batch_norm::{Normalised, batch_norm};
