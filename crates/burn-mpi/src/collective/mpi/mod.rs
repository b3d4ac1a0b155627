//! A safe layer over the MPI calls that this crate needs.
//!
//! rsmpi starts MPI and provides the bindings. Its own collectives discard return codes, support neither
//! `MPI_IN_PLACE` nor 16-bit floats, and tie requests to scopes. The calls here therefore use the bindings,
//! set `MPI_ERRORS_RETURN`, and check every code.

pub(crate) mod calls;

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::ops::Deref;
use std::rc::Rc;

use mpi::ffi;

use crate::collective::wire::Element;
use crate::member::{Member, Started};
use crate::{Call, CommError};

/// The transport's name.
pub(crate) const NAME: &str = "mpi";

/// This process as a rank of an MPI job.
///
/// MPI runs from before the first `Mpi` is created until the process exits ([`crate::guard::finalize`]). So
/// code that holds an `Mpi` may always call MPI on the thread that started it. A type that holds an `Mpi` is
/// `!Send`.
#[derive(Debug, Clone)]
pub struct Mpi(Rc<Member>);

impl Deref for Mpi {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.0
    }
}

impl Mpi {
    /// Makes MPI return errors instead of aborting the process, and returns the rank and the number of ranks.
    ///
    /// # Safety
    /// MPI is initialised, by this thread.
    pub unsafe fn rank_and_size() -> Result<(usize, usize), CommError> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: MPI is initialised; both pointers are valid for one int.
        let codes = unsafe {
            [
                ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN),
                ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut rank),
                ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut size),
            ]
        };
        match codes.into_iter().find(|&code| code != 0) {
            Some(code) => Err(CommError::Start(describe(code))),
            None => Ok((rank as usize, size as usize)),
        }
    }

    /// Creates the `Mpi` of this process, whose rank is `member`.
    ///
    /// # Safety
    /// MPI is initialised, by this thread, and is not finalized before the process exits.
    pub unsafe fn new(member: Rc<Member>) -> Self {
        Self(member)
    }

    /// Starts a non-blocking barrier on `communicator`.
    pub fn start_barrier(
        &self,
        communicator: ffi::MPI_Comm,
        started: &Started,
    ) -> Result<ffi::MPI_Request, CommError> {
        // SAFETY: a constant that MPI's library defines.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the handle is written to valid memory.
        let code = unsafe { ffi::MPI_Ibarrier(communicator, &mut request) };
        self.check_code(code, started)?;
        Ok(request)
    }

    /// Duplicates the world's communicator. MPI matches operations on the duplicate only with operations on
    /// the same duplicate. All ranks must call it.
    pub fn duplicate(&self) -> Result<ffi::MPI_Comm, CommError> {
        const COPY: &str = "communicator copy";
        let (_waiting, started) = (self.enter(NAME, COPY, None), self.started(NAME, COPY, 0));
        // SAFETY: the new handle is written to valid memory.
        let (code, copy) = unsafe {
            let mut copy = ffi::RSMPI_COMM_NULL;
            (ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut copy), copy)
        };
        self.check_code(code, &started)?;
        Ok(copy)
    }

    /// Lets the MPI library make progress once, so that it can answer other ranks. Does not wait for a
    /// message.
    pub fn progress(&self, communicator: ffi::MPI_Comm) {
        let mut arrived = 0;
        // SAFETY: MPI runs, and writes one flag to memory of this function. An error can be ignored: the call
        // that waits for a message reports it.
        unsafe {
            let status = ffi::RSMPI_STATUS_IGNORE;
            ffi::MPI_Iprobe(ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG, communicator, &mut arrived, status);
        }
    }

    /// Returns whether an operation in flight is complete.
    pub fn test(&self, request: &mut ffi::MPI_Request, started: &Started) -> Result<bool, CommError> {
        let mut done = 0;
        // SAFETY: the handle came from MPI and is not used after completion: MPI then sets it to the null
        // request, for which this call is valid.
        let code = unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
        self.check_code(code, started)?;
        Ok(done != 0)
    }

    /// Returns the number of elements in each rank's part of `call`, as an MPI count. `from` and `to` are the
    /// lengths of the buffers in bytes.
    fn count(&self, call: Call, element: Element, from: usize, to: usize) -> Result<c_int, CommError> {
        let elements = call.part(from, to, self.size) / element.width();
        c_int::try_from(elements).map_err(|_| {
            let started = self.started(NAME, call.name(), from.max(to));
            self.error(
                &started,
                "the buffer has more elements than fit in an MPI count (2^31 - 1); use smaller buckets",
            )
        })
    }

    /// Converts the code that an MPI call returned into a result.
    fn check_code(&self, code: c_int, started: &Started) -> Result<(), CommError> {
        match code {
            0 => Ok(()),
            _ => Err(self.error(started, explained(describe(code)))),
        }
    }
}

/// If MPI's error string reports a truncated message, adds the likely cause.
fn explained(text: String) -> String {
    if text.contains("TRUNCATE") || text.contains("truncated") {
        format!("{text}; the ranks call different operations, or the same operation on different sizes")
    } else {
        text
    }
}

thread_local! {
    // This value has no destructor, so exit handlers may read it.
    static STARTED_MPI: Cell<bool> = const { Cell::new(false) };
}

/// Records that this thread has started MPI. At the requested thread level, `MPI_THREAD_FUNNELED`, only this
/// thread may call MPI.
pub(crate) fn note_thread() {
    STARTED_MPI.set(true);
}

/// Returns whether this thread may call MPI.
pub(crate) fn is_mpi_thread() -> bool {
    STARTED_MPI.get()
}

/// Returns the MPI library's name and version, such as `Open MPI v4.1.4`. It can be called before and after
/// MPI's start.
pub fn mpi_library() -> String {
    let text = library_text();
    let line = text.lines().next().unwrap_or("unknown MPI");
    let name = line.split(", package").next().unwrap_or_default().replace("MPICH Version:", "MPICH");
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The MPI library's description of itself: many lines for MPICH, one for Open MPI.
pub(crate) fn library_text() -> String {
    // SAFETY: a constant that MPI's library defines.
    let mut text = vec![0u8; unsafe { ffi::RSMPI_MAX_LIBRARY_VERSION_STRING } as usize + 1];
    text_of(&mut text, |buffer, length| {
        // SAFETY: may be called at any time; the buffer has the size that the standard requires.
        unsafe { ffi::MPI_Get_library_version(buffer, length) }
    })
}

/// Returns MPI's error string for `code`.
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
