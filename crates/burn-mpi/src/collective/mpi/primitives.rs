//! MPI's blocking operations, one call each.

use std::ffi::{c_int, c_void};

use mpi::ffi;

use super::sum::{datatype, sum_of};
use super::{Communicator, Mpi, NAME};
use crate::collective::wire::Element;
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
/// moves_to_another_thread::<burn_mpi::MpiPrimitives>();
/// ```
pub struct MpiPrimitives {
    mpi: Mpi,
    communicator: Communicator,
}

/// Tag of every message: MPI delivers messages between two ranks in the order sent.
const TAG: c_int = 0;

/// Maximum bytes of one broadcast: MPI counts are C ints, so larger buffers are sent in
/// pieces.
const PIECE: usize = 1 << 30;

impl MpiPrimitives {
    /// The operations of `world`.
    ///
    /// # Errors
    /// [`CommError::Transport`] if its ranks are threads.
    pub fn new(world: &World) -> Result<Self, CommError> {
        Ok(Self::over(world.mpi()?.clone(), Communicator::world()))
    }

    /// The operations of one communicator.
    pub(crate) fn over(mpi: Mpi, communicator: Communicator) -> Self {
        Self { mpi, communicator }
    }
}

impl Primitives for MpiPrimitives {
    fn transport(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.mpi.rank
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        if let Call::Broadcast { .. } = call
            && to.len() > PIECE
        {
            return to.chunks_mut(PIECE).try_for_each(|piece| self.call(call, element, &[], piece));
        }
        let bytes = from.len().max(to.len());
        let _waiting = self.mpi.begin(NAME, call, element, from, to)?;
        let started = self.mpi.now();
        let count = self.mpi.count(call, element, from.len(), to.len())?;
        let (kind, comm) = (datatype(element), self.communicator.0);
        let op = sum_of(element);
        let (from, to) = (from.as_ptr().cast::<c_void>(), to.as_mut_ptr().cast::<c_void>());
        // SAFETY: both buffers are borrowed until the call returns. `begin` has checked that they have the
        // values that MPI reads and writes: `count` of `kind`, or as many for each rank. One that is empty, as
        // `to` of a gather on other ranks than the root, it does not access.
        let code = unsafe {
            match call {
                Call::Send { to } => ffi::MPI_Send(from, count, kind, to as c_int, TAG, comm),
                Call::Receive { from } => {
                    // MPI rejects a longer message.
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
        self.mpi.check(code, call.name(), bytes, started)
    }
}
