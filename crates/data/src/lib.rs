//! Data sets: every file format, generated sets, imports of what people have, and a rank's samples.
//!
//! [`open`] detects the format of a folder and returns a [`SampleSource`], which reads samples as the bytes of the file.
//! A [`Shard`] has one rank's samples, in memory or read from disk for each step, and a [`Normalizer`] makes f32 values
//! of them. [`import()`] writes a data set of pictures, tables or arrays, and [`generate`] makes one on the spot.
//!
//! The features `pictures`, `parquet` and `archives` (zip, tar) bring their readers, and are on by default. An import
//! without one of them says what it lacks.
//!
//! The crate knows neither Burn nor MPI.

#![forbid(unsafe_code)]

// The first module: the modules below use its macro.
#[macro_use]
mod error;

pub mod augment;
pub mod contact_sheet;
mod element;
mod formats;
pub mod generate;
pub mod import;
mod normalizer;
mod quote;
pub mod shard;
mod source;

pub use element::Element;
pub use error::DataError;
pub use formats::{DataFormat, DataSet, is_data_file, open, write_npy};
pub use import::import;
pub use normalizer::Normalizer;
pub use shard::Shard;
pub use source::{Description, SampleSource, Split, size_of_sample};
