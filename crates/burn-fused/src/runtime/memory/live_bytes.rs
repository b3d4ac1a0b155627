//! Bytes of live tensors, counted by [`CountingAllocator`](super::counting_allocator::CountingAllocator).
//!
//! Counting is always on, so it must be cheap: only allocations of a page or more count, and a step makes
//! only a few dozen of them. Only memory that is aligned to two bytes or more counts: tensors contain floats
//! of at least 16 bits, so their memory is aligned in this way. Samples, labels, files and text are bytes and
//! are not counted.
//!
//! One thread may free a buffer that another allocated, so all threads share the counters. No other memory
//! access depends on the counters, so `Relaxed` is enough.

use std::alloc::Layout;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Smallest allocation that is counted, in bytes: one page.
const LARGE: usize = 4096;

/// Live bytes now.
static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Maximum of the live bytes since [`begin_step`].
static MOST: AtomicUsize = AtomicUsize::new(0);
/// Maximum of the live bytes in all steps so far.
static MOST_OF_STEPS: AtomicUsize = AtomicUsize::new(0);

fn counts(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() >= align_of::<u16>()
}

/// Counts memory of `layout` that is allocated.
pub(super) fn allocated(layout: Layout) {
    if counts(layout) {
        let now = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        // This cheap read avoids most writes: most allocations do not set a new maximum.
        if now > MOST.load(Relaxed) {
            MOST.fetch_max(now, Relaxed);
        }
    }
}

/// Counts memory of `layout` that is freed.
pub(super) fn freed(layout: Layout) {
    if counts(layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
    }
}

/// Undoes [`freed`] for an idle buffer of the pool before the pool frees its memory. The buffer was counted
/// as freed when it returned to the pool, and the allocator counts its memory as freed once more.
pub(super) fn kept(layout: Layout) {
    if counts(layout) {
        LIVE.fetch_add(layout.size(), Relaxed);
    }
}

/// Marks the beginning of a training step.
pub fn begin_step() {
    MOST.store(LIVE.load(Relaxed), Relaxed);
}

/// Returns the bytes of live tensors now.
pub fn live() -> usize {
    LIVE.load(Relaxed)
}

/// Marks the end of the training step that [`begin_step`] began. `others` are live bytes that do not belong
/// to the step, such as indices of samples and buffers that an evaluation has kept. This number is subtracted
/// from the step's maximum.
pub fn end_step(others: usize) {
    MOST_OF_STEPS.fetch_max(MOST.load(Relaxed).saturating_sub(others), Relaxed);
}

/// Returns the largest number of live bytes in any training step of this process: weights, gradients,
/// moments, activations and message buffers. Returns 0 before the first step, and if the global allocator is
/// not a `CountingAllocator`. Memory that a compute backend such as libtorch allocates by other means is not
/// counted.
pub fn peak_of_steps() -> usize {
    MOST_OF_STEPS.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_maximum_since_the_step_began() {
        let bytes = |bytes: usize| Layout::array::<u16>(bytes / 2).unwrap();
        allocated(bytes(9000));
        freed(bytes(5000));
        begin_step();
        let before = live();
        assert_eq!(MOST.load(Relaxed), before, "a step begins with the live bytes");
        allocated(bytes(6000));
        freed(bytes(6000));
        allocated(bytes(5000));
        assert_eq!((live() - before, MOST.load(Relaxed) - before), (5000, 6000));
        freed(bytes(9000));
    }

    #[test]
    fn only_aligned_allocations_of_a_page_or_more_count() {
        let of_floats = |n| Layout::array::<f32>(n).unwrap();
        assert!(counts(of_floats(1024)) && !counts(of_floats(1023)));
        assert!(counts(Layout::array::<u16>(2048).unwrap()), "16-bit tensors");
        assert!(!counts(Layout::array::<u8>(1 << 20).unwrap()));
    }
}
