//! Bytes of live tensors, counted by [`CountingAllocator`](super::counting_allocator::CountingAllocator).
//!
//! Counting is always on, so it has to be cheap: only large allocations count, of
//! which a step makes a few dozen. Tensors hold floats, so their memory is aligned
//! to four bytes or more; samples, labels, files and text are bytes, and do not
//! count.
//!
//! A buffer that one thread makes may be freed by another, so the counters are
//! shared. They order nothing between threads, hence `Relaxed`.

use std::alloc::Layout;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Smallest allocation that is counted, in bytes: a page.
const LARGE: usize = 4096;

/// Live bytes now, and the most since [`begin`].
struct Counter {
    live: AtomicUsize,
    most: AtomicUsize,
}

impl Counter {
    const fn new() -> Self {
        Self { live: AtomicUsize::new(0), most: AtomicUsize::new(0) }
    }

    fn add(&self, bytes: usize) {
        let now = self.live.fetch_add(bytes, Relaxed) + bytes;
        // A plain read, as most allocations are no new maximum.
        if now > self.most.load(Relaxed) {
            self.most.fetch_max(now, Relaxed);
        }
    }

    fn subtract(&self, bytes: usize) {
        self.live.fetch_sub(bytes, Relaxed);
    }

    fn begin(&self) {
        self.most.store(self.live.load(Relaxed), Relaxed);
    }
}

static COUNTER: Counter = Counter::new();
static MOST_OF_STEPS: AtomicUsize = AtomicUsize::new(0);

fn counts(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() >= align_of::<f32>()
}

/// Counts memory of `layout` that is allocated.
pub(super) fn given(layout: Layout) {
    if counts(layout) {
        COUNTER.add(layout.size());
    }
}

/// Counts memory of `layout` that is freed.
pub(super) fn taken(layout: Layout) {
    if counts(layout) {
        COUNTER.subtract(layout.size());
    }
}

/// A training step begins.
pub fn begin_step() {
    COUNTER.begin();
}

/// The training step that [`begin_step`] began has ended.
pub fn end_step() {
    MOST_OF_STEPS.fetch_max(COUNTER.most.load(Relaxed), Relaxed);
}

/// Most bytes that were live at once in any training step of this process: weights,
/// gradients, moments, activations and message buffers. 0 before the first step, and
/// where the compute backend has an allocator of its own, such as libtorch.
pub fn peak_of_steps() -> usize {
    MOST_OF_STEPS.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_most_at_once_since_the_beginning() {
        let counter = Counter::new();
        counter.add(9000);
        counter.subtract(5000);
        counter.begin();
        assert_eq!(counter.most.load(Relaxed), 4000, "what came before is forgotten, what lives is not");
        counter.add(6000);
        counter.subtract(6000);
        counter.add(5000);
        assert_eq!((counter.live.load(Relaxed), counter.most.load(Relaxed)), (9000, 10_000));
    }

    #[test]
    fn floats_of_a_page_and_more_count_and_bytes_do_not() {
        let of_floats = |n| Layout::array::<f32>(n).unwrap();
        assert!(counts(of_floats(1024)) && !counts(of_floats(1023)));
        assert!(!counts(Layout::array::<u8>(1 << 20).unwrap()));
    }
}
