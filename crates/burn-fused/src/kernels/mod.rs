//! Loops over slices, in SIMD code that is selected at run time. Nothing here knows Burn.

pub(crate) mod conv;
#[cfg(target_arch = "x86_64")]
pub(crate) mod half;
pub(crate) mod matrix;
pub(crate) mod product;
pub(crate) mod quantization;
pub(crate) mod recurrent;
pub mod simd;
pub(crate) mod squares;
