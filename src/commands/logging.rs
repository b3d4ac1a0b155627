//! Sets up the log: plain lines on stderr, above the progress bar if there is one.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};

use burn_mpi::Launcher;
use env_logger::WriteStyle;
use env_logger::fmt::style::Style;
use indicatif::MultiProgress;
use log::Level;
use terminal::console;

static BARS: OnceLock<MultiProgress> = OnceLock::new();

/// Whether `--quiet` was typed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Starts the log. The options `-v` and `-q` set its level. The environment variable `RUST_LOG` overrides
/// these options.
pub fn start(verbose: u8, quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
    let level = match (quiet, verbose) {
        (true, _) => "warn",
        (_, 0) => "info",
        (_, 1) => "mpiburn=debug,data=debug,launch=debug,run_record=debug,info",
        _ => "mpiburn=trace,data=trace,launch=trace,run_record=trace,debug",
    };
    let logger = env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level))
        .write_style(if has_colour() { WriteStyle::Always } else { WriteStyle::Never })
        .format(|out, record| {
            let style = out.default_level_style(record.level());
            writeln!(out, "{}", line(record, style))
        })
        .build();
    let level = logger.filter();
    if indicatif_log_bridge::LogWrapper::new(bars(), logger).try_init().is_ok() {
        log::set_max_level(level);
    }
}

/// Whether `--quiet` suppresses tables and progress bars.
pub(super) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Formats a log record as one printed line, with its level in `style`.
pub fn line(record: &log::Record<'_>, style: Style) -> String {
    // Lines of ranks other than 0 begin with the rank and its host.
    let who = match burn_mpi::identity() {
        Some((rank, _, host)) if rank > 0 => format!("[rank {rank} on {host}] "),
        _ => String::new(),
    };
    let text = console::message(&record.args().to_string());
    match record.level() {
        Level::Info => format!("{who}{text}"),
        level => format!("{who}{style}{}:{style:#} {text}", level.as_str().to_lowercase()),
    }
}

/// Whether this process writes to stderr in colour.
pub(super) fn has_colour() -> bool {
    static COLOUR: LazyLock<bool> = LazyLock::new(|| is_on_terminal() && console::wants_colour());
    *COLOUR
}

/// Whether stderr is a terminal with cursor movement, or a pipe that the launcher on this machine copies to
/// such a terminal.
pub(super) fn is_on_terminal() -> bool {
    let of_launcher = || {
        let stderr = format!("/proc/{}/fd/2", std::os::unix::process::parent_id());
        std::fs::File::open(stderr).is_ok_and(|file| file.is_terminal())
    };
    !console::is_dumb() && (io::stderr().is_terminal() || (Launcher::detect().is_some() && of_launcher()))
}

/// Returns the progress bars. Log lines are written above them.
pub(super) fn bars() -> MultiProgress {
    BARS.get_or_init(MultiProgress::new).clone()
}
