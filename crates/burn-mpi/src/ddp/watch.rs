//! Events of gradient averaging, for a profiler.

use super::buckets::Buckets;
use super::gradient_sync::GradientSync;
use crate::CommError;

/// An event of gradient averaging on this rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncEvent {
    /// Backward of a loss has ended. Its gradients that are not in buckets yet are collected.
    BackwardEnd,
    /// All gradients are in buckets.
    CollectEnd,
    /// Copying gradients into buckets, or out of messages, begins.
    CopyBegin,
    /// It ends.
    CopyEnd,
    /// This thread begins to start or to wait for the all-reduce of the bucket with this
    /// index in [`SyncReport::buckets`](crate::SyncReport::buckets).
    BucketBegin(usize),
    /// It continues with other work.
    BucketEnd(usize),
    /// Buckets in flight after they were polled during backward. They complete in the order
    /// in which they started, or nearly so.
    InFlight(usize),
}

/// Receives events, on the thread that trains.
pub type SyncWatch = fn(SyncEvent);

impl GradientSync {
    /// Calls `watch` at each [`SyncEvent`] from now on; `None`, the default, calls nothing.
    /// Between steps only. Ranks may differ in it.
    ///
    /// # Errors
    /// [`CommError::Interrupted`] after a backward that panicked.
    pub fn watch(&mut self, watch: Option<SyncWatch>) -> Result<(), CommError> {
        self.buckets()?.watch = watch;
        Ok(())
    }
}

impl Buckets {
    /// Calls the watch, if there is one.
    #[inline]
    pub fn tell(&self, event: SyncEvent) {
        if let Some(watch) = self.watch {
            watch(event);
        }
    }
}
