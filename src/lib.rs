//! Data-parallel training of Burn models over MPI.
//!
//! Every process of a job takes its rank from `MPI_COMM_WORLD`, trains on its shard
//! of a data set, and averages gradients with the other ranks.
//!
//! # Modules
//!
//! | module | what it does |
//! | --- | --- |
//! | [`cli`], [`config`] | what was typed, and what it means |
//! | [`commands`] | one file a subcommand: puts the other modules together |
//! | [`train`] | the loop, the step, the optimizer; options and state of a training |
//! | [`profile`] | time and memory of each operator |
//! | [`model`] | the networks |
//! | [`quant`] | 8-bit quantization of the networks |
//! | [`export`] | networks as ONNX files |
//! | [`data`] | files, shards, batches, and generated data sets |
//! | [`record`] | the run directory: checkpoints, curves, `run.json` |
//! | [`report`] | tables, plots and predictions from run directories |
//! | [`launch`], [`sweep`] | outside MPI: starting jobs, and lists of them |
//!
//! ARCHITECTURE.md shows which module may use which. Ranks and collectives are in
//! [`burn_mpi`], operators in [`burn_fused`].
//!
//! # The path of one training step
//!
//! [`data::Shard`] returns the step's samples as bytes → [`data::Normalizer`]
//! converts them to a batch → [`model::Network`] computes class scores →
//! [`train::CrossEntropy`] → backward; each gradient is copied into its bucket of
//! [`burn_mpi::GradientSync`], which sums the buckets over all ranks by a
//! [`burn_mpi::Collective`] → [`train::Updater`] reads the averages from the buckets
//! and writes new weights.

#![forbid(unsafe_code)]

pub mod commands;
pub mod data;
pub mod device;
pub mod export;
mod files;
pub mod launch;
pub mod machine;
pub mod model;
mod names;
pub mod options;
pub mod profile;
pub mod quant;
pub mod record;
pub mod report;
pub mod stop;
pub mod sweep;
pub mod train;
mod values;
