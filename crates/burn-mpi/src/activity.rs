//! Records which operation a rank is in, and since when, so that a wait that exceeds its deadline is
//! detected.
//!
//! The rank writes the record. In an MPI job, the guard reads the record and checks deadlines; the guard is a
//! thread of the rank's process. If ranks are threads, the hub, which passes their messages, reads the
//! records and checks the deadlines.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::CommError;
use crate::calling::outermost;
use crate::clock::Clock;

/// Default deadline of a collective.
pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);
/// Default time in a collective after which a rank prints a warning that it waits.
pub(crate) const DEFAULT_STALL: Duration = Duration::from_secs(60);
/// Maximum deadline or warning time. Longer times would overflow the types of clocks.
pub(crate) const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The state of one rank.
#[derive(Debug)]
pub(crate) struct Activity {
    pub clock: Clock,
    state: Mutex<State>,
}

/// What the rank is doing, and what it knows of the other ranks.
#[derive(Debug, Default)]
#[cfg_attr(
    not(feature = "mpi"),
    expect(dead_code, reason = "only guards of processes read some of the fields")
)]
pub(crate) struct State {
    /// Number of collectives that the rank has entered so far.
    pub entered: u64,
    /// The current or last operation, such as `mpi all-reduce of bucket 2`.
    pub what: String,
    /// Start of the current operation, on the rank's clock; `None` while the rank is in no operation.
    since: Option<Duration>,
    /// Number of [`Collective`](crate::Collective)s (connections between all ranks) that the rank has opened.
    pub collectives: usize,
    /// The other rank, if the current operation is a message between two ranks; `None` in a collective.
    pub peer: Option<usize>,
    /// Number of blocking collectives that the rank has entered so far. Unlike waits for collectives in
    /// flight, all ranks make them in the same order.
    blocking: u64,
    /// Whether the current or last operation is a blocking collective.
    is_blocking: bool,
    /// The deadline of an operation.
    pub deadline: Duration,
    /// Time in an operation after which a rank prints a warning. If it is not shorter than the deadline, no
    /// warning is printed.
    pub stall_warning: Duration,
    /// The latest collective about which some rank has announced a warning. Collectives are numbered from 1;
    /// the value is 0 if no rank has announced a warning.
    pub warned: u64,
    /// The latest collective about which a lower rank has announced a warning; 0 if there is none. If ranks
    /// are threads, the hub prints one warning for all ranks, so the announcements of all ranks count.
    pub warned_below: u64,
    /// The lowest other rank whose guard is about to print why the job ends; `None` if no guard has
    /// announced it.
    pub ended_by: Option<usize>,
    /// Whether the guard is about to end the process; `None` until a transport has called
    /// [`World::is_ending`](crate::World::is_ending).
    pub ending: Option<bool>,
    /// The exit code of this rank; `None` until the rank leaves. A rank that has left enters no operation.
    pub leaving: Option<i32>,
    /// Why this rank leaves; empty if unknown.
    pub reason: String,
    /// Ranks that have announced that they leave.
    pub departed: Vec<Departure>,
}

/// A rank that exits while others may still wait for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Departure {
    pub rank: usize,
    pub host: String,
    /// Its exit code.
    pub status: i32,
    /// Number of collectives that the rank had entered when it left.
    pub entered: u64,
    /// Its reason; empty if unknown.
    pub reason: String,
    /// When the announcement arrived, on the receiver's clock.
    pub since: Duration,
}

impl Departure {
    pub fn error(&self) -> CommError {
        let Self { rank, status, .. } = *self;
        CommError::Left { rank, host: self.host.clone(), status, reason: self.reason.clone() }
    }
}

/// A rank's wait in an operation ([`World::watch`](crate::World::watch)). The wait ends when this value is
/// dropped.
#[must_use = "the wait ends when this is dropped"]
pub struct Waiting(Arc<Activity>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.with(|state| state.since = None);
    }
}

/// What a rank is doing at one moment. Ranks send it to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Number of collectives that the rank has entered so far.
    pub entered: u64,
    /// The current or last operation of the rank.
    pub what: String,
    /// Time since the rank entered the operation; `None` if the rank is in no operation.
    pub waited: Option<Duration>,
    /// The other rank, if the operation is a message between two ranks; `None` in a collective.
    pub peer: Option<usize>,
    /// The number of the operation among this rank's blocking collectives; `None` if it is none of them.
    pub blocking: Option<u64>,
}

impl Activity {
    /// Returns the activity of a rank that has entered no operation.
    pub fn new(clock: Clock, deadline: Duration, stall_warning: Duration) -> Self {
        let deadline = deadline.min(LONGEST);
        let stall_warning = stall_warning.min(LONGEST);
        Self { clock, state: Mutex::new(State { deadline, stall_warning, ..State::default() }) }
    }

    /// Reads or changes the state under its lock. `look` must not call `with` again. `look` cannot keep a
    /// reference to the state, so the lock is held only while `look` runs.
    pub fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock())
    }

    /// Records that the rank enters `operation` of `transport`. The rank leaves the operation when the result
    /// is dropped. `bucket` is the operation's bucket of gradients; `None` if it has no bucket.
    ///
    /// `entered` counts collectives only. The operations `send`, `receive` and `launch` are not counted. A
    /// `launch` only starts collectives; the rank waits for their results in later operations, which are
    /// counted. Ranks in the same collective therefore have the same count.
    pub fn enter(this: &Arc<Self>, transport: &str, operation: &str, bucket: Option<usize>) -> Waiting {
        let now = this.clock.now();
        this.with(|state| {
            // An operation inside another operation is reported under the outer operation's name.
            if state.since.is_none() {
                state.what.clear();
                // Writing to a String cannot fail.
                let _ = write!(state.what, "{transport} {operation}");
                if let Some(bucket) = bucket {
                    let _ = write!(state.what, " of bucket {bucket}");
                } else if let Some(call) = outermost() {
                    let _ = write!(state.what, " in {call}");
                }
            }
            let is_counted = !matches!(operation, "send" | "receive" | "launch");
            state.entered += u64::from(is_counted);
            state.is_blocking = is_counted && bucket.is_none();
            state.blocking += u64::from(state.is_blocking);
            (state.since, state.peer) = (Some(now), None);
        });
        Waiting(Arc::clone(this))
    }

    /// Returns what the rank is doing now.
    pub fn now(&self) -> Status {
        let now = self.clock.now();
        self.with(|state| Status {
            entered: state.entered,
            what: state.what.clone(),
            waited: state.since.map(|since| now.saturating_sub(since)),
            peer: state.peer,
            blocking: state.is_blocking.then_some(state.blocking),
        })
    }

    /// Sets the deadline of an operation.
    pub fn set_deadline(&self, deadline: Duration) {
        self.with(|state| state.deadline = deadline.min(LONGEST));
    }

    /// Returns the ranks that have announced that they leave.
    #[cfg(feature = "mpi")]
    pub fn departed(&self) -> Vec<Departure> {
        self.with(|state| state.departed.clone())
    }

    /// Returns the announcement of a rank that leaves; `None` if there is no announcement. A rank with an
    /// exit code other than 0 is preferred.
    pub fn departure(&self) -> Option<Departure> {
        self.with(|state| state.departed.iter().max_by_key(|departure| departure.status != 0).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_described_with_their_transport_and_bucket_and_collectives_are_counted() {
        let activity = Arc::new(Activity::new(Clock::system(), DEFAULT_DEADLINE, DEFAULT_STALL));
        for (transport, operation, bucket, what, entered) in [
            ("mpi", "all-reduce", Some(2), "mpi all-reduce of bucket 2", 1),
            ("gloo", "barrier", None, "gloo barrier", 2),
            ("mpi", "send", None, "mpi send", 2),
            ("ucc", "launch", Some(7), "ucc launch of bucket 7", 2),
            ("rccl", "all-to-some", None, "rccl all-to-some", 3),
        ] {
            let waiting = Activity::enter(&activity, transport, operation, bucket);
            let seen = activity.now();
            assert_eq!((seen.what.as_str(), seen.entered, seen.waited.is_some()), (what, entered, true));
            drop(waiting);
            assert!(activity.now().waited.is_none());
        }
    }
}
