//! Current operation of this rank, written by the rank and read by its guard.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::operation;
use crate::CommError;

/// Default deadline of a collective.
pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);
/// Default time after which a wait is told of.
const DEFAULT_STALL: Duration = Duration::from_secs(60);

struct Activity {
    /// Collectives entered so far.
    entered: AtomicU64,
    /// Start of the current operation, in ms since `epoch` and at least 1; 0 if there is none.
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
    epoch: OnceLock<Instant>,
    leaving: AtomicBool,
    /// The lowest other rank whose guard ends the job; [`NONE`] if none does.
    ended_by: AtomicUsize,
    status: AtomicI32,
    /// Why this rank leaves, if known.
    reason: Mutex<String>,
    /// Ranks that have announced that they leave.
    departed: Mutex<Vec<Departure>>,
}

const NONE: usize = usize::MAX;

static ACTIVITY: Activity = Activity {
    entered: AtomicU64::new(0),
    since: AtomicU64::new(0),
    what: AtomicU64::new(0),
    deadline_ms: AtomicU64::new(DEFAULT_DEADLINE.as_millis() as u64),
    stall_ms: AtomicU64::new(DEFAULT_STALL.as_millis() as u64),
    told: AtomicU64::new(0),
    told_below: AtomicU64::new(0),
    epoch: OnceLock::new(),
    leaving: AtomicBool::new(false),
    ended_by: AtomicUsize::new(NONE),
    status: AtomicI32::new(0),
    reason: Mutex::new(String::new()),
    departed: Mutex::new(Vec::new()),
};

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
    /// When it announced that.
    pub since: Instant,
}

impl Departure {
    pub fn error(&self) -> CommError {
        let Self { rank, status, .. } = *self;
        CommError::Left { rank, host: self.host.clone(), status, reason: self.reason.clone() }
    }
}

/// A wait in an operation, until dropped ([`World::watch`](crate::World::watch)).
#[must_use = "the wait ends when this is dropped"]
pub struct Waiting(());

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

/// Enters an operation of `transport`, on `bucket` if it has one.
pub(crate) fn enter(transport: &str, operation: &str, bucket: Option<usize>) -> Waiting {
    let operation = NAME.get().unwrap_or(operation);
    let epoch = ACTIVITY.epoch.get_or_init(Instant::now);
    let operation = operation::number_of(operation);
    ACTIVITY.what.store(operation::encode(transport, operation, bucket), Ordering::Relaxed);
    if operation::is_collective(operation) {
        ACTIVITY.entered.fetch_add(1, Ordering::Relaxed);
    }
    ACTIVITY.since.store(epoch.elapsed().as_millis() as u64 + 1, Ordering::Release);
    Waiting(())
}

impl Drop for Waiting {
    fn drop(&mut self) {
        ACTIVITY.since.store(0, Ordering::Release);
    }
}

/// A guard's view of its rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// Collectives entered so far.
    pub entered: u64,
    /// The current or last operation of the rank.
    pub what: u64,
    /// Time since it entered the operation; `None` if it is in none.
    pub waited: Option<Duration>,
}

/// The current activity.
pub(crate) fn now() -> Seen {
    let since = ACTIVITY.since.load(Ordering::Acquire);
    let elapsed = ACTIVITY.epoch.get().map_or(Duration::ZERO, Instant::elapsed);
    Seen {
        entered: ACTIVITY.entered.load(Ordering::Relaxed),
        what: ACTIVITY.what.load(Ordering::Relaxed),
        waited: (since > 0).then(|| elapsed.saturating_sub(Duration::from_millis(since))),
    }
}

/// The deadline of an operation.
pub(crate) fn deadline() -> Duration {
    Duration::from_millis(ACTIVITY.deadline_ms.load(Ordering::Relaxed))
}

/// Sets the deadline of an operation.
pub(crate) fn set_deadline(deadline: Duration) {
    let ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
    ACTIVITY.deadline_ms.store(ms, Ordering::Relaxed);
}

/// Time after which a wait is told of.
pub(crate) fn stall_warning() -> Duration {
    Duration::from_millis(ACTIVITY.stall_ms.load(Ordering::Relaxed))
}

/// Sets the time after which a wait is told of.
pub(crate) fn set_stall_warning(after: Duration) {
    let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
    ACTIVITY.stall_ms.store(ms, Ordering::Relaxed);
}

/// Records that some rank has told of a wait in the collective number `entered`; returns whether
/// it is news.
pub(crate) fn note_stall(entered: u64) -> bool {
    ACTIVITY.told.fetch_max(entered, Ordering::Relaxed) < entered
}

/// Records that a rank below this one tells of that wait.
pub(crate) fn leave_stall(entered: u64) {
    ACTIVITY.told_below.fetch_max(entered, Ordering::Relaxed);
}

/// Whether a rank below this one tells of the wait in the collective number `entered`.
pub(crate) fn is_told_below(entered: u64) -> bool {
    ACTIVITY.told_below.load(Ordering::Relaxed) >= entered
}

/// Records why this rank is about to leave.
pub(crate) fn set_reason(reason: &str) {
    reason.clone_into(&mut ACTIVITY.reason.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Records that this rank exits with `status` and enters no further operation.
pub(crate) fn leave(status: i32) {
    ACTIVITY.status.store(status, Ordering::Relaxed);
    ACTIVITY.leaving.store(true, Ordering::Release);
}

/// Records that the guard of rank `rank`, another one, is about to print why the job ends.
pub(crate) fn note_end(rank: usize) {
    ACTIVITY.ended_by.fetch_min(rank, Ordering::Relaxed);
}

/// The lowest other rank whose guard is about to print why the job ends.
pub(crate) fn ended_by() -> Option<usize> {
    Some(ACTIVITY.ended_by.load(Ordering::Relaxed)).filter(|&rank| rank != NONE)
}

/// Exit code and reason of this rank, once it leaves.
pub(crate) fn leaving() -> Option<(i32, String)> {
    let reason = || ACTIVITY.reason.lock().unwrap_or_else(PoisonError::into_inner).clone();
    ACTIVITY.leaving.load(Ordering::Acquire).then(|| (ACTIVITY.status.load(Ordering::Relaxed), reason()))
}

/// Records that another rank leaves.
pub(crate) fn note_departure(departure: Departure) {
    let mut departed = ACTIVITY.departed.lock().unwrap_or_else(PoisonError::into_inner);
    if departed.iter().all(|known| known.rank != departure.rank) {
        departed.push(departure);
    }
}

/// Ranks that have announced that they leave.
pub(crate) fn departed() -> Vec<Departure> {
    ACTIVITY.departed.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A rank that has left, if one announces it within `patience`; one with an error is
/// preferred.
#[cfg(any(feature = "gloo", feature = "nccl"))]
pub(crate) fn departed_peer(patience: Duration) -> Option<Departure> {
    let began = Instant::now();
    loop {
        let first = departed().into_iter().max_by_key(|departure| departure.status != 0);
        if first.is_some() || began.elapsed() > patience {
            return first;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
