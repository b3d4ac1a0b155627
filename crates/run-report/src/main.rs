//! `run-report`: `mpiburn report` on a machine without MPI.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Parser;
use run_report::{ReportArgs, UsageError};
use terminal::console;

/// Tables, plots and predictions from run directories of mpiburn.
#[derive(Parser)]
#[command(name = "run-report", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: ReportArgs,
}

fn main() -> ExitCode {
    console::survive_large_files();
    match run_report::run(&Cli::parse().args) {
        Ok(()) if console::lost() => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let colour = io::stderr().is_terminal() && !console::is_dumb() && console::wants_colour();
            console::error("run-report", "", &format!("{error:#}"), colour);
            ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
        }
    }
}
