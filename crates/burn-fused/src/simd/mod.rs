//! SIMD levels: loops that are written once, compiled for each instruction set and
//! selected at run time.

mod lanes;
mod level;
mod product;

pub use lanes::Lanes;
pub(crate) use lanes::{MAX_LANES, load, store};
pub use level::{Held, Kernel, Level};
pub(crate) use product::{Scalars, add_products};
