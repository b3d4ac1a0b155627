//! Non-blocking MPI operations.
//!
//! MPI reads and writes their buffers until [`MpiWorld::test`] reports completion, which no
//! lifetime here expresses: so these functions are unsafe, and
//! [`MpiCollective`](super::collective::MpiCollective) owns request and buffers together.

use std::ffi::{c_int, c_void};
use std::time::Instant;

use mpi::ffi;

use super::{MpiWorld, NAME};
use crate::guard::activity;
use crate::{CommError, Wire};

// A function of shim.c.
unsafe extern "C" {
    fn burn_mpi_iallreduce(
        buffer: *mut c_void,
        count: c_int,
        datatype: ffi::MPI_Datatype,
        op: ffi::MPI_Op,
        comm: ffi::MPI_Comm,
        request: *mut ffi::MPI_Request,
    ) -> c_int;
}

/// A non-blocking operation in flight. Dropping it does not complete the operation.
pub(crate) struct Request {
    handle: ffi::MPI_Request,
    operation: &'static str,
}

/// A communicator: its operations are matched only with each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Communicator(pub(crate) ffi::MPI_Comm);

impl Communicator {
    /// `MPI_COMM_WORLD`.
    pub fn world() -> Self {
        // SAFETY: a constant that MPI's library defines.
        Self(unsafe { ffi::RSMPI_COMM_WORLD })
    }
}

impl Request {
    /// An operation without elements, which is already complete.
    pub fn over(operation: &'static str) -> Self {
        // SAFETY: a constant that MPI's library defines.
        Self { handle: unsafe { ffi::RSMPI_REQUEST_NULL }, operation }
    }
}

impl MpiWorld {
    /// Starts to sum `buffer` over all ranks.
    ///
    /// # Safety
    /// The buffer's heap memory must not be moved, freed, read or written until
    /// [`test`](Self::test) reports that the request is complete.
    pub unsafe fn start_all_reduce(
        &self,
        buffer: &mut Wire,
        communicator: Communicator,
    ) -> Result<Request, CommError> {
        let count = self.count(buffer.len(), "all-reduce")?;
        let (datatype, op) = self.sum_of(buffer, "all-reduce")?;
        self.start("all-reduce", buffer.bytes().len(), |request| {
            let at = buffer.bytes_mut().as_mut_ptr().cast();
            // SAFETY: the pointer, count and datatype describe `buffer`, which the caller
            // keeps.
            unsafe { burn_mpi_iallreduce(at, count, datatype, op, communicator.0, request) }
        })
    }

    /// Starts to sum `from` over all ranks, and to write this rank's chunk of the sum, one of
    /// as many equal chunks as there are ranks, into `chunk`.
    ///
    /// # Safety
    /// As for [`start_all_reduce`](Self::start_all_reduce), for both buffers.
    ///
    /// # Panics
    /// If `chunk` does not have the length of such a chunk of `from`.
    pub unsafe fn start_reduce_scatter(
        &self,
        from: &Wire,
        chunk: &mut Wire,
        communicator: Communicator,
    ) -> Result<Request, CommError> {
        assert!(chunk.len() * self.size == from.len() && chunk.is_like(from), "equal chunks");
        let count = self.count(chunk.len(), "reduce-scatter")?;
        let (datatype, op) = self.sum_of(from, "reduce-scatter")?;
        self.start("reduce-scatter", from.bytes().len(), |request| {
            let (from, to) = (from.bytes().as_ptr().cast(), chunk.bytes_mut().as_mut_ptr().cast());
            let comm = communicator.0;
            // SAFETY: `chunk` holds `count` values of `datatype` and `from` as many for each
            // rank; the caller keeps both.
            unsafe { ffi::MPI_Ireduce_scatter_block(from, to, count, datatype, op, comm, request) }
        })
    }

    /// Starts to send each rank its chunk of `from` and to receive this rank's chunk of every
    /// rank's buffer into `to`, of the same length.
    ///
    /// # Safety
    /// As for [`start_all_reduce`](Self::start_all_reduce), for both buffers.
    ///
    /// # Panics
    /// If the buffers do not hold one equal chunk for each rank.
    pub unsafe fn start_all_to_all(
        &self,
        from: &Wire,
        to: &mut Wire,
        communicator: Communicator,
    ) -> Result<Request, CommError> {
        assert!(from.len().is_multiple_of(self.size) && from.len() == to.len() && from.is_like(to));
        let bytes = self.count(from.bytes().len() / self.size, "all-to-all")?;
        self.start("all-to-all", from.bytes().len(), |request| {
            let (from, to) = (from.bytes().as_ptr().cast(), to.bytes_mut().as_mut_ptr().cast());
            // SAFETY: both buffers hold `size` chunks of `bytes` bytes, and the
            // caller keeps them.
            unsafe {
                let byte = ffi::RSMPI_UINT8_T;
                ffi::MPI_Ialltoall(from, bytes, byte, to, bytes, byte, communicator.0, request)
            }
        })
    }

    /// Starts to gather every rank's `mine` into `all`, in rank order.
    ///
    /// # Safety
    /// As for [`start_all_reduce`](Self::start_all_reduce), for both buffers.
    ///
    /// # Panics
    /// If `all` does not have the length of all ranks' `mine`.
    pub unsafe fn start_all_gather(
        &self,
        mine: &Wire,
        all: &mut Wire,
        communicator: Communicator,
    ) -> Result<Request, CommError> {
        assert!(mine.len() * self.size == all.len() && mine.is_like(all), "room for each rank's elements");
        let bytes = self.count(mine.bytes().len(), "all-gather")?;
        self.start("all-gather", all.bytes().len(), |request| {
            let (from, to) = (mine.bytes().as_ptr().cast(), all.bytes_mut().as_mut_ptr().cast());
            // SAFETY: `all` holds `size` times `mine`, and the caller keeps both.
            unsafe {
                let byte = ffi::RSMPI_UINT8_T;
                ffi::MPI_Iallgather(from, bytes, byte, to, bytes, byte, communicator.0, request)
            }
        })
    }

    /// Starts a barrier.
    pub fn start_barrier(&self, communicator: Communicator) -> Result<Request, CommError> {
        // SAFETY: the handle is written to valid memory.
        self.start("barrier", 0, |request| unsafe { ffi::MPI_Ibarrier(communicator.0, request) })
    }

    /// A duplicate of the world's communicator. All ranks must call it.
    pub fn duplicate(&self) -> Result<Communicator, CommError> {
        let _waiting = activity::enter(NAME, "communicator copy", None);
        // SAFETY: the new handle is written to valid memory.
        let (code, copy) = unsafe {
            let mut copy = ffi::RSMPI_COMM_NULL;
            (ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut copy), copy)
        };
        self.check(code, "communicator copy", 0, Instant::now())?;
        Ok(Communicator(copy))
    }

    /// Lets MPI answer other ranks once, in the library's own progress; no message has to arrive.
    pub fn progress(&self, communicator: Communicator) {
        let mut arrived = 0;
        // SAFETY: MPI runs, and writes one flag to memory of this function. An error has no effect
        // here: whoever waits for a message reports it.
        unsafe {
            let status = ffi::RSMPI_STATUS_IGNORE;
            ffi::MPI_Iprobe(ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG, communicator.0, &mut arrived, status);
        }
    }

    /// Frees a communicator. After an error there is only one communicator less for later
    /// use.
    ///
    /// # Safety
    /// The communicator is a [duplicate](Self::duplicate), has no operation in flight, and is
    /// not used again.
    pub unsafe fn free(&self, mut communicator: Communicator) {
        // SAFETY: the handle came from MPI_Comm_dup, and is not used again.
        unsafe { ffi::MPI_Comm_free(&mut communicator.0) };
    }

    /// Whether `request` is complete; `bytes` and `started` are for its error.
    pub fn test(&self, request: &mut Request, bytes: usize, started: Instant) -> Result<bool, CommError> {
        let mut done = 0;
        // SAFETY: the handle came from MPI and is not used after completion: MPI then sets it
        // to the null request, for which this call is valid.
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
        let mut request = Request::over(operation);
        let code = call(&mut request.handle);
        self.check(code, operation, bytes, Instant::now())?;
        Ok(request)
    }
}
