//! MPI's blocking operations, one call each.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::rc::Rc;

use mpi::ffi;

use super::sum::{datatype, sum_of};
use super::{Communicator, Mpi, NAME};
use crate::collective::compared::{Compared, Trusting};
use crate::collective::wire::Element;
use crate::member::{Member, Started};
use crate::{Call, CommError, Primitives, World};

// A function of shim.c.
unsafe extern "C" {
    fn burn_mpi_allreduce(
        buffer: *mut c_void,
        count: c_int,
        datatype: ffi::MPI_Datatype,
        op: ffi::MPI_Op,
        comm: ffi::MPI_Comm,
    ) -> c_int;
}

/// [`Primitives`] over `MPI_COMM_WORLD`. It is `!Send` and `!Sync`:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::lab::MpiPrimitives>();
/// ```
#[derive(Clone)]
pub struct MpiPrimitives(Rc<RefCell<Compared<MpiCalls>>>);

impl MpiPrimitives {
    /// The operations of `world`, which its exchanges use too.
    ///
    /// # Errors
    /// [`CommError::Transport`] if its ranks are threads.
    pub fn new(world: &World) -> Result<Self, CommError> {
        world.mpi().map(|(_, operations)| operations.clone())
    }

    /// The operations of the job. All ranks must call it, once.
    pub(crate) fn of_job(mpi: &Mpi) -> Result<Self, CommError> {
        let raw = MpiCalls {
            communicator: Communicator::world(),
            announcements: mpi.duplicate()?,
            mpi: mpi.clone(),
        };
        Ok(Self(Rc::new(RefCell::new(Compared::over(raw)))))
    }
}

impl Primitives for MpiPrimitives {
    fn transport(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.0.borrow().rank()
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.0.borrow_mut().call(call, element, from, to)
    }
}

/// Tag of every message: MPI delivers messages between two ranks in the order sent.
const TAG: c_int = 0;

/// Maximum bytes of one broadcast: MPI counts are C ints, so larger buffers are sent in
/// pieces.
const PIECE: usize = 1 << 30;

/// MPI's calls on one communicator, and announcements of them on another.
pub(crate) struct MpiCalls {
    pub mpi: Mpi,
    pub communicator: Communicator,
    pub announcements: Communicator,
}

impl Trusting for MpiCalls {
    const NAME: &'static str = NAME;

    const LOOKS_AT_MESSAGES: bool = true;

    fn member(&self) -> &Member {
        &self.mpi
    }

    fn announce(&mut self, call: Call, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.call_on(self.announcements, call, Element::Byte, from, to)
    }
}

impl MpiCalls {
    fn call_on(
        &mut self,
        on: Communicator,
        call: Call,
        element: Element,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<(), CommError> {
        if let Call::Broadcast { .. } = call
            && to.len() > PIECE
        {
            return to.chunks_mut(PIECE).try_for_each(|piece| self.call_on(on, call, element, &[], piece));
        }
        let (_waiting, started) = self.mpi.begin(NAME, call, element, from, to)?;
        if started.bytes == 0 && call.has_parts() {
            // Open MPI treats two empty buffers as aliased, which is an error.
            return Ok(());
        }
        let count = self.mpi.count(call, element, from.len(), to.len())?;
        if let Call::Receive { from } = call {
            self.await_message(on, from, &started)?;
        }
        let (kind, comm) = (datatype(element), on.0);
        let op = sum_of(element);
        let (from, to) = (from.as_ptr().cast::<c_void>(), to.as_mut_ptr().cast::<c_void>());
        // SAFETY: both buffers are borrowed until the call returns. `begin` has checked that they have the
        // values that MPI reads and writes: `count` of `kind`, or as many for each rank. One that is empty, as
        // `to` of a gather on other ranks than the root, it does not access.
        let code = unsafe {
            match call {
                Call::Send { to } => ffi::MPI_Send(from, count, kind, to as c_int, TAG, comm),
                Call::Receive { from } => {
                    let ignore = ffi::RSMPI_STATUS_IGNORE;
                    ffi::MPI_Recv(to, count, kind, from as c_int, TAG, comm, ignore)
                }
                Call::Broadcast { root } => ffi::MPI_Bcast(to, count, kind, root as c_int, comm),
                Call::AllReduce => burn_mpi_allreduce(to, count, kind, op, comm),
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

    /// Waits for the next message of rank `from`.
    ///
    /// # Errors
    /// If it has another length than the receive: Open MPI writes past the end of a buffer that is shorter than a
    /// long message.
    fn await_message(&self, on: Communicator, from: usize, of: &Started) -> Result<(), CommError> {
        let (mut status, mut length) = (MaybeUninit::<ffi::MPI_Status>::uninit(), 0);
        // SAFETY: the status is valid memory for MPI to write.
        let code = unsafe { ffi::MPI_Probe(from as c_int, TAG, on.0, status.as_mut_ptr()) };
        self.mpi.check_code(code, of)?;
        // SAFETY: the probe has succeeded, and has written the status.
        let code = unsafe { ffi::MPI_Get_count(status.as_ptr(), datatype(Element::Byte), &mut length) };
        self.mpi.check_code(code, of)?;
        if usize::try_from(length) == Ok(of.bytes) {
            return Ok(());
        }
        let reason = format!("the message has {length} bytes, and this rank receives {}", of.bytes);
        Err(self.mpi.error(of, reason))
    }
}

impl Primitives for MpiCalls {
    fn transport(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.mpi.rank
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.call_on(self.communicator, call, element, from, to)
    }
}
