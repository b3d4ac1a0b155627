//! A deadline for `MPI_Init`. The guards, which enforce the deadline of collectives, start only after
//! `MPI_Init`.
//!
//! `MPI_Init` waits for every process of the job, and reports nothing. If a rank was stopped, is cut off by a
//! firewall, or never calls `MPI_Init`, the other ranks wait in `MPI_Init` forever. So a thread in each
//! process ends the job when the deadline passes.

use std::fs;
use std::os::unix::process::parent_id;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::{TICK, end_process, patience};
use crate::Launcher;
use crate::host::{Place, named_ranks};
use crate::launcher::stat;
use crate::process::{self, print_line};

/// Starts a thread that ends this process, and with it the job, at the deadline. If the returned sender is
/// dropped before the deadline, the thread ends and does nothing. If the job has no other ranks, starts no
/// thread.
#[must_use = "the watch ends when this is dropped"]
pub(crate) fn watch(launcher: Option<&Launcher>) -> Sender<()> {
    let (starting, started) = mpsc::channel();
    let Some(launcher) = launcher.filter(|launcher| launcher.has_peers()).cloned() else { return starting };
    // Ranks cannot exchange messages yet. Higher ranks wait longer, so that only one rank prints the line.
    let patience = 3 * patience(launcher.rank);
    let wait = move || {
        let (mut waited, mut last) = (Duration::ZERO, Instant::now());
        while started.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            // A busy core delays this loop a little. A gap of seconds means that this process itself was
            // stopped, which must not count as silence of the others.
            waited += last.elapsed().min(5 * TICK);
            last = Instant::now();
            if waited > process::ACTIVITY.with(|state| state.deadline).saturating_add(patience) {
                end_the_job(&launcher, waited);
            }
        }
    };
    if std::thread::Builder::new().name("start".into()).spawn(wait).is_err() {
        log::warn!(
            "cannot start the thread that watches MPI's start: a start that hangs will not be aborted"
        );
    }
    starting
}

fn end_the_job(launcher: &Launcher, waited: Duration) -> ! {
    let Launcher { name, rank, size, .. } = launcher;
    let size = size.map_or_else(|| "several".to_owned(), |size| size.to_string());
    let host = Place::of_this_process(*rank).host;
    let stopped = stopped_siblings();
    let others = match stopped.last() {
        None => "other ranks may be stopped, have exited, or be unreachable from this host".to_owned(),
        Some(last) => format!("stopped: {}", named_ranks(&stopped, &vec![host.clone(); last + 1])),
    };
    print_line(&format!(
        "the start of MPI exceeded the deadline of {} s ({}): rank {rank} on {host}, one of {size} ranks of {name}, has \
         waited for {:.1} s; {others}",
        process::ACTIVITY.with(|state| state.deadline).as_secs_f64(),
        process::start_setting(),
        waited.as_secs_f64(),
    ));
    end_process()
}

/// Returns the other ranks on this host that a signal has stopped, in order. They are processes with the same
/// parent.
fn stopped_siblings() -> Vec<usize> {
    let own = parent_id().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let rank = |process: fs::DirEntry| {
        let (_, fields) = stat(process.file_name().to_str()?)?;
        if fields.get(1) != Some(&own) || !matches!(fields[0].as_str(), "T" | "t") {
            return None;
        }
        rank_in(&fs::read(process.path().join("environ")).ok()?)
    };
    let mut ranks: Vec<usize> = processes.filter_map(rank).collect();
    ranks.sort_unstable();
    ranks
}

/// Returns the rank that a launcher has set in the environment of a process; `None` if there is no such
/// variable.
fn rank_in(environment: &[u8]) -> Option<usize> {
    let value = |name: &str| {
        environment.split(|&byte| byte == 0).find_map(|variable| {
            let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            String::from_utf8(value.to_vec()).ok()
        })
    };
    Launcher::from_variables(value).map(|launcher| launcher.rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_is_read() {
        let variables = b"A=1\0OMPI_COMM_WORLD_RANK=3\0OMPI_COMM_WORLD_SIZE=4\0";
        assert_eq!((rank_in(variables), rank_in(b"A=1\0")), (Some(3), None));
    }
}
