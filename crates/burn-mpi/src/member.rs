//! Who a rank is, whatever carries its messages.

use std::sync::Arc;
use std::time::Duration;

use crate::activity::{Activity, Waiting};
use crate::collective::wire::Element;
use crate::{Call, CommError, Operation, Wire};

/// One rank of a job: all that its transports, its exchanges and its guard have to know of it.
#[derive(Debug, Clone)]
pub struct Member {
    pub rank: usize,
    pub size: usize,
    pub host: String,
    /// Whether to yield the core while waiting, because another rank needs it.
    #[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "ranks that are threads wait for a turn"))]
    pub yields: bool,
    pub(crate) activity: Arc<Activity>,
}

impl Member {
    pub(crate) fn new(rank: usize, size: usize, host: String, activity: Activity) -> Self {
        Self { rank, size, host, yields: false, activity: Arc::new(activity) }
    }

    /// Enters an operation of `transport`, on `bucket` if it has one, until the result is dropped.
    pub fn enter(&self, transport: &str, operation: &str, bucket: Option<usize>) -> Waiting {
        Activity::enter(&self.activity, transport, operation, bucket)
    }

    /// Checks `call` on these buffers, which starts.
    ///
    /// # Errors
    /// As [`Call::check`].
    ///
    /// # Panics
    /// As [`Call::check`].
    pub fn check(
        &self,
        transport: &'static str,
        call: Call,
        element: Element,
        from: &[u8],
        to: &[u8],
    ) -> Result<Started, CommError> {
        let started = self.started(transport, call.name(), from.len().max(to.len()));
        match call.check(element, from, to, self.rank, self.size) {
            Ok(()) => Ok(started),
            Err(reason) => Err(self.error(&started, reason)),
        }
    }

    /// Checks the buffer of `operation`, which starts.
    ///
    /// # Errors
    /// As [`Operation::check`].
    pub fn check_operation(
        &self,
        transport: &'static str,
        operation: Operation,
        buffer: &Wire,
    ) -> Result<(), CommError> {
        operation.check(buffer, self.rank, self.size).map_err(|reason| {
            self.error(&self.started(transport, operation.name(), buffer.bytes().len()), reason)
        })
    }

    /// The time of this rank's clock.
    pub fn now(&self) -> Duration {
        self.activity.clock.now()
    }

    /// Yields the core to another rank if ranks share cores.
    #[cfg(feature = "mpi")]
    pub fn pause(&self) {
        match self.yields {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
    }

    /// An operation of `transport` on so many bytes, which starts now.
    pub fn started(&self, transport: &'static str, operation: &'static str, bytes: usize) -> Started {
        Started { transport, operation, bucket: None, bytes, at: self.now() }
    }

    /// The error of an operation that failed, or was not carried out, for `reason`.
    pub fn error(&self, of: &Started, reason: impl Into<String>) -> CommError {
        let Started { transport, operation, bucket, bytes, at } = *of;
        let bucket = bucket.map_or_else(String::new, |bucket| format!(" of bucket {bucket}"));
        CommError::Operation {
            rank: self.rank,
            host: self.host.clone(),
            operation: format!("{transport} {operation}{bucket}"),
            bytes,
            elapsed: self.now().saturating_sub(at),
            reason: reason.into(),
        }
    }
}

#[cfg(feature = "gloo")]
impl Member {
    /// How long a rank whose connection broke waits for its peer to send the reason.
    pub const PEER_REASON_TIMEOUT: Duration = Duration::from_secs(3);

    /// The error of an operation that failed for `reason`. A connection breaks when its peer exits: the reason of one
    /// that announces this within `patience` is the one to report, first that of one with an error.
    pub fn broken(&self, of: &Started, patience: Duration, reason: String) -> CommError {
        let began = std::time::Instant::now();
        loop {
            match self.activity.departure() {
                Some(departure) => return departure.error(),
                None if began.elapsed() > patience => return self.error(of, reason),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// An operation of a rank, as its errors name it.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    pub transport: &'static str,
    pub operation: &'static str,
    pub bucket: Option<usize>,
    pub bytes: usize,
    /// On the rank's clock.
    pub at: Duration,
}
