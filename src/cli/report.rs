//! What can be typed after `report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn report                                           every run below results/
  mpiburn report results/topologies --format html          tables and pictures, in results/report/
  mpiburn report results/topologies results/try --format markdown
  mpiburn report --predict results/topologies --link results/link.csv
  mpiburn report --predict results/try --latency-us 50 --bandwidth-mbit 1000 --out results/forecast

A number of several repeats is their median ± half of the range from the lowest to the highest."
)]
pub struct ReportArgs {
    /// Run directories and sweeps [default: all below results/].
    #[arg(value_name = "RUN|SWEEP")]
    pub paths: Vec<PathBuf>,
    /// What to print; html writes files instead.
    #[arg(long, value_enum, default_value_t = Format::Terminal)]
    pub format: Format,
    /// Write report.html, tables (.md, .csv) and pictures (.svg, .png) to DIR
    /// [default: nothing; with --format html: results/report].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Topology that speed-up and efficiency are relative to.
    #[arg(long, value_name = "NxC", default_value = "1x1")]
    pub baseline: String,
    /// Published figures to show beside: results/reference/NAME.csv [default: those that a sweep names].
    #[arg(long, value_name = "NAME")]
    pub reference: Option<String>,

    /// Predict time and efficiency for 1 to 1024 ranks from the runs given.
    #[arg(long, help_heading = "Prediction")]
    pub predict: bool,
    /// Link between the machines, as `mpiburn bench link --csv FILE` measured it.
    #[arg(
        long,
        value_name = "FILE.csv",
        requires = "predict",
        conflicts_with_all = ["latency_us", "bandwidth_mbit"],
        help_heading = "Prediction"
    )]
    pub link: Option<PathBuf>,
    /// Time of the shortest message in µs.
    #[arg(long, value_name = "µs", requires = "predict", help_heading = "Prediction")]
    pub latency_us: Option<f64>,
    /// Bandwidth of the link in Mbit/s.
    #[arg(long, value_name = "Mbit/s", requires = "predict", help_heading = "Prediction")]
    pub bandwidth_mbit: Option<f64>,
}

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table of lines and columns.
    Terminal,
    /// Tables as GitHub shows them.
    Markdown,
    /// One table for other programs; with separate columns for median, lowest and highest.
    Csv,
    /// One self-contained page, and what it shows as files.
    Html,
}
