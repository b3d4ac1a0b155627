//! Generated data sets: made without input files, with the same bytes on every machine.

mod chance;
pub mod digits;
pub mod features;
pub mod objects;
mod shapes;
mod strokes;
mod synthetic;

pub use synthetic::noise;

/// Function that a generator calls after each sample, with the number of samples written so far. If the
/// function returns an error, the generator stops, removes its unfinished files, and returns this error.
pub type AfterSample<'a> = &'a dyn Fn(usize) -> std::io::Result<()>;
