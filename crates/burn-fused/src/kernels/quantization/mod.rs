//! 8-bit quantization of slices: formulas, ranges of values, and errors.

mod error;
mod fake;
mod observer;
mod scheme;
mod values;

pub use error::Int8Error;
pub(crate) use error::expect_len;
pub(crate) use fake::{Grids, column_ranges, quantize_parts};
pub(crate) use observer::Extremes;
pub use observer::{Observer, min_max, min_max_by_channel};
pub use scheme::{QParams, SMALLEST_SCALE, Scheme};
pub(crate) use values::Grid;
pub use values::{dequantize, quantize, quantize_weights};
