//! The MPI library itself: its thread, abort, version and error strings.

use std::cell::Cell;
use std::ffi::{c_char, c_int};

use mpi::ffi;

thread_local! {
    // Without a destructor, so that exit handlers may read it.
    static STARTED_MPI: Cell<bool> = const { Cell::new(false) };
}

/// Records that this thread has started MPI, at the level where only it may call MPI.
pub(crate) fn note_thread() {
    STARTED_MPI.set(true);
}

/// Whether this thread may call MPI.
pub(crate) fn is_mpi_thread() -> bool {
    STARTED_MPI.get()
}

/// The MPI library's name and version, the first line of its string.
pub(crate) fn library_version() -> String {
    library_text()
        .lines()
        .next()
        .unwrap_or("unknown MPI")
        .split(", package")
        .next()
        .unwrap_or_default()
        .replace("MPICH Version:", "MPICH")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// The MPI library's description of itself: many lines for MPICH, one for Open MPI.
pub(crate) fn library_text() -> String {
    // SAFETY: a constant that MPI's library defines.
    let mut text = vec![0u8; unsafe { ffi::RSMPI_MAX_LIBRARY_VERSION_STRING } as usize + 1];
    text_of(&mut text, |buffer, length| {
        // SAFETY: may be called at any time; the buffer has the size that the standard
        // requires.
        unsafe { ffi::MPI_Get_library_version(buffer, length) }
    })
}

/// MPI's error string for a code.
pub(crate) fn describe(code: c_int) -> String {
    let mut text = vec![0u8; 1024];
    text_of(&mut text, |buffer, length| {
        // SAFETY: the buffer is larger than MPI_MAX_ERROR_STRING of Open MPI and MPICH.
        unsafe { ffi::MPI_Error_string(code, buffer, length) }
    })
}

fn text_of(buffer: &mut [u8], fill: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let mut length = 0;
    fill(buffer.as_mut_ptr().cast(), &mut length);
    let length = (length.max(0) as usize).min(buffer.len());
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}
