//! Memory that operations reuse: a block on the GPU, its copy in pinned host memory, and the event
//! that says when both are free again.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use super::cuda::{Cuda, DevicePointer, Handle};

/// Blocks are whole pages.
const PAGE: usize = 4096;

/// A block of equal length on host and GPU. It is not freed on drop: after an error, copies may
/// still be in flight, and its memory is then leaked.
pub(super) struct Block {
    pub device: DevicePointer,
    host: *mut u8,
    pub capacity: usize,
    pub event: Handle,
}

impl Block {
    /// A block of at least `bytes`.
    ///
    /// # Errors
    /// If memory is short.
    ///
    /// # Safety
    /// The context of the GPU is current.
    pub unsafe fn allocate(cuda: &Cuda, bytes: usize) -> Result<Self, String> {
        let capacity = bytes.max(1).next_multiple_of(PAGE);
        let event = cuda.event()?;
        let mut device: DevicePointer = 0;
        let mut host: *mut c_void = ptr::null_mut();
        let of = |name: &str| format!("{name} of {capacity} bytes");
        // SAFETY: `device` and `host` are valid for one pointer each. Only this block has the
        // event and the memory, which are used by nothing yet.
        unsafe {
            let allocated =
                cuda.check((cuda.allocate)(&mut device, capacity), &of("cuMemAlloc")).and_then(|()| {
                    let pinned = (cuda.host_allocate)(&mut host, capacity, 0);
                    cuda.check(pinned, &of("cuMemHostAlloc")).inspect_err(|_| {
                        (cuda.free)(device);
                    })
                });
            if let Err(reason) = allocated {
                (cuda.event_destroy)(event);
                return Err(reason);
            }
        }
        Ok(Self { device, host: host.cast(), capacity, event })
    }

    /// Frees the block.
    ///
    /// # Safety
    /// The context of the GPU is current, and no operation on the block is in flight.
    pub unsafe fn free(self, cuda: &Cuda) {
        // SAFETY: as the caller promises; the handles are this block's, which ends here.
        unsafe {
            (cuda.free)(self.device);
            (cuda.host_free)(self.host.cast());
            (cuda.event_destroy)(self.event);
        }
    }

    /// Writes `bytes` into the host's copy from `range.start`, and zeros up to the range's end.
    ///
    /// # Panics
    /// If the range is too short or outside the block.
    ///
    /// # Safety
    /// No operation on the block is in flight.
    pub unsafe fn write(&mut self, range: Range<usize>, bytes: &[u8]) {
        assert!(
            range.start + bytes.len() <= range.end && range.end <= self.capacity,
            "bytes inside the block"
        );
        // SAFETY: inside the allocation, which nothing else accesses.
        let all = unsafe { std::slice::from_raw_parts_mut(self.host.add(range.start), range.len()) };
        let (copied, padding) = all.split_at_mut(bytes.len());
        copied.copy_from_slice(bytes);
        padding.fill(0);
    }

    /// Reads the host's copy from `start` into `bytes`.
    ///
    /// # Panics
    /// If that is outside the block.
    ///
    /// # Safety
    /// No operation on the block is in flight, and those bytes were written.
    pub unsafe fn read(&self, start: usize, bytes: &mut [u8]) {
        assert!(start + bytes.len() <= self.capacity, "bytes inside the block");
        // SAFETY: inside the allocation, which nothing else writes.
        bytes.copy_from_slice(unsafe { std::slice::from_raw_parts(self.host.add(start), bytes.len()) });
    }

    /// Copies a range of the host's copy to the GPU, in `stream`.
    ///
    /// # Safety
    /// The context is current, the stream is of it, and the range is inside the block, which stays
    /// allocated and unchanged until the stream has passed this point.
    pub unsafe fn bring(&self, cuda: &Cuda, range: &Range<usize>, stream: Handle) -> Result<(), String> {
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        let code = unsafe {
            let from = self.host.add(range.start).cast();
            (cuda.to_device)(self.device + range.start as u64, from, range.len(), stream)
        };
        cuda.check(code, "cuMemcpyHtoDAsync")
    }

    /// Copies a range back, in `stream`, and records the event.
    ///
    /// # Safety
    /// As for [`bring`](Self::bring).
    pub unsafe fn fetch(&self, cuda: &Cuda, range: &Range<usize>, stream: Handle) -> Result<(), String> {
        if !range.is_empty() {
            // SAFETY: as the caller promises.
            let code = unsafe {
                let to = self.host.add(range.start).cast();
                (cuda.to_host)(to, self.device + range.start as u64, range.len(), stream)
            };
            cuda.check(code, "cuMemcpyDtoHAsync")?;
        }
        // SAFETY: the event is this block's, of the same context.
        cuda.check(unsafe { (cuda.event_record)(self.event, stream) }, "cuEventRecord")
    }
}
