//! The threads of operators: those of the current rayon pool, or of a pool for callers outside of one.
//!
//! An operator gives the same bits on any number of threads. It cuts its work into items by sizes alone, each
//! value is computed within one item, and sums of items are added in the order of the items. The number of
//! threads only decides which thread computes an item.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rayon::{Scope, ThreadPool, ThreadPoolBuilder};

/// Minimum time of a thread's share in nanoseconds. To hand over work to a thread that is [awake](stay_awake)
/// takes about 1 µs, and to wake a thread that sleeps takes about 20 µs. Measured on two cores.
///
/// Unit tests share almost all work, so that they test how it is divided.
const SHARE: usize = if cfg!(test) { 1 } else { 5_000 };

/// The time in which a thread stays awake after its work. The work of a training step that remains on one
/// thread between two operators takes less.
const AWAKE: Duration = Duration::from_micros(200);

thread_local! {
    /// When this thread may sleep again, if it stays awake for further work.
    static AWAKE_UNTIL: Cell<Option<Instant>> = const { Cell::new(None) };
    /// See [`shared_time`].
    static SHARED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// Whether this thread computes items that several threads share.
    static IN_ITEM: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread called [`use_threads`]. It has a program to run and never stays awake for work.
    static IS_MAIN: Cell<bool> = const { Cell::new(false) };
}

/// Maximum number of threads of [`use_threads`].
const MOST: usize = 1024;

/// Why [`use_threads`] started no threads.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThreadsError {
    /// The number of threads is above 1024.
    #[error("{threads} threads: at most {MOST} are supported")]
    TooMany {
        /// The number that was asked for.
        threads: usize,
    },
    /// This thread belongs to a rayon pool.
    #[error("this thread has its threads already: it belongs to a rayon pool, as after use_threads")]
    InPool,
    /// The system starts no more threads.
    #[error("cannot start {threads} threads: {reason}")]
    System {
        /// The number that was asked for.
        threads: usize,
        /// The reason that the system gives.
        reason: String,
    },
}

/// Makes operators that this thread calls run on `threads` threads: this one and `threads - 1` new ones. 0
/// stands for one thread for each core, or for the value of the variable `RAYON_NUM_THREADS`. Returns the
/// number of threads.
///
/// Call it once, at the start of a program: the new threads live as long as the process. The threads are a
/// rayon pool, to which this thread belongs from then on, and which Burn's operators also use. A job that
/// this thread passes to `rayon::spawn` runs on the new threads, or when this thread waits for the pool.
/// Other threads of the program are not affected.
///
/// Without this call, a thread that belongs to no rayon pool computes together with threads of the library's
/// own, as many in all as rayon's global pool has. A thread of a pool computes with the threads of its pool.
///
/// Operators compute the same bits on any number of threads. They divide their work by sizes alone, and add
/// sums in a fixed order.
///
/// ```
/// assert_eq!(burn_fused::use_threads(2)?, 2);
/// # Ok::<(), burn_fused::ThreadsError>(())
/// ```
///
/// # Errors
/// If `threads` is above 1024, if this thread belongs to a rayon pool already, or if the system starts no more
/// threads. An error changes nothing.
pub fn use_threads(threads: usize) -> Result<usize, ThreadsError> {
    if threads > MOST {
        return Err(ThreadsError::TooMany { threads });
    }
    if rayon::current_thread_index().is_some() {
        return Err(ThreadsError::InPool);
    }
    // If rayon cannot start the threads of a pool, this thread belongs to the broken pool nevertheless.
    let error = |reason: String| ThreadsError::System { threads, reason };
    try_to_start(threads).map_err(|reason| error(reason.to_string()))?;
    let pool = ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
    let pool = pool.build().map_err(|reason| error(reason.to_string()))?;
    let threads = pool.current_num_threads();
    // The pool lives as long as the process: this thread belongs to it.
    std::mem::forget(pool);
    IS_MAIN.set(true);
    Ok(threads)
}

/// Starts `threads - 1` threads, all at the same time, and ends them.
fn try_to_start(threads: usize) -> std::io::Result<()> {
    let gate = Mutex::new(());
    std::thread::scope(|scope| {
        let _closed = gate.lock();
        (1..threads).try_for_each(|_| {
            let wait = || drop(gate.lock());
            std::thread::Builder::new().spawn_scoped(scope, wait).map(drop)
        })
    })
}

/// Returns the number of threads that share work of `time` nanoseconds on one thread. An item of a larger
/// work is not shared again.
pub(crate) fn threads_for(time: usize) -> usize {
    match time / SHARE {
        0 | 1 => 1,
        _ if IN_ITEM.get() => 1,
        shares => shares.min(rayon::current_num_threads()),
    }
}

/// Calls `run` for each item, on several threads if `time` is long enough: the time that all items take on
/// one thread, in nanoseconds. On one thread, the items run in order.
///
/// Callers estimate the time from sizes. For example, `values / 8` stands for eight values in a nanosecond.
///
/// Items must be cut by sizes alone, not by the number of threads, unless their values do not depend on the
/// cut.
pub(crate) fn each<T: Send>(time: usize, items: impl Iterator<Item = T> + Send, run: impl Fn(T) + Sync) {
    let threads = threads_for(time).min(items.size_hint().1.unwrap_or(usize::MAX));
    if threads <= 1 {
        return items.for_each(run);
    }
    let (shares, began) = (Shares::new(items.collect(), threads), Instant::now());
    let (caller, finished) = (rayon::current_thread_index(), AtomicUsize::new(0));
    let work = || {
        let _inside = Inside::new();
        // A caller outside of a pool is the first thread.
        let thread = rayon::current_thread_index().map_or(0, |index| index + usize::from(caller.is_none()));
        while let Some(item) = shares.next(thread) {
            run(item);
        }
    };
    let help = || {
        work();
        finished.fetch_add(1, Ordering::Release);
        if rayon::current_thread_index() != caller {
            stay_awake();
        }
    };
    if caller.is_some() {
        rayon::in_place_scope(|scope| {
            spawn(scope, threads - 1, &help);
            work();
        });
    } else if let Some(pool) = outside() {
        pool.in_place_scope(|scope| {
            spawn(scope, threads - 1, &help);
            work();
            // A thread outside of a pool would sleep at the end of the scope, and wake late.
            let until = Instant::now() + AWAKE;
            while finished.load(Ordering::Acquire) < threads - 1 && Instant::now() < until {
                std::thread::yield_now();
            }
        });
    } else {
        work();
    }
    SHARED.set(SHARED.get() + began.elapsed());
}

/// Items that several threads share. Each thread begins with its own share, of consecutive items, so that it
/// often computes with what it wrote in an earlier operator, which is still in the caches of its core. Then
/// it takes the last items of the other shares.
struct Shares<T>(Vec<Mutex<std::vec::IntoIter<T>>>);

impl<T> Shares<T> {
    fn new(mut items: Vec<T>, threads: usize) -> Self {
        let (count, mut shares) = (items.len(), Vec::with_capacity(threads));
        for thread in (0..threads).rev() {
            shares.push(Mutex::new(items.split_off(thread * count / threads).into_iter()));
        }
        shares.reverse();
        Self(shares)
    }

    /// Returns the next item of the thread with this index in its pool.
    fn next(&self, thread: usize) -> Option<T> {
        let own = thread % self.0.len();
        let lock = |share: usize| self.0[share].lock().unwrap_or_else(PoisonError::into_inner);
        let first = lock(own).next();
        let others = (own + 1..self.0.len()).chain(0..own);
        first.or_else(|| others.into_iter().find_map(|share| lock(share).next_back()))
    }
}

/// Starts `count` jobs that call `help`.
fn spawn<'s>(scope: &Scope<'s>, count: usize, help: &'s (impl Fn() + Sync)) {
    (0..count).for_each(|_| scope.spawn(move |_| help()));
}

/// Returns the pool for callers outside of rayon's pools. It has one thread less than rayon's global pool,
/// because the caller computes as well. Returns `None` if its threads cannot be started.
fn outside() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    // Only work for two or more threads comes here, so the global pool has as many.
    let start = || ThreadPoolBuilder::new().num_threads(rayon::current_num_threads() - 1).build().ok();
    POOL.get_or_init(start).as_ref()
}

/// Returns the time that this thread has spent in work that it shared with other threads. Everything else
/// runs on one thread, so this time shows how much more threads can gain.
///
/// ```
/// let (before, began) = (burn_fused::shared_time(), std::time::Instant::now());
/// // A training step.
/// let shared = burn_fused::shared_time() - before;
/// assert!(shared <= began.elapsed());
/// ```
pub fn shared_time() -> Duration {
    SHARED.get()
}

/// Marks this thread as computing items until it is dropped.
struct Inside {
    before: bool,
}

impl Inside {
    fn new() -> Self {
        Self { before: IN_ITEM.replace(true) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IN_ITEM.set(self.before);
    }
}

/// Makes this thread of the pool look for work for some time, instead of sleeping as soon as there is none.
fn stay_awake() {
    if IS_MAIN.get() {
        return;
    }
    let until = || Some(Instant::now() + AWAKE);
    if AWAKE_UNTIL.get().is_some() {
        // The loop below has run this work, and goes on.
        AWAKE_UNTIL.set(until());
        return;
    }
    let index = rayon::current_thread_index();
    rayon::spawn(move || {
        // If another thread has taken this job, it has something else to do.
        if rayon::current_thread_index() != index {
            return;
        }
        AWAKE_UNTIL.set(until());
        while AWAKE_UNTIL.get().is_some_and(|until| Instant::now() < until) {
            if rayon::yield_now() != Some(rayon::Yield::Executed) {
                std::thread::yield_now();
            }
        }
        AWAKE_UNTIL.set(None);
    });
}

/// Returns the share of the threads' time in which they work, if they share `items` equal items.
pub(crate) fn evenness(items: usize, threads: usize) -> f64 {
    items as f64 / items.next_multiple_of(threads).max(1) as f64
}

/// Splits `values` into `count` pieces of equal length. If there are no values, the pieces are empty.
pub(crate) fn pieces<T>(values: &mut [T], count: usize) -> impl Iterator<Item = &mut [T]> {
    let (size, mut rest) = (values.len().checked_div(count).unwrap_or_default(), values);
    (0..count).map(move |_| rest.split_off_mut(..size).expect("as long as its pieces"))
}

/// Splits `values` into chunks of `size` values. An empty slice gives empty chunks without end.
pub(crate) fn chunks<T>(mut values: &mut [T], size: usize) -> impl Iterator<Item = &mut [T]> {
    std::iter::from_fn(move || {
        let size = size.min(values.len());
        values.split_off_mut(..size)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    /// A time that several threads share.
    const LONG: usize = 1_000_000_000;

    fn on<T: Send>(threads: usize, body: impl FnOnce() -> T + Send) -> T {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads").install(body)
    }

    #[test]
    fn every_item_runs_once() {
        for threads in [1, 2, 3, 5] {
            for count in [0, 1, 2, 7, 1000] {
                let mut values = vec![0; count];
                on(threads, || each(LONG, values.iter_mut(), |value| *value += 1));
                assert!(values.iter().all(|&value| value == 1), "{count} items on {threads} threads");
            }
        }
    }

    #[test]
    fn a_thread_begins_with_its_own_items_and_then_helps_from_the_end() {
        for (threads, own, expected) in [
            (2, 0, [0, 1, 2, 6, 5, 4, 3]),
            (2, 1, [3, 4, 5, 6, 2, 1, 0]),
            (3, 1, [2, 3, 6, 5, 4, 1, 0]),
            // A thread that has no share of its own begins with that of another.
            (2, 3, [3, 4, 5, 6, 2, 1, 0]),
        ] {
            let shares = Shares::new((0..7).collect(), threads);
            let found: Vec<i32> = std::iter::from_fn(|| shares.next(own)).collect();
            assert_eq!(found, expected, "{threads} threads, thread {own}");
        }
    }

    #[test]
    fn an_item_is_not_shared_again() {
        on(2, || {
            let (most, before) = (AtomicUsize::new(0), threads_for(LONG));
            each(LONG, 0..4, |_| _ = most.fetch_max(threads_for(LONG), Relaxed));
            assert_eq!((before, most.into_inner(), threads_for(LONG)), (2, 1, 2));
        });
    }

    #[test]
    fn a_panic_of_an_item_reaches_the_caller_and_the_threads_go_on() {
        on(3, || {
            for bad in [0, 5, 9] {
                let run = || each(LONG, 0..10, |item| assert_ne!(item, bad, "item {bad}"));
                let panic = std::panic::catch_unwind(run).expect_err("it panics");
                let text = panic.downcast_ref::<String>().expect("a message");
                assert!(text.contains(&format!("item {bad}")), "{text}");
                assert_eq!(threads_for(LONG), 3);
            }
        });
    }

    #[test]
    fn an_error_leaves_the_thread_as_it_was() {
        let error = use_threads(MOST + 1).expect_err("too many").to_string();
        assert_eq!(error, "1025 threads: at most 1024 are supported");
        assert_eq!(rayon::current_thread_index(), None);
    }

    #[test]
    fn a_thread_has_one_pool() {
        std::thread::spawn(|| {
            assert_eq!(use_threads(2).expect("threads"), 2);
            assert_eq!(threads_for(LONG), 2);
            assert!(matches!(use_threads(3), Err(ThreadsError::InPool)));
            let done = AtomicUsize::new(0);
            each(LONG, 0..100, |_| _ = done.fetch_add(1, Relaxed));
            assert_eq!(done.into_inner(), 100);
            assert!(shared_time() > Duration::ZERO);
        })
        .join()
        .expect("no panic");
    }
}
