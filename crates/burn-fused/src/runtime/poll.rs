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
/// With several threads, only the thread that runs the pass calls `poll`, between its shares of the work.
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

thread_local! {
    /// Its address identifies the thread.
    static HERE: u8 = const { 0 };
}

fn here() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// The callback, for the thread that runs a backward pass. Threads that compute parts of the pass may hold a
/// copy of it; there, a call does nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Poll {
    callback: fn(),
    thread: usize,
}

impl Poll {
    /// The current callback, for this thread.
    pub fn current() -> Self {
        Self::new(*POLL.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A callback for this thread.
    pub fn new(callback: fn()) -> Self {
        Self { callback, thread: here() }
    }

    /// A callback that does nothing, for forward passes.
    pub fn nothing() -> Self {
        Self { callback: nothing, thread: 0 }
    }

    /// Calls the callback if this is the thread of the pass.
    pub fn call(self) {
        if self.thread == here() {
            (self.callback)();
        }
    }
}

#[cfg(test)]
pub(crate) mod counting {
    //! A callback that counts its calls.

    use std::cell::Cell;

    use super::Poll;

    thread_local! {
        static CALLS: Cell<usize> = const { Cell::new(0) };
    }

    /// Returns the result of `run`, and how often `run` called the callback on this thread.
    pub fn counted<R>(run: impl FnOnce(Poll) -> R) -> (R, usize) {
        CALLS.set(0);
        let result = run(Poll::new(|| CALLS.set(CALLS.get() + 1)));
        (result, CALLS.get())
    }
}
