//! SIMD levels: loops are written once, compiled for each instruction set, and selected at run time.

mod lanes;
mod level;
pub(crate) mod math;
mod tile;

pub use lanes::Lanes;
pub(crate) use lanes::{MAX_LANES, Scalars, add_products, load, prefetch, store, transpose};
pub(crate) use level::kernel;
pub use level::{Held, Kernel, Level};
pub(crate) use tile::{Target, multiply_rows};
