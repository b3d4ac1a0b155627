//! Log setup: plain lines on stderr, written around the progress bar if there is one.

use std::io::Write;
use std::sync::OnceLock;

use indicatif::MultiProgress;
use log::Level;

use run_report::console::without_controls;

static BARS: OnceLock<MultiProgress> = OnceLock::new();

/// Starts the log at the level of the options; `RUST_LOG` overrides it.
pub fn start(verbose: u8, quiet: bool) {
    let level = match (quiet, verbose) {
        (true, _) => "warn",
        (_, 0) => "info",
        (_, 1) => "mpiburn=debug,run_record=debug,info",
        _ => "mpiburn=trace,run_record=trace,debug",
    };
    let logger = env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .format(|out, record| writeln!(out, "{}", line(record)))
        .build();
    let level = logger.filter();
    if indicatif_log_bridge::LogWrapper::new(bars(), logger).try_init().is_ok() {
        log::set_max_level(level);
    }
}

/// A record as it is printed.
pub fn line(record: &log::Record<'_>) -> String {
    // Rank 0 logs without a prefix; other ranks are named.
    let who = match burn_mpi::identity() {
        Some((rank, _, host)) if rank > 0 => format!("[rank {rank} on {host}] "),
        _ => String::new(),
    };
    let text = record.args().to_string();
    let text = without_controls(&text);
    match record.level() {
        Level::Info => format!("{who}{text}"),
        level => format!("{who}{}: {text}", level.as_str().to_lowercase()),
    }
}

/// The progress bars that log lines are written around.
pub(super) fn bars() -> MultiProgress {
    BARS.get_or_init(MultiProgress::new).clone()
}
