//! An allocator that counts allocations, to find buffers that a training step allocates anew instead of
//! reusing them.
//!
//! Each thread has its own counters: a counter shared by all threads would cost every allocation a locked
//! instruction.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;

use super::live_bytes::{allocated, freed, kept};

/// Counters of one thread.
struct Counts {
    allocations: Cell<u64>,
    bytes: Cell<u64>,
    freed: Cell<u64>,
    // Signed, as live bytes may be negative: a thread may free what another thread allocated.
    peak: Cell<i64>,
}

impl Counts {
    fn live(&self) -> i64 {
        self.bytes.get().wrapping_sub(self.freed.get()) as i64
    }
}

thread_local! {
    // The counters have a constant initial value and are never dropped: counting must not allocate, and must
    // work while a thread starts and ends.
    static COUNTS: Counts = const {
        Counts { allocations: Cell::new(0), bytes: Cell::new(0), freed: Cell::new(0), peak: Cell::new(0) }
    };
}

/// Returns the number of allocations and reallocations that this thread has made. Returns 0 if the global
/// allocator is not a [`CountingAllocator`].
pub fn allocations() -> u64 {
    COUNTS.with(|counts| counts.allocations.get())
}

/// Returns the bytes of all allocations and reallocations that this thread has made so far, and of all tensor
/// buffers that this thread took from the pool. Returns 0 if the global allocator is not a
/// [`CountingAllocator`].
pub fn allocated_bytes() -> u64 {
    COUNTS.with(|counts| counts.bytes.get())
}

/// Returns the bytes that this thread has allocated and not freed, in allocations of any size. The number is
/// negative if the thread has freed memory that other threads allocated. Returns 0 if the global allocator is
/// not a [`CountingAllocator`].
pub fn live_bytes() -> i64 {
    COUNTS.with(Counts::live)
}

/// Returns the maximum of [`live_bytes`] since the last [`set_peak`], at least the number that was set then.
pub fn peak() -> i64 {
    COUNTS.with(|counts| counts.peak.get())
}

/// Sets the maximum that [`peak`] returns. To measure an operator, set the maximum to [`live_bytes`] when the
/// operator begins. To measure an operator that runs inside another operator, save [`peak`] before the inner
/// operator, and set the larger of the saved and the new peak after the inner operator.
pub fn set_peak(bytes: i64) {
    COUNTS.with(|counts| counts.peak.set(bytes));
}

// `count` and `uncount` are never inlined, so that they are compiled in this crate, where access to the
// counters is inlined. Inlined into the allocator's methods, they would be compiled in the program that
// declares the allocator. If the compiler splits that program into several codegen units, each access to a
// counter would be a call there.
#[inline(never)]
fn count(layout: Layout) {
    COUNTS.with(|counts| counts.allocations.set(counts.allocations.get() + 1));
    add(layout);
}

/// Counts the bytes of memory that is allocated, or of a tensor buffer that is taken from the pool.
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

/// Undoes [`uncount`] for an idle buffer of the pool before the pool frees its memory. The buffer was counted
/// as freed when it returned to the pool, and the allocator counts its memory as freed once more.
pub(super) fn recount(layout: Layout) {
    COUNTS.with(|counts| counts.freed.set(counts.freed.get().wrapping_sub(layout.size() as u64)));
    kept(layout);
}

/// An allocator that forwards each call to the allocator `A` and counts it.
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

// A failed allocation is counted as well. This does not matter, because the program then ends.
// SAFETY: each call is forwarded to `A` with its arguments, and the result is returned unchanged, so `A`
// keeps the contract of GlobalAlloc. Counting changes a few thread-local numbers and two atomic numbers: it
// neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, and `A` requires no more.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`, and `A` requires no more.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        uncount(layout);
        // SAFETY: `GlobalAlloc::realloc` requires of its caller that `new_size` with the alignment of
        // `layout` is a valid layout.
        count(unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) });
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`. `pointer` came from `A` with this
        // layout, because each allocation is forwarded to `A`.
        unsafe { self.0.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        uncount(layout);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`. `pointer` came from `A` with this
        // layout, because each allocation is forwarded to `A`.
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
        // SAFETY: each pointer is used with the layout that it has at that time.
        unsafe {
            let pointer = allocator.realloc(allocator.alloc(floats), floats, 2 * floats.size());
            end_step(1000);
            allocator.dealloc(pointer, Layout::array::<f32>(100_000).unwrap());
        }
        assert_eq!(peak_of_steps(), 399_000, "no other test of this module trains");
        assert_eq!(std::thread::spawn(allocations).join().unwrap(), 0);
    }
}
