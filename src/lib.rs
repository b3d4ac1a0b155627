//! Data-parallel training of Burn models over MPI.
//!
//! Every process of a job takes its rank from `MPI_COMM_WORLD`, trains on its shard of a data set, and
//! averages gradients with the other ranks.
//!
//! # Modules
//!
//! | module | what it does |
//! | --- | --- |
//! | [`options`] | the command line, and checks of options against each other |
//! | [`commands`] | the subcommands, one file each; they combine the other modules |
//! | [`train`] | training loop, step and optimizer; options and state of a training |
//! | [`spans`], [`profile`] | records of each operator's time and memory, and the tables made from them |
//! | [`model`] | the networks |
//! | [`quant`] | 8-bit quantization of the networks |
//! | [`export`] | networks as ONNX files |
//!
//! ARCHITECTURE.md shows which module may use which. The workspace's other crates provide ranks and
//! collectives ([`burn_mpi`]), operators ([`burn_fused`]), data sets ([`data`]), the run directory
//! ([`run_record`]), tables and plots ([`run_report`]) and the start of jobs ([`launch`]).
//!
//! # The path of one training step
//!
//! 1. [`data::Shard`] returns the step's samples as bytes.
//! 2. [`data::Normalizer`] converts the bytes to f32 values, and [`model::inputs`] makes a batch of them.
//! 3. [`model::Network`] computes class scores, and [`burn_fused::loss`] the loss.
//! 4. Backward computes gradients. If there are several ranks, each gradient is copied into a bucket, a buffer
//!    of gradients, and [`burn_mpi::GradientSync`] sums the buckets over all ranks with a
//!    [`burn_mpi::Collective`].
//! 5. [`train::Optimizer`] reads the averages from the buckets and computes new weights, which
//!    [`train::Learner`] writes into the network.

#![forbid(unsafe_code)]

// These macros ignore a closed pipe. The standard library's macros would panic.
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

/// The line printed before a panic's own message.
pub const INTERNAL_ERROR: &str = "internal error; please report the output below";
