//! Options of `mpiburn data`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use data::import::ImportArgs;

use crate::values::{from_0, positive};

#[derive(Debug, Args)]
pub struct DataArgs {
    #[command(subcommand)]
    pub kind: DataKind,
}

#[derive(Debug, Subcommand)]
pub enum DataKind {
    /// Generate handwritten-looking digits in MNIST's four files, for convnet; the same bytes on every
    /// machine.
    #[command(
        mut_arg("out", |arg| arg.default_value("data/digits").required(false)),
        mut_arg("train", |arg| arg.default_value("60000").required(false)),
        mut_arg("test", |arg| arg.default_value("10000").required(false))
    )]
    Digits(MakeArgs),
    /// Generate coloured objects in CIFAR-10's binary files, for vgg; the same bytes on every machine.
    #[command(
        mut_arg("out", |arg| arg.default_value("data/objects").required(false)),
        mut_arg("train", |arg| arg.default_value("50000").required(false)),
        mut_arg("test", |arg| arg.default_value("10000").required(false))
    )]
    Objects(MakeArgs),
    /// Generate 512 features in 20 classes in .npy files, for mlp; the same bytes on every machine.
    #[command(
        mut_arg("out", |arg| arg.default_value("data/features").required(false)),
        mut_arg("train", |arg| arg.default_value("40000").required(false)),
        mut_arg("test", |arg| arg.default_value("8000").required(false))
    )]
    Features(MakeArgs),
    /// Import your own pictures, tables or arrays as a data set.
    Import(ImportArgs),
    /// Print kind, shapes, classes and digests of a data set, and draw samples.
    Info(InfoArgs),
}

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct MakeArgs {
    /// Folder to write to; created if missing.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Number of training samples.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub train: usize,
    /// Number of test samples.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub test: usize,
    /// Seed of the random generator.
    #[arg(long, default_value_t = 7, value_parser = from_0::<u64>)]
    pub seed: u64,
    /// Replace an existing data set.
    #[arg(long)]
    pub overwrite: bool,
}

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn data info data/digits
  mpiburn data info data/objects --sheet objects.png

A digest is SHA-256 over the labels and then the samples of a split. Training stops with an error \
if ranks differ in the digest of the training split."
)]
pub struct InfoArgs {
    /// Folder of the data set.
    #[arg(value_name = "DIR")]
    pub root: PathBuf,
    /// Draw training samples to FILE, replacing it, with one row for each of the first 512 classes.
    #[arg(long, value_name = "FILE.png")]
    pub sheet: Option<PathBuf>,
}
