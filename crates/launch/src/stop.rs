//! Signals that request a checkpoint and a stop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

/// Signals that request a checkpoint and a stop. Launchers and terminals send them. Batch systems send them
/// before a job's time limit (Grid Engine with `-notify`: SIGUSR2).
const SIGNALS: [i32; 4] = [SIGTERM, SIGUSR1, SIGUSR2, SIGINT];

/// A stop signal that this process received. Trainings check it between steps.
#[derive(Debug, Clone, Default)]
pub struct StopRequest {
    /// Number of the latest signal that [`take`](StopRequest::take) has not yet returned; 0 if there is none.
    came: Arc<AtomicUsize>,
    /// Number of the first signal that `take` has returned; 0 if there is none.
    first: Arc<AtomicUsize>,
}

impl StopRequest {
    /// Installs handlers for the signals: from now on they are recorded, and do not end this process.
    ///
    /// # Errors
    /// If a signal handler cannot be installed.
    pub fn listen() -> io::Result<Self> {
        Self::listen_to(&SIGNALS)
    }

    /// Installs handlers as [`listen`](Self::listen) does, and handlers for two more signals, in a process
    /// that starts jobs.
    ///
    /// The ranks of a job are in another process group, and would continue unseen if this process ended. So
    /// the other signals with which a terminal ends a process are recorded too: SIGQUIT (Ctrl-\\) and SIGHUP
    /// (the terminal was closed). If this process ignores one of the two, for example under `nohup`, it stays
    /// ignored.
    ///
    /// # Errors
    /// If a signal handler cannot be installed.
    pub fn listen_as_launcher() -> io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let more = [SIGHUP, SIGQUIT].into_iter().filter(|&signal| !ignores(&status, signal));
        Self::listen_to(&SIGNALS.into_iter().chain(more).collect::<Vec<_>>())
    }

    fn listen_to(signals: &[i32]) -> io::Result<Self> {
        let request = Self::default();
        for &signal in signals {
            signal_hook::flag::register_usize(signal, Arc::clone(&request.came), signal as usize)?;
        }
        Ok(request)
    }

    /// Returns the name of the first signal that [`take`](Self::take) has returned, such as `SIGTERM`. If
    /// `take` has returned no signal, returns the name of the latest signal. Returns `None` if no signal
    /// came.
    pub fn signal(&self) -> Option<&'static str> {
        signal_hook::low_level::signal_name(self.number()?)
    }

    /// Returns the number of the signal that [`signal`](Self::signal) names.
    pub fn number(&self) -> Option<i32> {
        let received = |slot: &AtomicUsize| Some(slot.load(Ordering::Relaxed)).filter(|&number| number > 0);
        received(&self.first).or_else(|| received(&self.came)).map(|number| number as i32)
    }

    /// Returns the number of the latest signal since the last call, for the caller to forward; `None` if no
    /// signal came.
    pub fn take(&self) -> Option<i32> {
        let came = Some(self.came.swap(0, Ordering::Relaxed)).filter(|&number| number > 0)?;
        let _ = self.first.compare_exchange(0, came, Ordering::Relaxed, Ordering::Relaxed);
        Some(came as i32)
    }

    /// Records `signal` as if it had come.
    pub fn request(&self, signal: i32) {
        self.came.store(signal as usize, Ordering::Relaxed);
    }
}

/// Returns whether a process ignores `signal`. `status` is the content of its `/proc/PID/status`.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_seen_in_the_mask() {
        let status = "Name:\tmpiburn\nSigIgn:\t0000000000001001\nSigCgt:\tffffffffffffffff\n";
        assert!(ignores(status, SIGHUP) && ignores(status, 13));
        assert!(!ignores(status, SIGINT) && !ignores("", SIGHUP));
    }

    #[test]
    fn a_signal_is_recorded_by_name() {
        for (signal, name) in [(SIGUSR1, "SIGUSR1"), (SIGUSR2, "SIGUSR2")] {
            let request = StopRequest::listen().unwrap();
            assert_eq!(request.signal(), None);
            signal_hook::low_level::raise(signal).unwrap();
            assert_eq!(request.signal(), Some(name));
        }
    }

    #[test]
    fn each_signal_is_taken_once_and_the_first_one_named() {
        let request = StopRequest::default();
        assert_eq!((request.take(), request.number()), (None, None));
        request.request(SIGTERM);
        assert_eq!((request.number(), request.take(), request.take()), (Some(SIGTERM), Some(SIGTERM), None));
        request.request(SIGINT);
        assert_eq!((request.take(), request.signal()), (Some(SIGINT), Some("SIGTERM")));
    }
}
