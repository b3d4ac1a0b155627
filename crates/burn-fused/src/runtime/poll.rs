//! The poll callback: long backward passes call it, so that a program can send messages meanwhile.

use std::sync::{PoisonError, RwLock};

static POLL: RwLock<fn()> = RwLock::new(nothing);

fn nothing() {}

/// Makes long operators call `poll` again and again during their backward pass, on the thread that runs the
/// pass. `poll` replaces the previous callback; the default callback does nothing.
///
/// The backward pass of one convolution takes milliseconds, and a message library such as MPI makes progress
/// only inside its own calls. If `poll` makes such a call, communication proceeds during the backward pass.
/// Most operators call `poll` every few tens of microseconds, and attention every 200 µs. `poll` should
/// therefore return at once if there is nothing to do. `poll` may use operators of this crate.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// static POLLS: AtomicUsize = AtomicUsize::new(0);
/// burn_fused::set_poll(|| _ = POLLS.fetch_add(1, Ordering::Relaxed));
/// ```
pub fn set_poll(poll: fn()) {
    *POLL.write().unwrap_or_else(PoisonError::into_inner) = poll;
}

/// Returns the current callback.
pub(crate) fn current() -> fn() {
    *POLL.read().unwrap_or_else(PoisonError::into_inner)
}
