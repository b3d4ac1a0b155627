//! What can be typed to make data sets and to look at them.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct DataArgs {
    #[command(subcommand)]
    pub kind: DataKind,
}

#[derive(Debug, Subcommand)]
pub enum DataKind {
    /// Handwritten-looking digits in MNIST's four files, for convnet; the same bytes on every
    /// machine.
    #[command(
        mut_arg("out", |arg| arg.default_value("data/digits").required(false)),
        mut_arg("train", |arg| arg.default_value("60000").required(false)),
        mut_arg("test", |arg| arg.default_value("10000").required(false))
    )]
    Digits(MakeArgs),
    /// Coloured objects in CIFAR-10's binary files, for vgg; the same bytes on every machine.
    #[command(
        mut_arg("out", |arg| arg.default_value("data/objects").required(false)),
        mut_arg("train", |arg| arg.default_value("50000").required(false)),
        mut_arg("test", |arg| arg.default_value("10000").required(false))
    )]
    Objects(MakeArgs),
    /// 512 features in 20 classes in .npy files, for mlp; the same bytes on every machine.
    #[command(
        mut_arg("out", |arg| arg.default_value("data/features").required(false)),
        mut_arg("train", |arg| arg.default_value("40000").required(false)),
        mut_arg("test", |arg| arg.default_value("8000").required(false))
    )]
    Features(MakeArgs),
    /// What a folder holds: kind, shapes, classes and digests, and what samples look like.
    Info(InfoArgs),
}

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct MakeArgs {
    /// Folder to write to; made if missing.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Training samples.
    #[arg(long, value_name = "N")]
    pub train: usize,
    /// Test samples.
    #[arg(long, value_name = "N")]
    pub test: usize,
    /// Seed of every drawing.
    #[arg(long, default_value_t = 7)]
    pub seed: u64,
    /// Replace a data set that is there already.
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

A digest is SHA-256 over the labels and then the samples of a split. A training stops where
ranks differ in the training set's."
)]
pub struct InfoArgs {
    /// Folder of the data set.
    #[arg(value_name = "DIR")]
    pub root: PathBuf,
    /// Draw training samples to FILE, a row a class, replacing it.
    #[arg(long, value_name = "FILE.png")]
    pub sheet: Option<PathBuf>,
}
