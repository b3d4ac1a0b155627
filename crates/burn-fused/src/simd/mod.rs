//! SIMD levels: loops that are written once, compiled for each instruction set and
//! selected at run time.

mod lanes;
mod level;
pub(crate) mod math;

pub use lanes::Lanes;
pub(crate) use lanes::{MAX_LANES, Scalars, add_products, load, store};
pub(crate) use level::kernel;
pub use level::{Held, Kernel, Level};
