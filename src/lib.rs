//! Data-parallel training of Burn models over MPI.
//!
//! Every process of a job takes its rank from `MPI_COMM_WORLD`, trains on its shard
//! of a data set, and averages gradients with the other ranks.
//!
//! # Modules
//!
//! | module | what it does |
//! | --- | --- |
//! | [`options`] | what is typed, and its rules |
//! | [`commands`] | one file a subcommand: puts the other modules together |
//! | [`train`] | the loop, the step, the optimizer; options and state of a training |
//! | [`spans`], [`profile`] | time and memory of each operator: what is recorded, and its tables |
//! | [`model`] | the networks |
//! | [`quant`] | 8-bit quantization of the networks |
//! | [`export`] | networks as ONNX files |
//!
//! ARCHITECTURE.md shows which module may use which. Ranks and collectives are in
//! [`burn_mpi`], operators in [`burn_fused`], data sets in [`data`], the run directory in [`run_record`], tables and
//! plots in [`run_report`], the start of jobs in [`launch`].
//!
//! # The path of one training step
//!
//! [`data::Shard`] returns the step's samples as bytes → [`data::Normalizer`]
//! converts them to f32 values → [`model::inputs`] makes a batch of these →
//! [`model::Network`] computes class scores →
//! [`burn_fused::loss`] → backward; each gradient is copied into its bucket of
//! [`burn_mpi::GradientSync`], which sums the buckets over all ranks by a
//! [`burn_mpi::Collective`] → [`train::Optimizer`] reads the averages from the buckets
//! and writes new weights.

#![forbid(unsafe_code)]

// Output to a closed pipe is no panic.
#[macro_use(eprintln, print, println)]
extern crate terminal;

pub mod commands;
pub mod device;
pub mod export;
pub mod layout;
pub mod machine;
pub mod model;
pub mod options;
pub mod profile;
pub mod quant;
pub mod spans;
pub mod train;
mod values;

/// The line before the message of a panic of this program.
pub const INTERNAL_ERROR: &str = "internal error; please report the output below";
