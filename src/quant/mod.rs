//! Quantization of networks: fusion of layers into groups, ranges, and the integer
//! model.
//!
//! [`burn_fused::int8`] has the formulas and the integer kernels.

mod error;
mod group_layers;
mod groups;
pub mod int8_file;
mod post_training;
mod quantized;
mod quantizer;
mod ranges;

pub use error::QuantError;
pub use groups::{Group, Product, groups, padding};
pub use int8_file::Int8File;
pub use post_training::{CALIBRATION, PostQuantizer, PostTraining};
pub use quantized::Quantized;
pub use quantizer::Quantizer;
pub use ranges::{GroupRanges, Range, Ranges, WeightScheme};
pub use ranges::{Quantization, QuantizeKind};

#[cfg(test)]
mod quantized_tests;
#[cfg(test)]
mod tests;
