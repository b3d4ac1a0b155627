//! Non-blocking MPI operations.

use std::ffi::{c_int, c_void};

use mpi::ffi;

use super::primitives::MpiCalls;
use super::sum::{datatype, sum_of};
use super::{Communicator, Mpi, NAME};
use crate::collective::announced::Announcement;
use crate::collective::pending::{CHANNELS, Requests, Step};
use crate::member::{Member, Started};
use crate::{Call, CommError, Primitives, Wire};

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

/// A non-blocking operation in flight, with the buffers that MPI reads and writes until it is complete.
/// Their heap memory does not move when this does.
pub struct Request {
    handle: ffi::MPI_Request,
    started: Started,
    /// `None` once complete.
    buffers: Option<(Wire, Wire)>,
}

impl Drop for Request {
    /// After an error, MPI may still write to buffers in flight: that memory is leaked rather
    /// than freed.
    fn drop(&mut self) {
        std::mem::forget(self.buffers.take());
    }
}

/// MPI's non-blocking operations, on communicators of their own: with another collective of the same
/// world, ranks may interleave calls in a different order.
pub struct MpiRequests {
    mpi: Mpi,
    channels: [Communicator; CHANNELS],
    blocking: MpiCalls,
    in_flight: usize,
}

impl MpiRequests {
    /// All ranks must call it.
    pub(super) fn new(mpi: Mpi) -> Result<Self, CommError> {
        let channels = [mpi.duplicate()?, mpi.duplicate()?, mpi.duplicate()?];
        let [communicator, .., announcements] = channels;
        let blocking = MpiCalls { mpi: mpi.clone(), communicator, announcements };
        Ok(Self { mpi, channels, blocking, in_flight: 0 })
    }
}

impl Requests for MpiRequests {
    type Request = Request;

    const NAME: &'static str = NAME;

    fn member(&self) -> &Member {
        &self.mpi
    }

    fn start(
        &mut self,
        step: Step,
        _: Option<Announcement>,
        from: Wire,
        mut to: Wire,
    ) -> Result<Request, CommError> {
        let Step { call, channel, .. } = step;
        let (element, started) = (to.element(), step.started(&self.mpi, NAME, &from, &to));
        assert_eq!(from.element(), element, "buffers of one type");
        call.check(element, from.bytes(), to.bytes(), (self.mpi.rank, self.mpi.size));
        let count = self.mpi.count(call, element, from.bytes().len(), to.bytes().len())?;
        let (kind, op, comm) = (datatype(element), sum_of(element), self.channels[channel].0);
        // SAFETY: a constant that MPI's library defines.
        let mut handle = unsafe { ffi::RSMPI_REQUEST_NULL };
        let (read, written) = (from.bytes().as_ptr().cast(), to.bytes_mut().as_mut_ptr().cast());
        // SAFETY: the lengths of both buffers were checked above against what MPI reads and writes: `count` of
        // `kind`, or as many for each rank. The request below owns them, nobody accesses them before it is
        // complete, and it leaks them if it is dropped before that.
        let code = unsafe {
            match call {
                Call::AllReduce => burn_mpi_iallreduce(written, count, kind, op, comm, &mut handle),
                Call::ReduceScatter => {
                    ffi::MPI_Ireduce_scatter_block(read, written, count, kind, op, comm, &mut handle)
                }
                Call::AllToAll => {
                    ffi::MPI_Ialltoall(read, count, kind, written, count, kind, comm, &mut handle)
                }
                Call::AllGather => {
                    ffi::MPI_Iallgather(read, count, kind, written, count, kind, comm, &mut handle)
                }
                other => unreachable!("{} is not started", other.name()),
            }
        };
        let request = Request { handle, started, buffers: Some((from, to)) };
        self.mpi.check_code(code, &started)?;
        self.in_flight += 1;
        Ok(request)
    }

    fn test(&mut self, request: &mut Request) -> Result<Option<(Wire, Wire)>, CommError> {
        let is_complete = self.mpi.test(&mut request.handle, &request.started)?;
        if is_complete {
            self.in_flight -= 1;
        }
        Ok(request.buffers.take_if(|_| is_complete))
    }

    fn pause(&mut self) -> Result<(), CommError> {
        self.mpi.pause();
        Ok(())
    }

    fn blocking(&mut self) -> &mut dyn Primitives {
        &mut self.blocking
    }
}

impl Drop for MpiRequests {
    fn drop(&mut self) {
        if self.in_flight == 0 && !std::thread::panicking() {
            // SAFETY: all are duplicates with no operation in flight, and are not used again. After an
            // error there is only one communicator less for later use.
            self.channels.iter_mut().for_each(|channel| unsafe {
                ffi::MPI_Comm_free(&mut channel.0);
            });
        }
    }
}

impl Mpi {
    /// A barrier on `communicator`, in flight.
    pub fn start_barrier(
        &self,
        communicator: Communicator,
        of: &Started,
    ) -> Result<ffi::MPI_Request, CommError> {
        // SAFETY: a constant that MPI's library defines.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the handle is written to valid memory.
        let code = unsafe { ffi::MPI_Ibarrier(communicator.0, &mut request) };
        self.check_code(code, of)?;
        Ok(request)
    }

    /// A duplicate of the world's communicator. All ranks must call it.
    pub fn duplicate(&self) -> Result<Communicator, CommError> {
        const COPY: &str = "communicator copy";
        let (_waiting, started) = (self.enter(NAME, COPY, None), self.started(NAME, COPY, 0));
        // SAFETY: the new handle is written to valid memory.
        let (code, copy) = unsafe {
            let mut copy = ffi::RSMPI_COMM_NULL;
            (ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut copy), copy)
        };
        self.check_code(code, &started)?;
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

    /// Whether an operation in flight is complete.
    pub fn test(&self, request: &mut ffi::MPI_Request, of: &Started) -> Result<bool, CommError> {
        let mut done = 0;
        // SAFETY: the handle came from MPI and is not used after completion: MPI then sets it
        // to the null request, for which this call is valid.
        let code = unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
        self.check_code(code, of)?;
        Ok(done != 0)
    }
}
