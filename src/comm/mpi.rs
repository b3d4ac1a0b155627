//! A safe layer over the MPI calls that this program needs.
//!
//! rsmpi starts MPI and carries the bindings. Its own collectives discard
//! return codes, know neither `MPI_IN_PLACE` nor 16-bit floats, and tie
//! requests to scopes; so the calls here go to the bindings directly, set
//! `MPI_ERRORS_RETURN`, and check every code.

use std::ffi::{c_char, c_int, c_void};
use std::time::Instant;

use mpi::ffi;

use super::CommError;
use super::collective::Wire;
use super::guard;
use super::mpi_sum::sum_of;

// The functions of mpi_shim.c.
unsafe extern "C" {
    fn mpiburn_allreduce(
        buffer: *mut c_void,
        count: c_int,
        datatype: ffi::MPI_Datatype,
        op: ffi::MPI_Op,
        comm: ffi::MPI_Comm,
    ) -> c_int;
    fn mpiburn_iallreduce(
        buffer: *mut c_void,
        count: c_int,
        datatype: ffi::MPI_Datatype,
        op: ffi::MPI_Op,
        comm: ffi::MPI_Comm,
        request: *mut ffi::MPI_Request,
    ) -> c_int;
}

/// A non-blocking operation under way.
///
/// Dropping one does not end the operation: its buffers must outlive it, which
/// [`super::mpi_collective`] sees to by owning both.
pub(super) struct Request {
    handle: ffi::MPI_Request,
    operation: &'static str,
}

/// Bytes moved by one call at most: MPI counts are C ints, so larger buffers
/// go in pieces.
const CHUNK_BYTES: usize = 1 << 30;

/// `MPI_COMM_WORLD`, with the rank and host that its errors are signed with.
#[derive(Debug, Clone)]
pub(super) struct MpiWorld {
    pub rank: usize,
    pub size: usize,
    pub host: String,
    /// Whether to give the core away while waiting, since another rank needs it.
    pub yields: bool,
}

/// A communicator of its own: operations on it are matched among themselves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Communicator(ffi::MPI_Comm);

/// Element types that MPI sums for us.
pub(super) trait Reducible: Copy {
    fn datatype() -> ffi::MPI_Datatype;
}

impl Reducible for f32 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: a constant that MPI's library defines, read only.
        unsafe { ffi::RSMPI_FLOAT }
    }
}

impl Reducible for f64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: as above.
        unsafe { ffi::RSMPI_DOUBLE }
    }
}

impl MpiWorld {
    /// Asks MPI for rank and size, and has it return errors instead of ending
    /// the process. MPI is initialised.
    pub fn new(host: String) -> Result<Self, CommError> {
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
            None => Ok(Self { rank: rank as usize, size: size as usize, host, yields: false }),
        }
    }

    /// Sums `buffer` over all ranks, in place.
    pub fn all_reduce_sum<T: Reducible>(&self, buffer: &mut [T]) -> Result<(), CommError> {
        let started = Instant::now();
        let bytes = size_of_val(buffer);
        for piece in buffer.chunks_mut(CHUNK_BYTES / size_of::<T>()) {
            // SAFETY: the pointer and the count describe `piece`, which is
            // borrowed mutably until the call returns; the datatype is T's.
            let code = unsafe {
                mpiburn_allreduce(
                    piece.as_mut_ptr().cast(),
                    piece.len() as c_int,
                    T::datatype(),
                    ffi::RSMPI_SUM,
                    ffi::RSMPI_COMM_WORLD,
                )
            };
            self.check(code, "all-reduce", bytes, started)?;
        }
        Ok(())
    }

    /// Overwrites `buffer` on all ranks with rank `root`'s.
    pub fn broadcast(&self, buffer: &mut [u8], root: usize) -> Result<(), CommError> {
        let started = Instant::now();
        let bytes = buffer.len();
        for piece in buffer.chunks_mut(CHUNK_BYTES) {
            // SAFETY: the pointer and the count describe `piece`, which is
            // borrowed mutably until the call returns.
            let code = unsafe {
                ffi::MPI_Bcast(
                    piece.as_mut_ptr().cast(),
                    piece.len() as c_int,
                    ffi::RSMPI_UINT8_T,
                    root as c_int,
                    ffi::RSMPI_COMM_WORLD,
                )
            };
            self.check(code, "broadcast", bytes, started)?;
        }
        Ok(())
    }

    /// Every rank's `mine`, all of one length, in rank order.
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<u8>, CommError> {
        let started = Instant::now();
        let mut all = vec![0u8; mine.len() * self.size];
        // SAFETY: `mine` is read and `all` has room for `size` times as much;
        // both are borrowed until the call returns.
        let code = unsafe {
            ffi::MPI_Allgather(
                mine.as_ptr().cast(),
                mine.len() as c_int,
                ffi::RSMPI_UINT8_T,
                all.as_mut_ptr().cast(),
                mine.len() as c_int,
                ffi::RSMPI_UINT8_T,
                ffi::RSMPI_COMM_WORLD,
            )
        };
        self.check(code, "all-gather", all.len(), started)?;
        Ok(all)
    }

    /// Returns on each rank once all ranks have called it.
    pub fn barrier(&self) -> Result<(), CommError> {
        let started = Instant::now();
        // SAFETY: MPI is initialised for as long as a `World` exists.
        let code = unsafe { ffi::MPI_Barrier(ffi::RSMPI_COMM_WORLD) };
        self.check(code, "barrier", 0, started)
    }

    /// Sums `buffer` over all ranks, in place, in its own type.
    pub fn all_reduce(&self, buffer: &mut Wire) -> Result<(), CommError> {
        let _waiting = guard::enter("all-reduce", None);
        let started = Instant::now();
        let count = self.count(buffer.len(), "all-reduce")?;
        let (datatype, op) = sum_of(buffer);
        let bytes = buffer.bytes_mut();
        // SAFETY: the pointer, count and datatype describe `buffer`, which is
        // borrowed mutably until the call returns.
        let code = unsafe {
            mpiburn_allreduce(bytes.as_mut_ptr().cast(), count, datatype, op, ffi::RSMPI_COMM_WORLD)
        };
        self.check(code, "all-reduce", bytes.len(), started)
    }

    /// Starts to sum `buffer` over all ranks. The caller keeps the buffer's
    /// memory alive and untouched until [`test`](Self::test) says it is done.
    pub fn start_all_reduce(&self, buffer: &mut Wire) -> Result<Request, CommError> {
        let count = self.count(buffer.len(), "all-reduce")?;
        let (datatype, op) = sum_of(buffer);
        self.start("all-reduce", buffer.bytes().len(), |request| {
            // SAFETY: as in `all_reduce`, with the memory kept by the caller.
            unsafe {
                mpiburn_iallreduce(
                    buffer.bytes_mut().as_mut_ptr().cast(),
                    count,
                    datatype,
                    op,
                    ffi::RSMPI_COMM_WORLD,
                    request,
                )
            }
        })
    }

    /// Starts to send each rank its chunk of `from` and to collect this rank's
    /// chunk of every rank's buffer in `to`, which is as long. The caller keeps
    /// both alive and untouched until it is done.
    pub fn start_all_to_all(&self, from: &Wire, to: &mut Wire) -> Result<Request, CommError> {
        debug_assert!(from.len().is_multiple_of(self.size) && from.len() == to.len());
        let bytes = self.count(from.bytes().len() / self.size, "all-to-all")?;
        self.start("all-to-all", from.bytes().len(), |request| {
            // SAFETY: both buffers hold `size` chunks of `bytes` bytes, and the
            // caller keeps them.
            unsafe {
                ffi::MPI_Ialltoall(
                    from.bytes().as_ptr().cast(),
                    bytes,
                    ffi::RSMPI_UINT8_T,
                    to.bytes_mut().as_mut_ptr().cast(),
                    bytes,
                    ffi::RSMPI_UINT8_T,
                    ffi::RSMPI_COMM_WORLD,
                    request,
                )
            }
        })
    }

    /// A copy of the world's communicator, kept to the end of the process. All
    /// ranks call it.
    pub fn duplicate(&self) -> Result<Communicator, CommError> {
        // SAFETY: the new handle is written to a place that is valid for it.
        let (code, copy) = unsafe {
            let mut copy = ffi::RSMPI_COMM_NULL;
            (ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut copy), copy)
        };
        self.check(code, "communicator copy", 0, Instant::now())?;
        Ok(Communicator(copy))
    }

    /// Starts to collect every rank's `mine` in `all`, in rank order. The
    /// caller keeps both alive and untouched until it is done.
    pub fn start_all_gather(
        &self,
        mine: &Wire,
        all: &mut Wire,
        communicator: Communicator,
    ) -> Result<Request, CommError> {
        debug_assert_eq!(mine.len() * self.size, all.len());
        let bytes = self.count(mine.bytes().len(), "all-gather")?;
        self.start("all-gather", all.bytes().len(), |request| {
            // SAFETY: `all` holds `size` times `mine`, and the caller keeps both.
            unsafe {
                ffi::MPI_Iallgather(
                    mine.bytes().as_ptr().cast(),
                    bytes,
                    ffi::RSMPI_UINT8_T,
                    all.bytes_mut().as_mut_ptr().cast(),
                    bytes,
                    ffi::RSMPI_UINT8_T,
                    communicator.0,
                    request,
                )
            }
        })
    }

    /// Whether `request` is over; `bytes` and `started` are for its error.
    pub fn test(&self, request: &mut Request, bytes: usize, started: Instant) -> Result<bool, CommError> {
        let mut done = 0;
        // SAFETY: the handle came from MPI and is not used after it is over:
        // MPI then sets it to the null request, for which this call is valid.
        let code = unsafe { ffi::MPI_Test(&mut request.handle, &mut done, ffi::RSMPI_STATUS_IGNORE) };
        self.check(code, request.operation, bytes, started)?;
        Ok(done != 0)
    }

    /// Gives the core to another rank for a moment, where one needs it.
    pub fn pause(&self) {
        match self.yields {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
    }

    fn start(
        &self,
        operation: &'static str,
        bytes: usize,
        call: impl FnOnce(*mut ffi::MPI_Request) -> c_int,
    ) -> Result<Request, CommError> {
        // SAFETY: a constant that MPI's library defines.
        let mut handle = unsafe { ffi::RSMPI_REQUEST_NULL };
        let code = call(&mut handle);
        self.check(code, operation, bytes, Instant::now())?;
        Ok(Request { handle, operation })
    }

    pub(super) fn count(&self, elements: usize, operation: &str) -> Result<c_int, CommError> {
        c_int::try_from(elements).map_err(|_| CommError::Operation {
            rank: self.rank,
            host: self.host.clone(),
            operation: format!("mpi {operation}"),
            bytes: elements,
            elapsed: std::time::Duration::ZERO,
            reason: "more elements than MPI counts in one call; use smaller buckets (--bucket-mb)".into(),
        })
    }

    pub(super) fn check(
        &self,
        code: c_int,
        operation: &str,
        bytes: usize,
        started: Instant,
    ) -> Result<(), CommError> {
        if code == 0 {
            return Ok(());
        }
        Err(CommError::Operation {
            rank: self.rank,
            host: self.host.clone(),
            operation: format!("mpi {operation}"),
            bytes,
            elapsed: started.elapsed(),
            reason: describe(code),
        })
    }
}

/// Ends every process of the job with `code`. Safe to call from a panic hook
/// and before MPI has started.
pub(super) fn abort(code: i32) -> ! {
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
pub(super) fn library_version() -> String {
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
fn describe(code: c_int) -> String {
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
