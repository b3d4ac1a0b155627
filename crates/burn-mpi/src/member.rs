//! [`Member`]: identity and state of a rank, whatever its transport.

use std::sync::Arc;
use std::time::Duration;

use crate::CommError;
use crate::activity::{Activity, Waiting};

/// One rank of a job, as its transports, its exchanges and its guard (the thread that checks deadlines) need
/// it.
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

    /// Records that the rank enters `operation` of `transport`. The rank leaves the operation when the result
    /// is dropped. `bucket` is the operation's bucket of gradients; `None` if it has no bucket.
    pub fn enter(&self, transport: &str, operation: &str, bucket: Option<usize>) -> Waiting {
        Activity::enter(&self.activity, transport, operation, bucket)
    }

    /// Returns the time of this rank's clock.
    pub fn now(&self) -> Duration {
        self.activity.clock.now()
    }

    /// Yields the core to another rank if ranks share cores.
    #[cfg(feature = "mpi")]
    pub fn pause(&self) {
        if self.yields { std::thread::yield_now() } else { std::hint::spin_loop() }
    }

    /// Describes an operation of `transport` on `bytes` bytes that starts now.
    pub fn started(&self, transport: &'static str, operation: &'static str, bytes: usize) -> Started {
        Started { transport, operation, bucket: None, bytes, at: self.now() }
    }

    /// Returns the error of an operation that failed, or was not carried out, for `reason`.
    pub fn error(&self, started: &Started, reason: impl Into<String>) -> CommError {
        let Started { transport, operation, bucket, bytes, at } = *started;
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

    /// How long a rank whose connection broke waits for its peer to announce the reason.
    pub const PEER_REASON_TIMEOUT: Duration = Duration::from_secs(3);

    /// Returns the error of an operation after its connection broke for `reason`.
    ///
    /// A connection breaks when the peer exits. If a peer announces within `patience` that it leaves, the
    /// returned error names this peer and its reason. Of several such peers, one with an exit code other than
    /// 0 is preferred.
    pub fn broken(&self, started: &Started, patience: Duration, reason: String) -> CommError {
        let began = std::time::Instant::now();
        loop {
            match self.activity.departure() {
                Some(departure) => return departure.error(),
                None if began.elapsed() > patience => return self.error(started, reason),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// An operation that a rank has started, with the values that its errors contain
/// ([`World::started`](crate::World::started)).
#[derive(Debug, Clone, Copy)]
pub struct Started {
    pub(crate) transport: &'static str,
    pub(crate) operation: &'static str,
    pub(crate) bucket: Option<usize>,
    pub(crate) bytes: usize,
    /// Time of the start, on the rank's clock.
    pub(crate) at: Duration,
}
