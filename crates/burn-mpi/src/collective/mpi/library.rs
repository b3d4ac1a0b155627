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

/// Aborts every process of the job with `code`, from a panic hook or anywhere else.
///
/// Only the thread that started MPI may call `MPI_Abort`, between initialization and
/// finalization. On any other thread, this process exits without `MPI_Finalize`, upon which its
/// launcher aborts the job.
pub(crate) fn abort(code: i32) -> ! {
    crate::output::wait_until_read();
    // No exit handler may wait for the other ranks.
    crate::guard::finalize::cancel();
    // SAFETY: MPI_Initialized and MPI_Finalized may be called at any time from any thread (MPI
    // 3.1, section 8.7.1); MPI_Abort is called on this thread only while MPI runs, which they
    // check.
    unsafe {
        let (mut started, mut finished) = (0, 0);
        ffi::MPI_Initialized(&mut started);
        ffi::MPI_Finalized(&mut finished);
        if started != 0 && finished == 0 {
            match is_mpi_thread() {
                true => {
                    ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code);
                }
                false => {
                    crate::guard::end_mpirun();
                    // Exit handlers could wait for the thread that is inside MPI.
                    libc::_exit(code);
                }
            }
        }
    }
    std::process::exit(code)
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
