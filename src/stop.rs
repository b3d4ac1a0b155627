//! Signals that request a checkpoint and a stop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// Signals that request a checkpoint and a stop: those that a launcher, a batch system
/// before its time limit, and a terminal send.
const SIGNALS: [(i32, &str); 3] = [(SIGTERM, "SIGTERM"), (SIGUSR1, "SIGUSR1"), (SIGINT, "SIGINT")];

/// The first such signal that this process received, checked between steps.
#[derive(Debug, Clone, Default)]
pub struct StopRequest(Arc<AtomicUsize>);

impl StopRequest {
    /// Records the signals from now on instead of exiting.
    ///
    /// # Errors
    /// When a signal handler cannot be installed.
    pub fn listen() -> io::Result<Self> {
        let request = Self::default();
        for (signal, _) in SIGNALS {
            signal_hook::flag::register_usize(signal, Arc::clone(&request.0), signal as usize)?;
        }
        Ok(request)
    }

    /// Name of the received signal, such as `SIGTERM`.
    pub fn signal(&self) -> Option<&'static str> {
        let came = self.0.load(Ordering::Relaxed);
        SIGNALS.iter().find(|(signal, _)| *signal as usize == came).map(|(_, name)| *name)
    }

    /// Number of the received signal, to be forwarded.
    pub fn number(&self) -> Option<i32> {
        self.signal().map(|_| self.0.load(Ordering::Relaxed) as i32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_recorded_by_name() {
        let request = StopRequest::listen().unwrap();
        assert_eq!(request.signal(), None);
        signal_hook::low_level::raise(SIGUSR1).unwrap();
        assert_eq!(request.signal(), Some("SIGUSR1"));
    }
}
