//! Options of `mpiburn report`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn report                                           all runs below results/
  mpiburn report results/topologies --format html          tables and plots in results/report/
  mpiburn report results/topologies results/try --format markdown
  mpiburn report results/profiles results/fused.csv        profiles (JSON files) and benchmarks (CSV files)
  mpiburn report --predict results/topologies --link results/link.csv
  mpiburn report --predict results/try --latency-us 50 --bandwidth-mbit 1000 --out results/forecast

Repeats are shown as their median, times with their minimum and maximum; several seeds of a sweep as one row."
)]
pub struct ReportArgs {
    /// Run directories, sweeps, folders of profiles (`profile --json`), tables of benchmarks
    /// (`bench fused|collectives|allreduce --csv`), or a folder of these, down to the
    /// fifth level below it [default: results/].
    #[arg(value_name = "RUN|SWEEP|FOLDER|FILE")]
    pub paths: Vec<PathBuf>,
    /// Output format; html writes files instead.
    #[arg(long, value_enum, default_value_t = Format::Terminal)]
    pub format: Format,
    /// Print all columns, however wide; otherwise those that fit.
    #[arg(long)]
    pub wide: bool,
    /// Write report.html, tables (.md, .csv) and plots (.svg, .png) to DIR
    /// [default: nothing; with --format html: results/report].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Topology of the runs that speed-up and efficiency are relative to [default: 1x1].
    #[arg(long, value_name = "NxC")]
    pub baseline: Option<String>,
    /// Published figures to show for comparison: results/reference/NAME.csv [default: those that a sweep names].
    #[arg(long, value_name = "NAME")]
    pub reference: Option<String>,

    /// Predict time and efficiency for 1 to 1024 ranks from the given runs.
    #[arg(long, help_heading = "Prediction")]
    pub predict: bool,
    /// Link between the machines, measured by `mpiburn bench link --csv FILE`.
    #[arg(
        long,
        value_name = "FILE.csv",
        requires = "predict",
        conflicts_with_all = ["latency_us", "bandwidth_mbit"],
        help_heading = "Prediction"
    )]
    pub link: Option<PathBuf>,
    /// Latency of the link in µs.
    #[arg(
        long,
        value_name = "µs",
        allow_negative_numbers = true,
        requires = "predict",
        help_heading = "Prediction"
    )]
    pub latency_us: Option<f64>,
    /// Bandwidth of the link in Mbit/s.
    #[arg(
        long,
        value_name = "Mbit/s",
        allow_negative_numbers = true,
        requires = "predict",
        help_heading = "Prediction"
    )]
    pub bandwidth_mbit: Option<f64>,
}

/// Output format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for the terminal.
    Terminal,
    /// GitHub Markdown tables.
    Markdown,
    /// One table of runs for other programs, with median, minimum and maximum as separate columns.
    Csv,
    /// One self-contained page, and its tables and plots as files.
    Html,
}
