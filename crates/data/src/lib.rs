//! Data sets: file formats, generated data sets, imports of pictures, tables and arrays, and the samples of
//! one rank (a process of an MPI job).
//!
//! [`open`] detects the format of a folder and returns a [`SampleSource`]. The source returns each sample as
//! the bytes that are on disk. A [`Shard`] holds the samples of one rank, in memory or read from disk for
//! each step. A [`Normalizer`] converts sample bytes to f32 values. [`import()`] converts pictures, tables or
//! arrays to a data set, and [`generate`] makes data sets without any input.
//!
//! The crate features `pictures`, `parquet` and `archives` (zip, tar) enable imports of pictures, Parquet
//! tables and archives. All three features are on by default. If an import needs a feature that the build
//! lacks, its error names the feature.
//!
//! The crate depends on neither Burn nor MPI.

#![forbid(unsafe_code)]

// This module comes first because the modules below use its macro `bail!`.
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
