//! MPI's blocking operations, one call each.

use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::time::Instant;

use mpi::ffi;

use super::request::Communicator;
use super::{MpiWorld, NAME};
use crate::guard::activity;
use crate::{CommError, Primitives, Wire, World};

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
    mpi: Rc<MpiWorld>,
    communicator: Communicator,
}

/// Tag of every message: MPI delivers messages between two ranks in the order sent.
const TAG: c_int = 0;

/// Maximum bytes of one broadcast: MPI counts are C ints, so larger buffers are sent in
/// pieces.
const PIECE: usize = 1 << 30;

impl MpiPrimitives {
    /// The operations of `world`.
    pub fn new(world: &World) -> Self {
        Self::of(Rc::clone(world.mpi()))
    }

    /// The same, before a `World` exists.
    pub(crate) fn of(mpi: Rc<MpiWorld>) -> Self {
        Self::over(mpi, Communicator::world())
    }

    /// The operations of one communicator.
    pub(super) fn over(mpi: Rc<MpiWorld>, communicator: Communicator) -> Self {
        Self { mpi, communicator }
    }

    /// Makes one MPI call on `length` elements of `bytes` bytes in total.
    fn call(
        &self,
        operation: &str,
        length: usize,
        bytes: usize,
        call: impl FnOnce(c_int, ffi::MPI_Comm) -> c_int,
    ) -> Result<(), CommError> {
        let _waiting = activity::enter(NAME, operation, None);
        let started = Instant::now();
        let count = self.mpi.count(length, operation)?;
        self.mpi.check(call(count, self.communicator.0), operation, bytes, started)
    }

    /// The same for a collective. Without elements nothing is called: Open MPI treats two
    /// empty buffers as aliased, which is an error.
    fn collective(
        &self,
        operation: &str,
        length: usize,
        bytes: usize,
        call: impl FnOnce(c_int, ffi::MPI_Comm) -> c_int,
    ) -> Result<(), CommError> {
        match length {
            0 => Ok(()),
            _ => self.call(operation, length, bytes, call),
        }
    }

    /// Checks that `all` has as many parts of `part` as there are ranks.
    fn check_parts(&self, part: usize, all: usize) {
        assert_eq!(part * self.mpi.size, all, "one part for each rank");
    }
}

impl Primitives for MpiPrimitives {
    fn transport(&self) -> &str {
        NAME
    }

    fn send(&mut self, buffer: &[u8], to: usize) -> Result<(), CommError> {
        self.call("send", buffer.len(), buffer.len(), |count, world| {
            // SAFETY: the pointer and the count describe `buffer`, which is
            // borrowed until the call returns.
            unsafe {
                let at = buffer.as_ptr().cast();
                ffi::MPI_Send(at, count, ffi::RSMPI_UINT8_T, to as c_int, TAG, world)
            }
        })
    }

    fn receive(&mut self, buffer: &mut [u8], from: usize) -> Result<(), CommError> {
        self.call("receive", buffer.len(), buffer.len(), |count, world| {
            // SAFETY: the pointer and the count describe `buffer`, which is borrowed mutably
            // until the call returns; MPI rejects a longer message.
            unsafe {
                let at = buffer.as_mut_ptr().cast();
                let ignore = ffi::RSMPI_STATUS_IGNORE;
                ffi::MPI_Recv(at, count, ffi::RSMPI_UINT8_T, from as c_int, TAG, world, ignore)
            }
        })
    }

    fn broadcast(&mut self, buffer: &mut [u8], root: usize) -> Result<(), CommError> {
        for piece in buffer.chunks_mut(PIECE) {
            self.collective("broadcast", piece.len(), piece.len(), |count, world| {
                let at = piece.as_mut_ptr().cast();
                // SAFETY: the pointer and the count describe `piece`, which is
                // borrowed mutably until the call returns.
                unsafe { ffi::MPI_Bcast(at, count, ffi::RSMPI_UINT8_T, root as c_int, world) }
            })?;
        }
        Ok(())
    }

    fn all_reduce(&mut self, buffer: &mut Wire) -> Result<(), CommError> {
        let (datatype, op) = self.mpi.sum_of(buffer, "all-reduce")?;
        self.collective("all-reduce", buffer.len(), buffer.bytes().len(), |count, world| {
            let at = buffer.bytes_mut().as_mut_ptr().cast();
            // SAFETY: the pointer, count and datatype describe `buffer`, which is
            // borrowed mutably until the call returns.
            unsafe { burn_mpi_allreduce(at, count, datatype, op, world) }
        })
    }

    fn reduce(&mut self, mine: &Wire, sum: &mut Wire, root: usize) -> Result<(), CommError> {
        assert!(mine.len() == sum.len() && mine.is_like(sum), "a sum like its terms");
        let (datatype, op) = self.mpi.sum_of(mine, "reduce")?;
        self.collective("reduce", mine.len(), mine.bytes().len(), |count, world| {
            let (from, to) = (mine.bytes().as_ptr().cast(), sum.bytes_mut().as_mut_ptr().cast());
            // SAFETY: both buffers hold `count` values of `datatype` and are
            // borrowed until the call returns.
            unsafe { ffi::MPI_Reduce(from, to, count, datatype, op, root as c_int, world) }
        })
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), CommError> {
        self.check_parts(mine.len(), all.len());
        self.collective("all-gather", mine.len(), all.len(), |count, world| {
            let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
            // SAFETY: `all` has `count` bytes for each rank; both buffers are
            // borrowed until the call returns.
            unsafe {
                let byte = ffi::RSMPI_UINT8_T;
                ffi::MPI_Allgather(from, count, byte, to, count, byte, world)
            }
        })
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8], root: usize) -> Result<(), CommError> {
        if self.mpi.rank == root {
            self.check_parts(mine.len(), all.len());
        }
        self.collective("gather", mine.len(), mine.len(), |count, world| {
            let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
            // SAFETY: as in `all_gather`; MPI writes to `all` on the root only.
            unsafe {
                let byte = ffi::RSMPI_UINT8_T;
                ffi::MPI_Gather(from, count, byte, to, count, byte, root as c_int, world)
            }
        })
    }

    fn scatter(&mut self, all: &[u8], mine: &mut [u8], root: usize) -> Result<(), CommError> {
        if self.mpi.rank == root {
            self.check_parts(mine.len(), all.len());
        }
        self.collective("scatter", mine.len(), mine.len(), |count, world| {
            let (from, to) = (all.as_ptr().cast(), mine.as_mut_ptr().cast());
            // SAFETY: as in `gather`, the other way round: MPI reads `all` on
            // the root only.
            unsafe {
                let byte = ffi::RSMPI_UINT8_T;
                ffi::MPI_Scatter(from, count, byte, to, count, byte, root as c_int, world)
            }
        })
    }

    fn reduce_scatter(&mut self, mine: &Wire, part: &mut Wire) -> Result<(), CommError> {
        self.check_parts(part.len(), mine.len());
        assert!(mine.is_like(part), "a sum and its terms have one type");
        let (datatype, op) = self.mpi.sum_of(mine, "reduce-scatter")?;
        self.collective("reduce-scatter", part.len(), mine.bytes().len(), |count, world| {
            let (from, to) = (mine.bytes().as_ptr().cast(), part.bytes_mut().as_mut_ptr().cast());
            // SAFETY: `part` holds `count` values of `datatype` and `mine` as
            // many for each rank; both are borrowed until the call returns.
            unsafe { ffi::MPI_Reduce_scatter_block(from, to, count, datatype, op, world) }
        })
    }

    fn all_to_all(&mut self, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let part = to.len() / self.mpi.size;
        self.check_parts(part, to.len());
        self.check_parts(part, from.len());
        self.collective("all-to-all", part, from.len(), |count, world| {
            let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
            // SAFETY: both buffers have `count` bytes for each rank and are
            // borrowed until the call returns.
            unsafe {
                let byte = ffi::RSMPI_UINT8_T;
                ffi::MPI_Alltoall(from, count, byte, to, count, byte, world)
            }
        })
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        // SAFETY: has no buffers.
        self.call("barrier", 0, 0, |_, world| unsafe { ffi::MPI_Barrier(world) })
    }
}
