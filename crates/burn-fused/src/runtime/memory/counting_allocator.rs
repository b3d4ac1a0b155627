//! An allocator that counts allocations, to find buffers that a training step
//! allocates anew instead of reusing them.
//!
//! Each thread has its own counter: one counter shared by all threads would cost
//! every allocation a locked instruction.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use super::live_bytes::{allocated, freed, kept};

/// Counters of one thread.
struct Counts {
    allocations: Cell<u64>,
    bytes: Cell<u64>,
    freed: Cell<u64>,
    // Live bytes and their maximum may be negative: a thread frees what another allocated.
    peak: Cell<i64>,
}

impl Counts {
    fn live(&self) -> i64 {
        self.bytes.get().wrapping_sub(self.freed.get()) as i64
    }
}

thread_local! {
    // Constant and never dropped: counting must not allocate, and must work while a thread
    // starts and ends.
    static COUNTS: Counts = const {
        Counts { allocations: Cell::new(0), bytes: Cell::new(0), freed: Cell::new(0), peak: Cell::new(0) }
    };
}

/// Allocations and reallocations that this thread has made; 0 if the global
/// allocator is not a [`CountingAllocator`].
pub fn allocations() -> u64 {
    COUNTS.with(|counts| counts.allocations.get())
}

/// Bytes of the allocations and reallocations that this thread has made so far, and of the buffers that its operators
/// took from their pool; 0 where
/// the global allocator is not a [`CountingAllocator`].
pub fn allocated_bytes() -> u64 {
    COUNTS.with(|counts| counts.bytes.get())
}

/// Bytes that this thread has allocated and not freed, of any size; negative if it has freed
/// more, which other threads allocated. 0 where the global allocator is not a
/// [`CountingAllocator`].
pub fn live_bytes() -> i64 {
    COUNTS.with(Counts::live)
}

/// Maximum of [`live_bytes`] since the last [`set_peak`].
pub fn peak() -> i64 {
    COUNTS.with(|counts| counts.peak.get())
}

/// Sets the maximum, such as to [`live_bytes`] at the beginning of an operator; an outer
/// operator's is set again at its end.
pub fn set_peak(bytes: i64) {
    COUNTS.with(|counts| counts.peak.set(bytes));
}

// These two are compiled here, once, where access to the counters is inlined. Inlined into the
// allocator's methods, it would be compiled with the program that has the allocator, as a call
// each where that program is compiled in several codegen units.
#[inline(never)]
fn count(layout: Layout) {
    COUNTS.with(|counts| counts.allocations.set(counts.allocations.get() + 1));
    add(layout);
}

/// Counts the bytes of memory that is allocated, or taken from a pool.
#[inline]
pub(super) fn add(layout: Layout) {
    COUNTS.with(|counts| {
        counts.bytes.set(counts.bytes.get() + layout.size() as u64);
        let live = counts.live();
        if live > counts.peak.get() {
            counts.peak.set(live);
        }
    });
    allocated(layout);
}

#[inline(never)]
pub(super) fn uncount(layout: Layout) {
    COUNTS.with(|counts| counts.freed.set(counts.freed.get() + layout.size() as u64));
    freed(layout);
}

/// Takes [`uncount`] back, of memory that is about to be freed.
pub(super) fn recount(layout: Layout) {
    COUNTS.with(|counts| counts.freed.set(counts.freed.get().wrapping_sub(layout.size() as u64)));
    kept(layout);
}

/// The allocator `A`, counting its allocations.
///
/// ```
/// use std::alloc::System;
///
/// use burn_fused::memory::counting_allocator::{CountingAllocator, allocations};
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator<System> = CountingAllocator(System);
///
/// let before = allocations();
/// let values = vec![1.0f32; 100];
/// assert_eq!(allocations() - before, 1);
/// # drop(values);
/// ```
#[derive(Debug)]
pub struct CountingAllocator<A>(pub A);

// A failed allocation is counted as well; it ends the program.
// SAFETY: each call is forwarded to `A` with its arguments, and the result is returned
// unchanged, so `A` keeps the contract of GlobalAlloc. Counting changes a few
// thread-local numbers and two atomic ones: it neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout);
        // SAFETY: the caller's obligations are those of `A`.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout);
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        uncount(layout);
        // SAFETY: GlobalAlloc's contract has the caller guarantee that `new_size` with the
        // alignment of `layout` is a valid layout.
        count(unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) });
        // SAFETY: as above; `pointer` came from `A`.
        unsafe { self.0.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        uncount(layout);
        // SAFETY: as above; `pointer` came from `A`.
        unsafe { self.0.dealloc(pointer, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::memory::live_bytes::{begin_step, end_step, peak_of_steps};

    #[test]
    fn allocations_are_counted_per_thread_and_live_bytes_per_process() {
        let allocator = CountingAllocator(std::alloc::System);
        let layout = Layout::from_size_align(64, 8).unwrap();
        let larger = Layout::from_size_align(128, 8).unwrap();
        let (before, bytes, live) = (allocations(), allocated_bytes(), live_bytes());
        set_peak(live);
        // SAFETY: each pointer is used with the layout that it has at that time.
        let last = unsafe {
            let first = allocator.alloc_zeroed(layout);
            first.write(7);
            let second = allocator.realloc(first, layout, larger.size());
            let last = second.read();
            allocator.dealloc(second, larger);
            allocator.dealloc(allocator.alloc(layout), layout);
            last
        };
        assert_eq!((last, allocations() - before, allocated_bytes() - bytes), (7, 3, 64 + 128 + 64));
        assert_eq!((live_bytes() - live, peak() - live), (0, 128), "the reallocation frees its old bytes");
        let floats = Layout::array::<f32>(50_000).unwrap();
        begin_step();
        // SAFETY: the memory was allocated with this layout.
        unsafe {
            let pointer = allocator.realloc(allocator.alloc(floats), floats, 2 * floats.size());
            end_step(1000);
            allocator.dealloc(pointer, Layout::array::<f32>(100_000).unwrap());
        }
        assert_eq!(peak_of_steps(), 399_000, "no other test of this module trains");
        assert_eq!(std::thread::spawn(allocations).join().unwrap(), 0);
    }
}
