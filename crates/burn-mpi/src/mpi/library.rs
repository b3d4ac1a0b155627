//! The MPI library itself: its end, its version, its words.

use std::ffi::{c_char, c_int};

use mpi::ffi;

/// Ends every process of the job with `code`. Safe to call from a panic hook
/// and before MPI has started.
pub(crate) fn abort(code: i32) -> ! {
    crate::guard::farewell::cancel();
    // SAFETY: MPI_Initialized may be called at any time; MPI_Abort only while
    // MPI runs, which is what it tells.
    unsafe {
        let (mut started, mut finished) = (0, 0);
        ffi::MPI_Initialized(&mut started);
        ffi::MPI_Finalized(&mut finished);
        if started != 0 && finished == 0 {
            ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code);
        }
    }
    std::process::exit(code)
}

/// The MPI library's name and version, the first line of what it says.
pub(crate) fn library_version() -> String {
    // SAFETY: a constant that MPI's library defines.
    let mut text = vec![0u8; unsafe { ffi::RSMPI_MAX_LIBRARY_VERSION_STRING } as usize + 1];
    text_of(&mut text, |buffer, length| {
        // SAFETY: may be called at any time; the buffer has the size that the
        // standard asks for.
        unsafe { ffi::MPI_Get_library_version(buffer, length) }
    })
    .lines()
    .next()
    .unwrap_or("unknown MPI")
    .split(", package")
    .next()
    .unwrap_or_default()
    .trim()
    .replace("MPICH Version:", "MPICH")
    .split_whitespace()
    .collect::<Vec<_>>()
    .join(" ")
}

/// MPI's own words for an error code.
pub(crate) fn describe(code: c_int) -> String {
    let mut text = vec![0u8; 1024];
    text_of(&mut text, |buffer, length| {
        // SAFETY: the buffer is larger than MPI_MAX_ERROR_STRING of either MPI.
        unsafe { ffi::MPI_Error_string(code, buffer, length) }
    })
}

fn text_of(buffer: &mut [u8], fill: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let mut length = 0;
    fill(buffer.as_mut_ptr().cast(), &mut length);
    let length = (length.max(0) as usize).min(buffer.len());
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}
