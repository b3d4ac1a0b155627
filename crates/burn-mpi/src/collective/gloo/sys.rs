//! Rust bindings to `shim.cc`, the C interface to gloo. [`Mesh`] owns gloo's connections to all ranks.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::time::Duration;

use half::{bf16, f16};

use crate::collective::wire::{Element, Sum};

/// Buffer for the text of an error. Its length is `kErrorBytes` in shim.cc.
type Text = [u8; 1024];

// The functions of shim.cc. A function with the parameter `error` returns 0 on success. On failure it writes
// the reason to `error` and returns 1.
unsafe extern "C" {
    fn burn_mpi_gloo_listen(
        address: *const c_char,
        rank: c_int,
        size: c_int,
        timeout_ms: u64,
        out: *mut *mut c_void,
        error: *mut Text,
    ) -> c_int;
    fn burn_mpi_gloo_addresses(
        mesh: *mut c_void,
        out: *mut u8,
        capacity: usize,
        length: *mut usize,
        error: *mut Text,
    ) -> c_int;
    fn burn_mpi_gloo_connect(mesh: *mut c_void, peers: *const u8, length: usize, error: *mut Text) -> c_int;
    fn burn_mpi_gloo_free(mesh: *mut c_void);
    #[cfg(feature = "internals")]
    fn burn_mpi_gloo_version() -> c_int;
    fn burn_mpi_gloo_call(mesh: *mut c_void, run: *const Run, error: *mut Text) -> c_int;
}

/// One call of gloo, as shim.cc declares it.
#[repr(C)]
pub(super) struct Run {
    /// The number of the call in shim.cc.
    pub call: c_int,
    /// The root or the peer.
    pub root: c_int,
    pub algorithm: c_int,
    pub tag: u32,
    /// Bytes per value.
    pub width: usize,
    pub from: *const u8,
    pub from_bytes: usize,
    pub to: *mut u8,
    pub to_bytes: usize,
    pub add: Add,
}

/// gloo's connections to all ranks: an object that shim.cc creates, freed on drop.
pub(crate) struct Mesh(NonNull<c_void>);

// SAFETY: gloo's context may be used from any thread, by one thread at a time. `Mesh` is not `Sync`, so no
// two threads can use it at the same time.
unsafe impl Send for Mesh {}

impl Drop for Mesh {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the shim and is not used after this.
        unsafe { burn_mpi_gloo_free(self.0.as_ptr()) }
    }
}

impl Mesh {
    /// Makes a call.
    ///
    /// # Safety
    /// Pointers and lengths describe buffers that nobody else uses until this function returns. If gloo reads
    /// or writes one part of a buffer for each rank, the buffer has one part for each rank. `add` adds values
    /// of `width` bytes.
    pub(super) unsafe fn call(&mut self, run: &Run) -> Result<(), String> {
        // SAFETY: as the caller states.
        checked(|error| unsafe { burn_mpi_gloo_call(self.0.as_ptr(), run, error) })
    }

    /// Opens one socket per peer on `address`.
    pub fn listen(address: &str, rank: usize, size: usize, timeout: Duration) -> Result<Self, String> {
        let address = CString::new(address).map_err(|error| error.to_string())?;
        let timeout =
            u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).clamp(1, i64::MAX as u64 / 2_000_000);
        let mut mesh = std::ptr::null_mut();
        let (rank, size) = (rank as c_int, size as c_int);
        // SAFETY: the text is nul-terminated and `mesh` is valid for writing a pointer.
        checked(|error| unsafe {
            burn_mpi_gloo_listen(address.as_ptr(), rank, size, timeout, &mut mesh, error)
        })?;
        NonNull::new(mesh).map(Self).ok_or_else(|| "gloo returned no context".into())
    }

    /// Returns one address for each of `size` ranks, in rank order: the address on which this rank listens
    /// for that rank. All addresses have the same length.
    pub fn addresses(&self, size: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; size * 256];
        let mut length = 0;
        let (at, capacity) = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the shim writes at most `capacity` bytes.
        checked(|error| unsafe {
            burn_mpi_gloo_addresses(self.0.as_ptr(), at, capacity, &mut length, error)
        })?;
        if length > bytes.len() {
            return Err(format!("gloo's addresses need {length} bytes, but only {capacity} are reserved"));
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Connects to the addresses that the peers listen on for this rank.
    pub fn connect(&self, peers: &[u8], size: usize) -> Result<(), String> {
        let (at, length) = (peers.as_ptr(), peers.len() / size);
        // SAFETY: `peers` holds `size` equal parts.
        checked(|error| unsafe { burn_mpi_gloo_connect(self.0.as_ptr(), at, length, error) })
    }
}

/// The version of gloo that this program was compiled with, such as `0.5.0`. gloo's version number rarely
/// changes, so distributions name their packages by the date of a commit.
///
/// ```
/// assert_eq!(burn_mpi::internals::gloo_version().split('.').count(), 3);
/// ```
#[cfg(feature = "internals")]
pub fn gloo_version() -> String {
    // SAFETY: returns a constant and has no preconditions.
    let number = unsafe { burn_mpi_gloo_version() };
    // gloo/config.h has two decimal digits for each part after the first.
    format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100)
}

/// Calls the shim, and converts its code and text into a result.
fn checked(call: impl FnOnce(*mut Text) -> c_int) -> Result<(), String> {
    let mut text: Text = [0; _];
    match call(&mut text) {
        0 => Ok(()),
        _ => Err(reason(CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().as_ref())),
    }
}

/// Returns gloo's message on one line, without the source location at its beginning.
fn reason(text: &str) -> String {
    let words = match text.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((place, words)) if place.contains(".cc:") || place.contains(".h:") => words,
        _ => text,
    };
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Called as `add(out, a, b, n)`: computes `out = a + b` for `n` elements. Any two of the three arrays may be
/// the same.
pub(crate) type Add = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, usize);

/// Returns the function that adds values of type `element`. Bytes are never summed, so their function is
/// never called.
pub(super) fn adder_of(element: Element) -> Add {
    match element {
        Element::F32 | Element::Byte => add::<f32>,
        Element::F64 => add::<f64>,
        Element::Bf16 => add::<bf16>,
        Element::F16 => add::<f16>,
    }
}

/// # Safety
/// Called by gloo: `out`, `a` and `b` point at `n` elements of type `T`, and any two of them are equal or do
/// not overlap.
unsafe extern "C" fn add<T: Sum>(out: *mut c_void, a: *const c_void, b: *const c_void, n: usize) {
    let (out, a, b) = (out.cast::<T>(), a.cast::<T>(), b.cast::<T>());
    // SAFETY: the caller promises `n` elements at each pointer. `out` is the same memory as one of the terms,
    // or `a` is copied to it. The other term does not overlap `out`, or was copied.
    unsafe {
        if out.cast_const() == a && a == b {
            let terms = from_raw_parts(b, n).to_vec();
            T::ADD(from_raw_parts_mut(out, n), &terms);
        } else if out.cast_const() == b {
            T::ADD(from_raw_parts_mut(out, n), from_raw_parts(a, n));
        } else {
            if out.cast_const() != a {
                a.copy_to_nonoverlapping(out, n);
            }
            T::ADD(from_raw_parts_mut(out, n), from_raw_parts(b, n));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_one_line_without_source_places() {
        let text = "[./gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.77.0.2]:4567";
        assert_eq!(reason(text), "Connection closed by peer [10.77.0.2]:4567");
        assert_eq!(reason("[10.77.0.2]:1 is\n  gone"), "[10.77.0.2]:1 is gone");
    }

    #[test]
    fn an_address_that_is_not_here_is_an_error_and_no_crash() {
        let error = Mesh::listen("192.0.2.77", 0, 1, Duration::MAX).err().unwrap();
        assert!(error.contains("192.0.2.77"), "{error}");
    }

    fn sum_of<T: Sum>(a: &[T], b: &[T]) -> [Vec<T>; 3] {
        let (mut into_a, mut into_b, mut apart) = (a.to_vec(), b.to_vec(), a.to_vec());
        let (out_a, out_b) = (into_a.as_mut_ptr(), into_b.as_mut_ptr());
        // SAFETY: all have length `a.len()`; `out` is the same pointer as a term or does not overlap them.
        unsafe {
            add::<T>(out_a.cast(), out_a.cast_const().cast(), b.as_ptr().cast(), a.len());
            add::<T>(out_b.cast(), a.as_ptr().cast(), out_b.cast_const().cast(), a.len());
            add::<T>(apart.as_mut_ptr().cast(), a.as_ptr().cast(), b.as_ptr().cast(), a.len());
        }
        [into_a, into_b, apart]
    }

    #[test]
    fn sums_are_right_wherever_they_go() {
        let a: Vec<f32> = (0..1301).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..1301).map(|i| 1.0 - i as f32).collect();
        assert!(sum_of(&a, &b).iter().flatten().all(|&x| x == 1.0));

        let (a, b) = (vec![bf16::from_f32(1.5); 1301], vec![bf16::from_f32(2.0); 1301]);
        assert!(sum_of(&a, &b).iter().flatten().all(|&x| x == bf16::from_f32(3.5)));
        let (a, b) = (vec![f16::from_f32(1.5); 3], vec![f16::from_f32(2.0); 3]);
        assert!(sum_of(&a, &b).iter().flatten().all(|&x| x == f16::from_f32(3.5)));
    }

    #[test]
    fn a_buffer_is_doubled_in_place() {
        let mut values = vec![1.0f64, 2.0, 3.0];
        let at = values.as_mut_ptr();
        // SAFETY: all three are the same memory, which `add` allows.
        unsafe { add::<f64>(at.cast(), at.cast_const().cast(), at.cast_const().cast(), 3) };
        assert_eq!(values, [2.0, 4.0, 6.0]);
    }
}
