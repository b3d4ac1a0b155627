//! Quantization of networks: fusion of layers into groups, ranges, and the integer
//! model.
//!
//! [`burn_fused::int8`] has the formulas and the integer kernels.

mod calibration;
mod dynamic;
mod dynamic_kernels;
mod error;
mod fold;
mod groups;
pub mod int8_file;
mod int8_model;
mod int8_reader;
mod integer;
mod layers;
mod options;
mod origin;
mod post_training;
mod quantizer;
mod ranges;
mod stored;

pub use calibration::Calibration;
pub use dynamic::{DynamicLayer, DynamicModel, Windows};
pub use error::QuantError;
use groups::padding;
pub use groups::{Group, Product, groups};
pub use int8_file::Int8File;
pub use integer::integer_model;
pub use options::{Quantization, QuantizeKind};
pub use post_training::{CALIBRATION, PostQuantizer, PostTraining};
pub use quantizer::{QatOptions, Quantizer};
pub use ranges::{GroupRanges, Range, Ranges, WeightScheme};
pub use stored::Quantized;

#[cfg(test)]
mod stored_tests;
#[cfg(test)]
mod tests;
