//! Quantization of networks to 8-bit integers: groups of layers, ranges of values, and the int8 model.
//!
//! A range is a minimum and a maximum ([`Ranges`]). Quantization-aware training ([`Quantizer`]) determines
//! the ranges of weights and activations. Post-training quantization ([`PostQuantizer`]) determines the
//! ranges of activations; each weight range is then the range of the float weights. [`Quantized`] makes the
//! int8 model from the float weights and the ranges.
//!
//! The formulas and the integer kernels are in [`burn_fused::int8`].

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
