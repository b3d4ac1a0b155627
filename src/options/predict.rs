//! Options of `mpiburn predict`.

use std::path::PathBuf;

use clap::Args;

use crate::values::positive;

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn predict results/pets cat.jpg          prints FILE: CLASS PROBABILITY
  mpiburn predict results/pets holidays --top 3
  mpiburn predict results/pets holidays --csv > holidays.csv
  find holidays -name '*.jpg' | mpiburn predict results/pets -
  mpiburn predict results/iris flowers.csv      prints a line for each row

Pictures get the size, the channels and the normalisation of the run's data set."
)]
pub struct PredictArgs {
    /// The run: its folder, its run.json, or one of its checkpoints.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// Pictures or folders of pictures; tables if the run was trained on a table. `-` reads the names from
    /// standard input, one per line.
    #[arg(value_name = "FILE|FOLDER", required = true)]
    pub files: Vec<PathBuf>,
    /// Number of classes to name, the most probable first.
    #[arg(long, value_name = "K", default_value = "1", value_parser = positive)]
    pub top: usize,
    /// Print CSV with the file, and each class with its probability.
    #[arg(long)]
    pub csv: bool,
    /// Predict with the int8 model beside the checkpoint.
    #[arg(long)]
    pub int8: bool,
}
