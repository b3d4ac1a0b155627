//! The functions of the CUDA driver that the transport calls, and blocks of memory that operations reuse.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;

use crate::NoNccl;
use crate::load::{functions, open};

/// A handle of the driver: a context, a stream or an event.
pub type Handle = *mut c_void;
/// An address in the GPU's memory.
pub type DevicePointer = u64;

const SUCCESS: c_int = 0;
const NO_DEVICE: c_int = 100;
const NOT_READY: c_int = 600;
/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for the default stream, in which other libraries' calls
/// run unless they name another stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`: an event that records no time is the cheapest to query.
const NO_TIMING: c_uint = 2;

// Names and types are those of cuda.h. For a name with `_v2`, the header defines the name without `_v2` as a
// macro.
functions!(Cuda {
    init: c"cuInit" (c_uint) -> c_int;
    error_name: c"cuGetErrorName" (c_int, *mut *const c_char) -> c_int;
    device_count: c"cuDeviceGetCount" (*mut c_int) -> c_int;
    device: c"cuDeviceGet" (*mut c_int, c_int) -> c_int;
    device_name: c"cuDeviceGetName" (*mut c_char, c_int, c_int) -> c_int;
    device_uuid: c"cuDeviceGetUuid_v2" (*mut [u8; 16], c_int) -> c_int;
    retain: c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int) -> c_int;
    push: c"cuCtxPushCurrent_v2" (Handle) -> c_int;
    pop: c"cuCtxPopCurrent_v2" (*mut Handle) -> c_int;
    stream_create: c"cuStreamCreate" (*mut Handle, c_uint) -> c_int;
    stream_destroy: c"cuStreamDestroy_v2" (Handle) -> c_int;
    event_create: c"cuEventCreate" (*mut Handle, c_uint) -> c_int;
    event_record: c"cuEventRecord" (Handle, Handle) -> c_int;
    event_query: c"cuEventQuery" (Handle) -> c_int;
    event_destroy: c"cuEventDestroy_v2" (Handle) -> c_int;
    allocate: c"cuMemAlloc_v2" (*mut DevicePointer, usize) -> c_int;
    free: c"cuMemFree_v2" (DevicePointer) -> c_int;
    host_allocate: c"cuMemHostAlloc" (*mut *mut c_void, usize, c_uint) -> c_int;
    host_free: c"cuMemFreeHost" (*mut c_void) -> c_int;
    to_device: c"cuMemcpyHtoDAsync_v2" (DevicePointer, *const c_void, usize, Handle) -> c_int;
    to_host: c"cuMemcpyDtoHAsync_v2" (*mut c_void, DevicePointer, usize, Handle) -> c_int;
});

impl Cuda {
    /// The driver, loaded and started once per process.
    pub fn get() -> Result<&'static Self, NoNccl> {
        static CUDA: OnceLock<Result<Cuda, NoNccl>> = OnceLock::new();
        CUDA.get_or_init(Self::start).as_ref().map_err(Clone::clone)
    }

    fn start() -> Result<Self, NoNccl> {
        let missing = |reason| NoNccl::Driver { reason };
        let library = open("libcuda.so.1").map_err(missing)?;
        // SAFETY: the declarations above are those of cuda.h.
        let cuda = unsafe { Self::from_library(library) }.map_err(missing)?;
        // SAFETY: `cuInit` may be called at any time, with 0.
        match unsafe { (cuda.init)(0) } {
            NO_DEVICE => Err(NoNccl::Gpu),
            code => cuda.check(code, "cuInit").map(|()| cuda).map_err(missing),
        }
    }

    /// Returns an error if the call `name` has returned a `code` other than success.
    pub fn check(&self, code: c_int, name: &str) -> Result<(), String> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut text: *const c_char = ptr::null();
        // SAFETY: `text` is valid for one pointer. It is set to a static text, or to null if the
        // driver does not know the code.
        let text = unsafe {
            (self.error_name)(code, &mut text);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
        };
        Err(format!("{name} returned {}", text.unwrap_or_else(|| format!("error {code}"))))
    }

    /// Makes a stream in the current context.
    pub fn stream(&self) -> Result<Handle, String> {
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` is valid for one handle.
        self.check(unsafe { (self.stream_create)(&mut stream, NON_BLOCKING) }, "cuStreamCreate")?;
        Ok(stream)
    }

    /// Makes an event in the current context.
    pub fn event(&self) -> Result<Handle, String> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is valid for one handle.
        self.check(unsafe { (self.event_create)(&mut event, NO_TIMING) }, "cuEventCreate")?;
        Ok(event)
    }

    /// Whether all work is complete that was in the stream when `event` was last recorded.
    ///
    /// # Errors
    /// If an earlier operation failed. The error is then the error of that operation.
    ///
    /// # Safety
    /// `event` is an event of the current context that is not destroyed.
    pub unsafe fn is_complete(&self, event: Handle) -> Result<bool, String> {
        // SAFETY: as the caller promises.
        match unsafe { (self.event_query)(event) } {
            NOT_READY => Ok(false),
            code => self.check(code, "cuEventQuery").map(|()| true),
        }
    }
}

/// Number of bytes in a page. Blocks are whole pages.
pub const PAGE: usize = 4096;

/// A block of memory with two copies of equal length, one on the host and one on the GPU. Dropping a block
/// leaks its memory, because transfers may still be in flight after an error.
pub struct Block {
    cuda: &'static Cuda,
    pub device: DevicePointer,
    host: *mut u8,
    pub capacity: usize,
    pub event: Handle,
}

impl Block {
    /// Allocates a block of at least `bytes`.
    ///
    /// # Errors
    /// If the driver cannot create the event or allocate the memory. What this call has created before the
    /// error is leaked.
    ///
    /// # Safety
    /// The context of the GPU is current.
    pub unsafe fn allocate(cuda: &'static Cuda, bytes: usize) -> Result<Self, String> {
        let capacity = bytes.max(1).next_multiple_of(PAGE);
        let event = cuda.event()?;
        let mut device: DevicePointer = 0;
        let mut host: *mut c_void = ptr::null_mut();
        let call = |name: &str| format!("{name} of {capacity} bytes");
        // SAFETY: `device` and `host` are valid for one pointer each. Only this block has the event and the
        // memory, and nothing uses them yet.
        unsafe {
            cuda.check((cuda.allocate)(&mut device, capacity), &call("cuMemAlloc"))?;
            cuda.check((cuda.host_allocate)(&mut host, capacity, 0), &call("cuMemHostAlloc"))?;
        }
        Ok(Self { cuda, device, host: host.cast(), capacity, event })
    }

    /// Frees the block.
    ///
    /// # Safety
    /// The context of the GPU is current, and no operation on the block is in flight.
    pub unsafe fn free(self) {
        // SAFETY: as the caller promises. The handles belong to this block, which ends here.
        unsafe {
            (self.cuda.free)(self.device);
            (self.cuda.host_free)(self.host.cast());
            (self.cuda.event_destroy)(self.event);
        }
    }

    /// Writes `bytes` at the beginning of the host's copy.
    ///
    /// # Panics
    /// If the block is shorter than `bytes`.
    ///
    /// # Safety
    /// No operation on the block is in flight.
    pub unsafe fn write(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.capacity, "bytes inside the block");
        // SAFETY: the bytes are inside the allocation, which nothing else accesses.
        unsafe { std::slice::from_raw_parts_mut(self.host, bytes.len()) }.copy_from_slice(bytes);
    }

    /// Reads the host's copy from `start` into `bytes`.
    ///
    /// # Panics
    /// If the range is not inside the block.
    ///
    /// # Safety
    /// No operation on the block is in flight, and the bytes to read were written.
    pub unsafe fn read(&self, start: usize, bytes: &mut [u8]) {
        assert!(start + bytes.len() <= self.capacity, "bytes inside the block");
        // SAFETY: the bytes are inside the allocation, which nothing else writes.
        bytes.copy_from_slice(unsafe { std::slice::from_raw_parts(self.host.add(start), bytes.len()) });
    }

    /// Copies the first `bytes` of the host's copy to the GPU, in `stream`.
    ///
    /// # Safety
    /// The context is current, and the stream belongs to it. The bytes are inside the block, which stays
    /// allocated and unchanged until the stream has passed this point.
    pub unsafe fn copy_to_device(&self, bytes: usize, stream: Handle) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        let code = unsafe { (self.cuda.to_device)(self.device, self.host.cast(), bytes, stream) };
        self.cuda.check(code, "cuMemcpyHtoDAsync")
    }

    /// Copies a range of the GPU's copy to the host, in `stream`, and records the event.
    ///
    /// # Safety
    /// The conditions of [`copy_to_device`](Self::copy_to_device) hold, with the range in place of the first
    /// bytes.
    pub unsafe fn copy_to_host(&self, range: &Range<usize>, stream: Handle) -> Result<(), String> {
        let cuda = self.cuda;
        if !range.is_empty() {
            // SAFETY: as the caller promises.
            let code = unsafe {
                let to = self.host.add(range.start).cast();
                (cuda.to_host)(to, self.device + range.start as u64, range.len(), stream)
            };
            cuda.check(code, "cuMemcpyDtoHAsync")?;
        }
        // SAFETY: the event belongs to this block and to the current context.
        cuda.check(unsafe { (cuda.event_record)(self.event, stream) }, "cuEventRecord")
    }
}
