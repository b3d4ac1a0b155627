//! What a rank is doing, written by the rank and read by whoever watches its deadlines: the guard of its
//! process, or the meeting place of ranks that are threads.

use std::cell::Cell;
#[cfg(feature = "nccl")]
use std::sync::atomic::AtomicU8;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::{CommError, operation};

/// Default deadline of a collective.
pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);
/// Default time after which a wait is told of.
pub(crate) const DEFAULT_STALL: Duration = Duration::from_secs(60);

/// The state of one rank.
#[derive(Debug)]
pub(crate) struct Activity {
    pub clock: Clock,
    /// Collectives entered so far.
    entered: AtomicU64,
    /// Start of the current operation, in ms of the clock and at least 1; 0 if there is none.
    since: AtomicU64,
    /// The current operation, see [`operation::encode`].
    what: AtomicU64,
    deadline_ms: AtomicU64,
    /// After what time a wait is told of, before the deadline.
    stall_ms: AtomicU64,
    /// The last collective, counted from 1, whose wait another rank has told of.
    told: AtomicU64,
    /// The same, of ranks below this one.
    told_below: AtomicU64,
    leaving: AtomicBool,
    /// The lowest other rank whose guard ends the job; [`NONE`] if none does.
    ended_by: AtomicUsize,
    status: AtomicI32,
    /// Why this rank leaves, if known.
    reason: Mutex<String>,
    /// Ranks that have announced that they leave.
    departed: Mutex<Vec<Departure>>,
    /// For a transport whose operations the guard can have aborted.
    #[cfg(feature = "nccl")]
    pub abortable: AtomicU8,
}

const NONE: usize = usize::MAX;

/// A rank that exits while others may still wait for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Departure {
    pub rank: usize,
    pub host: String,
    /// Its exit code.
    pub status: i32,
    /// Collectives that it has entered; it enters no others.
    pub entered: u64,
    /// Empty if unknown.
    pub reason: String,
    /// When it announced that, on the clock of who heard it.
    pub since: Duration,
}

impl Departure {
    pub fn error(&self) -> CommError {
        let Self { rank, status, .. } = *self;
        CommError::Left { rank, host: self.host.clone(), status, reason: self.reason.clone() }
    }
}

/// A wait in an operation, until dropped ([`World::watch`](crate::World::watch)).
#[must_use = "the wait ends when this is dropped"]
pub struct Waiting(Arc<Activity>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.since.store(0, Ordering::Release);
    }
}

thread_local! {
    /// Replacement name of this thread's operations.
    static NAME: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Names the operations of this thread `name` while `body` runs. This distinguishes an
/// exchange of the world from a transport's operation of the same kind.
pub(crate) fn named<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    let before = NAME.replace(Some(name));
    let result = body();
    NAME.set(before);
    result
}

/// A look at a rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// Collectives entered so far.
    pub entered: u64,
    /// The current or last operation of the rank.
    pub what: u64,
    /// Time since it entered the operation; `None` if it is in none.
    pub waited: Option<Duration>,
}

impl Activity {
    /// Of a rank that has entered nothing.
    pub fn new(clock: Clock, deadline: Duration, stall_warning: Duration) -> Self {
        Self {
            clock,
            entered: AtomicU64::new(0),
            since: AtomicU64::new(0),
            what: AtomicU64::new(0),
            deadline_ms: AtomicU64::new(milliseconds(deadline.min(LONGEST))),
            stall_ms: AtomicU64::new(milliseconds(stall_warning.min(LONGEST))),
            told: AtomicU64::new(0),
            told_below: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            ended_by: AtomicUsize::new(NONE),
            status: AtomicI32::new(0),
            reason: Mutex::new(String::new()),
            departed: Mutex::new(Vec::new()),
            #[cfg(feature = "nccl")]
            abortable: AtomicU8::new(0),
        }
    }

    /// Enters an operation of `transport`, on `bucket` if it has one.
    pub fn enter(this: &Arc<Self>, transport: &str, operation: &str, bucket: Option<usize>) -> Waiting {
        let operation = operation::number_of(NAME.get().unwrap_or(operation));
        this.what.store(operation::encode(transport, operation, bucket), Ordering::Relaxed);
        if operation::is_collective(operation) {
            this.entered.fetch_add(1, Ordering::Relaxed);
        }
        this.since.store(milliseconds(this.clock.now()) + 1, Ordering::Release);
        Waiting(Arc::clone(this))
    }

    /// What the rank is doing now.
    pub fn now(&self) -> Seen {
        let since = self.since.load(Ordering::Acquire);
        let elapsed = || self.clock.now().saturating_sub(Duration::from_millis(since - 1));
        Seen {
            entered: self.entered.load(Ordering::Relaxed),
            what: self.what.load(Ordering::Relaxed),
            waited: (since > 0).then(elapsed),
        }
    }

    /// The deadline of an operation.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms.load(Ordering::Relaxed))
    }

    /// Sets the deadline of an operation.
    pub fn set_deadline(&self, deadline: Duration) {
        self.deadline_ms.store(milliseconds(deadline.min(LONGEST)), Ordering::Relaxed);
    }

    /// Time after which a wait is told of.
    pub fn stall_warning(&self) -> Duration {
        Duration::from_millis(self.stall_ms.load(Ordering::Relaxed))
    }

    /// Sets the time after which a wait is told of.
    pub fn set_stall_warning(&self, after: Duration) {
        self.stall_ms.store(milliseconds(after.min(LONGEST)), Ordering::Relaxed);
    }

    /// Records that some rank has told of a wait in the collective number `entered`; returns whether
    /// it is news.
    pub fn note_stall(&self, entered: u64) -> bool {
        self.told.fetch_max(entered, Ordering::Relaxed) < entered
    }

    /// Records that a rank below this one tells of that wait.
    pub fn leave_stall(&self, entered: u64) {
        self.told_below.fetch_max(entered, Ordering::Relaxed);
    }

    /// Whether a rank below this one tells of the wait in the collective number `entered`.
    pub fn is_told_below(&self, entered: u64) -> bool {
        self.told_below.load(Ordering::Relaxed) >= entered
    }

    /// Records why this rank is about to leave.
    pub fn set_reason(&self, reason: &str) {
        reason.clone_into(&mut lock(&self.reason));
    }

    /// Records that this rank exits with `status` and enters no further operation.
    pub fn leave(&self, status: i32) {
        self.status.store(status, Ordering::Relaxed);
        self.leaving.store(true, Ordering::Release);
    }

    /// Records that the guard of rank `rank`, another one, is about to print why the job ends.
    pub fn note_end(&self, rank: usize) {
        self.ended_by.fetch_min(rank, Ordering::Relaxed);
    }

    /// The lowest other rank whose guard is about to print why the job ends.
    pub fn ended_by(&self) -> Option<usize> {
        Some(self.ended_by.load(Ordering::Relaxed)).filter(|&rank| rank != NONE)
    }

    /// Exit code and reason of this rank, once it leaves.
    pub fn leaving(&self) -> Option<(i32, String)> {
        let left = || (self.status.load(Ordering::Relaxed), lock(&self.reason).clone());
        self.leaving.load(Ordering::Acquire).then(left)
    }

    /// Records that another rank leaves.
    pub fn note_departure(&self, departure: Departure) {
        let mut departed = lock(&self.departed);
        if departed.iter().all(|known| known.rank != departure.rank) {
            departed.push(departure);
        }
    }

    /// Ranks that have announced that they leave.
    pub fn departed(&self) -> Vec<Departure> {
        lock(&self.departed).clone()
    }

    /// A rank that has left, if one announces it within `patience`; one with an error is
    /// preferred.
    #[cfg(any(feature = "gloo", feature = "nccl"))]
    pub fn departed_peer(&self, patience: Duration) -> Option<Departure> {
        let began = std::time::Instant::now();
        loop {
            let first = self.departed().into_iter().max_by_key(|departure| departure.status != 0);
            if first.is_some() || began.elapsed() > patience {
                return first;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The longest time that clocks count: longer ones overflow their types.
pub(crate) const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
