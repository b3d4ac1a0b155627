//! SIMD levels that a test selects for its thread, while other tests run on other threads.

use std::cell::Cell;
use std::marker::PhantomData;

use super::Level;

thread_local! {
    static HELD: Cell<Option<Level>> = const { Cell::new(None) };
}

/// Returns the level that [`Level::hold`] selected on this thread.
pub(super) fn held() -> Option<Level> {
    HELD.get()
}

impl Level {
    /// Makes operators that this thread calls use `self` until the returned guard is dropped.
    ///
    /// # Panics
    /// If the machine does not support `self`.
    pub(crate) fn hold(self) -> Held {
        assert!(Self::available().any(|level| level == self), "this machine does not support {self}");
        Held { before: HELD.replace(Some(self)), _of_this_thread: PhantomData }
    }
}

/// Guard of [`Level::hold`]: dropping it restores the previous level on the thread that created it.
#[derive(Debug)]
#[must_use = "dropping the guard restores the previous level"]
pub(crate) struct Held {
    before: Option<Level>,
    /// Makes the guard `!Send`: the level is a thread-local setting.
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(self.before);
    }
}

#[test]
fn dropping_the_guard_restores_the_previous_level() {
    let before = Level::current();
    for level in Level::available() {
        let outer = level.hold();
        assert_eq!(Level::current(), level);
        let panicked = std::panic::catch_unwind(|| {
            let _inner = Level::Portable.hold();
            assert_eq!(Level::current(), Level::Portable);
            std::panic::resume_unwind(Box::new("a failing test"));
        });
        assert!(panicked.is_err());
        assert_eq!(Level::current(), level, "after a panic");
        let elsewhere = std::thread::spawn(Level::current).join().expect("the thread does not panic");
        assert_eq!(elsewhere, before, "another thread");
        drop(outer);
        assert_eq!(Level::current(), before);
    }
}
