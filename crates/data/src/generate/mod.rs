//! Data sets made on the spot: the same bytes on every machine.

mod chance;
pub mod digits;
pub mod features;
pub mod objects;
mod shapes;
mod strokes;
mod synthetic;

pub use synthetic::noise;

/// Is told the number of samples that are done; an error ends the generation, whose files go.
pub type AfterSample<'a> = &'a dyn Fn(usize) -> std::io::Result<()>;
