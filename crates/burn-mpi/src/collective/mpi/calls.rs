//! Runs each blocking or non-blocking operation of a transport as one MPI call: [`MpiLink`].

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use half::{bf16, f16};
use mpi::ffi;

use crate::collective::mpi::{Mpi, NAME};
use crate::collective::pending::{CHANNELS, Launch, Link, Transfer};
use crate::collective::wire::{Element, Sum};
use crate::member::{Member, Started};
use crate::{Call, CommError, Operation, Wire};

unsafe extern "C" {
    /// `MPI_IN_PLACE` (shim.c).
    safe fn burn_mpi_in_place() -> *const c_void;
}

/// Tag of every message. MPI delivers messages between two ranks in the order sent, so one tag is enough.
const TAG: c_int = 0;

/// Maximum bytes of one broadcast: MPI counts are C ints, so larger buffers are sent in pieces.
const PIECE: usize = 1 << 30;

/// MPI as a transport. Each channel, an independent sequence of calls, has its own communicator. Each
/// `MpiLink` has its own channels, so ranks may interleave the calls of several links in different orders.
///
/// Open MPI makes progress on a non-blocking operation only inside MPI calls, so an operation overlaps with
/// computation only if [`poll`](crate::Collective::poll) is called often.
pub struct MpiLink {
    mpi: Mpi,
    channels: [ffi::MPI_Comm; CHANNELS],
    in_flight: usize,
}

impl MpiLink {
    /// Duplicates the world's communicator for each channel. All ranks must call it.
    pub(crate) fn new(mpi: Mpi) -> Result<Self, CommError> {
        let channels = [mpi.duplicate()?, mpi.duplicate()?, mpi.duplicate()?, mpi.duplicate()?];
        Ok(Self { channels, mpi, in_flight: 0 })
    }

    /// Waits for the next message of rank `from`, and checks its length.
    ///
    /// # Errors
    /// If MPI fails, or if the message is not as long as the receive buffer. Open MPI would write a longer
    /// message past the end of the buffer.
    fn await_message(&self, channel: usize, from: usize, started: &Started) -> Result<(), CommError> {
        let (mut status, mut length) = (MaybeUninit::<ffi::MPI_Status>::uninit(), 0);
        // SAFETY: the status is valid memory for MPI to write.
        let code = unsafe { ffi::MPI_Probe(from as c_int, TAG, self.channels[channel], status.as_mut_ptr()) };
        self.mpi.check_code(code, started)?;
        // SAFETY: the probe has succeeded, and has written the status.
        let code = unsafe { ffi::MPI_Get_count(status.as_ptr(), datatype(Element::Byte), &mut length) };
        self.mpi.check_code(code, started)?;
        if usize::try_from(length) == Ok(started.bytes) {
            return Ok(());
        }
        let reason = format!("the message has {length} bytes, but this rank receives {}", started.bytes);
        Err(self.mpi.error(started, reason))
    }
}

/// A non-blocking operation in flight, with the buffers that MPI reads and writes until the operation is
/// complete. The heap memory of the buffers does not move when the request moves.
pub struct Request {
    handle: ffi::MPI_Request,
    started: Started,
    /// `None` once complete.
    buffers: Option<(Wire, Wire)>,
}

impl Drop for Request {
    /// Leaks the buffers of an operation that is not complete, because MPI may still write to them after an
    /// error.
    fn drop(&mut self) {
        std::mem::forget(self.buffers.take());
    }
}

impl Link for MpiLink {
    type Request = Request;

    const NAME: &'static str = NAME;

    fn member(&self) -> &Member {
        &self.mpi
    }

    fn call(&mut self, transfer: Transfer, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let Transfer { operation: Operation { call, element, .. }, channel, started } = transfer;
        if let Call::Broadcast { .. } = call
            && to.len() > PIECE
        {
            return to.chunks_mut(PIECE).try_for_each(|to| self.call(transfer, &[], to));
        }
        let count = self.mpi.count(call, element, from.len(), to.len())?;
        if let Call::Receive { from } = call {
            self.await_message(channel, from, &started)?;
        }
        let (kind, comm) = (datatype(element), self.channels[channel]);
        let op = sum_of(element);
        let (from, to) = (from.as_ptr().cast::<c_void>(), to.as_mut_ptr().cast::<c_void>());
        // SAFETY: both buffers are borrowed until the call returns. `Call::check` has checked that they have
        // the values that MPI reads and writes: `count` values of `kind`, or `count` values for each rank.
        // MPI does not access an empty buffer, such as `to` of a gather on ranks other than the root.
        let code = unsafe {
            match call {
                Call::Send { to } => ffi::MPI_Send(from, count, kind, to as c_int, TAG, comm),
                Call::Receive { from } => {
                    let ignore = ffi::RSMPI_STATUS_IGNORE;
                    ffi::MPI_Recv(to, count, kind, from as c_int, TAG, comm, ignore)
                }
                Call::Broadcast { root } => ffi::MPI_Bcast(to, count, kind, root as c_int, comm),
                Call::AllReduce => ffi::MPI_Allreduce(burn_mpi_in_place(), to, count, kind, op, comm),
                Call::Reduce { root } => ffi::MPI_Reduce(from, to, count, kind, op, root as c_int, comm),
                Call::AllGather => ffi::MPI_Allgather(from, count, kind, to, count, kind, comm),
                Call::Gather { root } => {
                    ffi::MPI_Gather(from, count, kind, to, count, kind, root as c_int, comm)
                }
                Call::Scatter { root } => {
                    ffi::MPI_Scatter(from, count, kind, to, count, kind, root as c_int, comm)
                }
                Call::ReduceScatter => ffi::MPI_Reduce_scatter_block(from, to, count, kind, op, comm),
                Call::AllToAll => ffi::MPI_Alltoall(from, count, kind, to, count, kind, comm),
                Call::Barrier => ffi::MPI_Barrier(comm),
            }
        };
        self.mpi.check_code(code, &started)
    }

    fn start(&mut self, launch: Launch) -> Result<Request, CommError> {
        let Launch { transfer, buffers: (from, mut to), .. } = launch;
        let Transfer { operation: Operation { call, .. }, channel, started } = transfer;
        let element = to.element();
        assert_eq!(from.element(), element, "both buffers must have the same element type");
        call.check(element, from.bytes(), to.bytes(), self.mpi.rank, self.mpi.size)
            .map_err(|reason| self.mpi.error(&started, reason))?;
        let count = self.mpi.count(call, element, from.bytes().len(), to.bytes().len())?;
        let (kind, op, comm) = (datatype(element), sum_of(element), self.channels[channel]);
        // SAFETY: a constant that MPI's library defines.
        let mut handle = unsafe { ffi::RSMPI_REQUEST_NULL };
        let (read, written) = (from.bytes().as_ptr().cast(), to.bytes_mut().as_mut_ptr().cast());
        // SAFETY: the lengths of both buffers were checked above against what MPI reads and writes: `count`
        // values of `kind`, or `count` values for each rank. The request below owns both buffers. Nobody
        // accesses them before the request is complete, and a request that is dropped earlier leaks them.
        let code = unsafe {
            match call {
                Call::AllReduce => {
                    ffi::MPI_Iallreduce(burn_mpi_in_place(), written, count, kind, op, comm, &mut handle)
                }
                Call::ReduceScatter => {
                    ffi::MPI_Ireduce_scatter_block(read, written, count, kind, op, comm, &mut handle)
                }
                Call::AllToAll => {
                    ffi::MPI_Ialltoall(read, count, kind, written, count, kind, comm, &mut handle)
                }
                Call::AllGather => {
                    ffi::MPI_Iallgather(read, count, kind, written, count, kind, comm, &mut handle)
                }
                other => unreachable!("{} has no non-blocking form", other.name()),
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
}

impl Drop for MpiLink {
    fn drop(&mut self) {
        if self.in_flight == 0 && !std::thread::panicking() {
            // SAFETY: all channels are duplicates with no operation in flight, and are not used again. An
            // error is ignored: it only means that MPI keeps an unused communicator.
            self.channels.iter_mut().for_each(|channel| unsafe {
                ffi::MPI_Comm_free(channel);
            });
        }
    }
}

/// Returns MPI's datatype for values of type `element`. 16-bit floats are sent as 16-bit integers, and
/// [`sum_of`] returns the operations that sum them.
pub(super) fn datatype(element: Element) -> ffi::MPI_Datatype {
    // SAFETY: constants that MPI's library defines.
    unsafe {
        match element {
            Element::F32 => ffi::RSMPI_FLOAT,
            Element::F64 => ffi::RSMPI_DOUBLE,
            Element::Bf16 | Element::F16 => ffi::RSMPI_UINT16_T,
            Element::Byte => ffi::RSMPI_UINT8_T,
        }
    }
}

/// Returns the MPI operation that sums values of type `element`. Bytes are never summed, so their operation
/// is never used.
pub(super) fn sum_of(element: Element) -> ffi::MPI_Op {
    match element {
        Element::Bf16 => BF16_SUM.with(|op| *op),
        Element::F16 => F16_SUM.with(|op| *op),
        // SAFETY: a constant that MPI's library defines.
        _ => unsafe { ffi::RSMPI_SUM },
    }
}

thread_local! {
    // MPI operations, created on first use and kept until the process exits. Only one thread calls MPI, so
    // each operation is created once.
    static BF16_SUM: ffi::MPI_Op = sum_op(add::<bf16>);
    static F16_SUM: ffi::MPI_Op = sum_op(add::<f16>);
}

type UserFunction = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut ffi::MPI_Datatype);

fn sum_op(function: UserFunction) -> ffi::MPI_Op {
    // SAFETY: `function` has the signature that MPI requires and adds 16-bit elements; 1 marks the operation
    // as commutative.
    unsafe {
        let mut op = ffi::RSMPI_SUM;
        ffi::MPI_Op_create(Some(function), 1, &mut op);
        op
    }
}

/// Adds MPI's `input` to `sum`, two buffers of 16-bit floats.
///
/// # Safety
/// Called by MPI: `input` and `sum` point at `*length` elements and do not overlap.
unsafe extern "C" fn add<T: Sum>(
    input: *mut c_void,
    sum: *mut c_void,
    length: *mut c_int,
    _: *mut ffi::MPI_Datatype,
) {
    // SAFETY: see above.
    unsafe {
        let length = *length as usize;
        let input = std::slice::from_raw_parts(input.cast::<T>(), length);
        T::ADD(std::slice::from_raw_parts_mut(sum.cast::<T>(), length), input);
    }
}
