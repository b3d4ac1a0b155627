//! A pool of tensor buffers: a buffer that one step frees is used again by the next step.
//!
//! The pool keeps freed buffers because the operating system would otherwise clear their pages again at the
//! next use. The bytes of used and idle buffers together never exceed 1.5 times the maximum of used bytes so
//! far. The factor is above 1 because a gradient often fits in no idle buffer: its size differs from the
//! sizes of the activations that backward has freed before. For the counters of
//! [`counting_allocator`](super::counting_allocator), taking a buffer from the pool is an allocation, and
//! returning it is a free.

use std::alloc::Layout;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use burn_std::{AccessError, AccessPolicy, AllocationController, AllocationProperty};
use bytemuck::Pod;

use super::counting_allocator::{add, allocations, recount, uncount};
use super::scratch::Line;
use crate::runtime::threads::each;

/// Size of the smallest buffer of the pool in lines of 64 bytes: 16 KiB. Smaller buffers come from the
/// allocator, which keeps small blocks itself.
const SMALLEST: usize = 256;

/// Number of values that a thread copies at a time.
const COPIED: usize = 1 << 15;

/// Values for a tensor, aligned to the widest SIMD vector. Dropping the buffer returns its memory to the
/// pool, or to the allocator if it is small.
pub struct Buffer<T = f32> {
    lines: Box<[Line]>,
    len: usize,
    values: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Returns a buffer of `len` values. The values are zeros, or remain from an earlier use.
    pub fn of_type(len: usize) -> Self {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        let lines = if lines < SMALLEST { bytemuck::zeroed_slice_box(lines) } else { lock().take(lines) };
        Self { lines, len, values: PhantomData }
    }
}

impl Buffer {
    /// Returns a buffer of `len` values. The values are zeros, or remain from an earlier use.
    pub fn new(len: usize) -> Self {
        Self::of_type(len)
    }

    /// Returns a buffer of `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = Self::new(len);
        buffer.fill(0.0);
        buffer
    }

    /// Returns a buffer with a copy of `values`.
    pub fn copy_of(values: &[f32]) -> Self {
        let mut buffer = Self::new(values.len());
        let parts = buffer.chunks_mut(COPIED).zip(values.chunks(COPIED));
        each(values.len() / 8, parts, |(target, values)| target.copy_from_slice(values));
        buffer
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if self.lines.len() >= SMALLEST {
            lock().put(std::mem::take(&mut self.lines));
        }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self::copy_of(self)
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer of {} values", self.len)
    }
}

/// Lets a tensor own a buffer as its memory.
impl<T: Pod + Send + Sync> AllocationController for Buffer<T> {
    fn alloc_align(&self) -> usize {
        // This is not the alignment of the buffer, which is 64. A copy of `Bytes` is allocated with the
        // alignment returned here, and the allocator of such copies supports at most the alignment of `u128`.
        align_of::<u128>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(self);
        // SAFETY: `u8` and `MaybeUninit<u8>` have the same layout. The contract of `memory_mut` is that its
        // caller writes only initialised bytes, so `bytes` stays initialised.
        Ok(unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let bytes: &[u8] = bytemuck::cast_slice(self);
        // SAFETY: `u8` and `MaybeUninit<u8>` have the same layout, and nothing can be written through a
        // shared slice.
        Ok(unsafe { &*(std::ptr::from_ref(bytes) as *const [MaybeUninit<u8>]) })
    }
}

/// The pool of this process. All threads share it, because one thread may drop a tensor that another thread
/// made.
static POOL: Mutex<Pool> = Mutex::new(Pool::new());

fn lock() -> impl DerefMut<Target = Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Idle buffers, and the total size of the buffers in use. All sizes are in lines of 64 bytes.
struct Pool {
    /// Buffers that are not in use, the most recently used at the end.
    idle: Vec<Box<[Line]>>,
    idle_lines: usize,
    used: usize,
    /// The maximum of `used` so far.
    most: usize,
    /// Whether the program's global allocator is a `CountingAllocator`.
    is_counted: bool,
}

impl Pool {
    const fn new() -> Self {
        Self { idle: Vec::new(), idle_lines: 0, used: 0, most: 0, is_counted: false }
    }

    /// Returns an idle buffer of at least this size and at most an eighth more, or a new buffer.
    fn take(&mut self, lines: usize) -> Box<[Line]> {
        let fits = lines..=lines + lines / 8;
        let found =
            self.idle.iter().rposition(|idle| fits.contains(&idle.len())).map(|at| self.idle.remove(at));
        self.idle_lines -= found.as_ref().map_or(0, |found| found.len());
        self.used += found.as_ref().map_or(lines, |found| found.len());
        self.most = self.most.max(self.used);
        if let Some(found) = found {
            if self.is_counted {
                add(Layout::for_value(&*found));
            }
            return found;
        }
        self.shrink();
        let before = allocations();
        let new = bytemuck::zeroed_slice_box(lines);
        self.is_counted = allocations() != before;
        new
    }

    /// Returns the maximum number of lines that used and idle buffers may have together.
    fn limit(&self) -> usize {
        self.most + self.most / 2
    }

    fn put(&mut self, lines: Box<[Line]>) {
        if self.is_counted {
            uncount(Layout::for_value(&*lines));
        }
        self.used -= lines.len();
        self.idle_lines += lines.len();
        self.idle.push(lines);
    }

    /// Frees idle buffers, the least recently used first, until used and idle buffers together are within the
    /// [`limit`](Self::limit).
    fn shrink(&mut self) {
        let idle = self.idle.iter();
        let spare = idle.scan(self.used + self.idle_lines, |all, idle| {
            let above = *all > self.limit();
            *all -= idle.len();
            above.then_some(idle.len())
        });
        let (number, lines) = spare.fold((0, 0), |(number, lines), len| (number + 1, lines + len));
        for freed in self.idle.drain(..number) {
            if self.is_counted {
                recount(Layout::for_value(&*freed));
            }
        }
        self.idle_lines -= lines;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_dropped_is_taken_again() {
        let mut pool = Pool::new();
        let (first, second) = (pool.take(1000), pool.take(500));
        let address = first.as_ptr();
        pool.put(first);
        let again = pool.take(900);
        assert_eq!(again.as_ptr(), address, "up to an eighth larger");
        assert_eq!((pool.used, pool.idle_lines, pool.most), (1500, 0, 1500));
        pool.put(second);
        assert_eq!((pool.used, pool.idle_lines), (again.len(), 500));
    }

    #[test]
    fn the_pool_never_has_more_than_its_limit() {
        let mut pool = Pool::new();
        let mut state = 1u64;
        let mut used: Vec<Box<[Line]>> = Vec::new();
        for _ in 0..2000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (number, size) = ((state >> 60) as usize, SMALLEST + (state >> 50) as usize % 1024);
            match number {
                0..7 if !used.is_empty() => pool.put(used.remove((state >> 33) as usize % used.len())),
                _ => used.push(pool.take(size)),
            }
            let lines = |buffers: &[Box<[Line]>]| buffers.iter().map(|lines| lines.len()).sum::<usize>();
            assert_eq!((pool.used, pool.idle_lines), (lines(&used), lines(&pool.idle)));
            assert!(pool.used + pool.idle_lines <= pool.limit());
        }
    }
}
