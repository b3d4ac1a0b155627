//! Abort of a transport's operations before the guard ends the process.
//!
//! The guard may not call the transport, which another thread is using. So the thread that waits
//! polls a request of the guard, aborts its operations itself, and says so.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::activity::Activity;

/// No thread waits in a transport that can abort.
const IDLE: u8 = 0;
/// A thread waits, and polls for the request.
const WAITING: u8 = 1;
const REQUESTED: u8 = 2;
const ABORTED: u8 = 3;

/// A wait that the guard can have aborted, until dropped.
pub(crate) struct Abortable(Arc<Activity>);

impl Abortable {
    /// Begins the wait. There is one at a time: transports are used by one thread.
    pub fn enter(activity: &Arc<Activity>) -> Self {
        let _ = activity.abortable.compare_exchange(IDLE, WAITING, Ordering::AcqRel, Ordering::Relaxed);
        Self(Arc::clone(activity))
    }

    /// Whether the guard is about to end this process.
    pub fn is_requested(&self) -> bool {
        self.0.abortable.load(Ordering::Acquire) == REQUESTED
    }

    /// Tells the guard that the operations are aborted, and waits for the end of the process: an
    /// error of this rank would be a second line for one cause.
    pub fn aborted(activity: &Activity) -> ! {
        activity.abortable.store(ABORTED, Ordering::Release);
        loop {
            std::thread::park();
        }
    }
}

impl Drop for Abortable {
    fn drop(&mut self) {
        let _ = self.0.abortable.compare_exchange(WAITING, IDLE, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Has the waiting thread abort its operations; returns after `patience` at the latest.
pub(super) fn request(activity: &Activity, patience: Duration) {
    if activity.abortable.compare_exchange(WAITING, REQUESTED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    let began = Instant::now();
    while activity.abortable.load(Ordering::Acquire) != ABORTED && began.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(2));
    }
}
