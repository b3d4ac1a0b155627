//! SIMD levels: loops are written once, compiled for each instruction set, and selected at run time.

#[cfg(test)]
mod held;
mod lanes;
mod level;
pub(crate) mod math;
mod tile;

pub(crate) use lanes::{Lanes, MAX_LANES, Scalars, add_products, load, prefetch, store, transpose};
pub use level::Level;
pub(crate) use level::{Kernel, kernel};
pub(crate) use tile::{Target, multiply_rows};
