//! MPI's operations that go on while the caller does something else.

use std::ffi::{c_int, c_void};
use std::time::Instant;

use mpi::ffi;

use crate::Wire;
use crate::guard::activity;
use crate::mpi::MpiWorld;
use crate::mpi::sum::sum_of;
use crate::{Backend, CommError};

// A function of mpi_shim.c.
unsafe extern "C" {
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
/// [`crate::mpi::collective`] sees to by owning both.
pub(crate) struct Request {
    handle: ffi::MPI_Request,
    operation: &'static str,
}

/// A communicator of its own: operations on it are matched among themselves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Communicator(pub(crate) ffi::MPI_Comm);

impl Communicator {
    /// That of all ranks.
    pub fn world() -> Self {
        // SAFETY: a constant that MPI's library defines.
        Self(unsafe { ffi::RSMPI_COMM_WORLD })
    }
}

impl MpiWorld {
    /// Starts to sum `buffer` over all ranks. The caller keeps the buffer's
    /// memory alive and untouched until [`test`](Self::test) says it is done.
    pub fn start_all_reduce(
        &self,
        buffer: &mut Wire,
        communicator: Communicator,
    ) -> Result<Request, CommError> {
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
                    communicator.0,
                    request,
                )
            }
        })
    }

    /// Starts to send each rank its chunk of `from` and to collect this rank's
    /// chunk of every rank's buffer in `to`, which is as long. The caller keeps
    /// both alive and untouched until it is done.
    pub fn start_all_to_all(
        &self,
        from: &Wire,
        to: &mut Wire,
        communicator: Communicator,
    ) -> Result<Request, CommError> {
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
                    communicator.0,
                    request,
                )
            }
        })
    }

    /// A copy of the world's communicator. All ranks call it.
    pub fn duplicate(&self) -> Result<Communicator, CommError> {
        let _waiting = activity::enter(Backend::Mpi, "communicator copy", None);
        // SAFETY: the new handle is written to a place that is valid for it.
        let (code, copy) = unsafe {
            let mut copy = ffi::RSMPI_COMM_NULL;
            (ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut copy), copy)
        };
        self.check(code, "communicator copy", 0, Instant::now())?;
        Ok(Communicator(copy))
    }

    /// Gives a communicator back, on which nothing is under way. An error is
    /// nobody's concern: there is one communicator less for later ones.
    pub fn free(&self, mut communicator: Communicator) {
        // SAFETY: the handle came from MPI_Comm_dup, and is not used again.
        unsafe { ffi::MPI_Comm_free(&mut communicator.0) };
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

    /// Starts to wait until every rank has called it.
    pub fn start_barrier(&self, communicator: Communicator) -> Result<Request, CommError> {
        // SAFETY: the handle is written to a place that is valid for it.
        self.start("barrier", 0, |request| unsafe { ffi::MPI_Ibarrier(communicator.0, request) })
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
}
