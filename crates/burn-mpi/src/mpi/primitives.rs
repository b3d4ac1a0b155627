//! MPI's operations, one call each.

use std::ffi::c_int;
use std::mem::discriminant;
use std::time::Instant;

use mpi::ffi;

use crate::guard::activity;
use crate::mpi::MpiWorld;
use crate::mpi::request::Communicator;
use crate::mpi::sum::sum_of;
use crate::{Backend, CommError, Primitives, Wire, World};

/// [`Primitives`] over `MPI_COMM_WORLD`.
pub struct MpiPrimitives {
    mpi: MpiWorld,
}

/// Of every message: what two ranks exchange here arrives in the order sent.
const TAG: c_int = 0;

impl MpiPrimitives {
    /// The operations of `world`.
    pub fn new(world: &World) -> Self {
        Self { mpi: world.mpi().clone() }
    }

    /// Makes one MPI call over `length` elements, which take `bytes`.
    fn call(
        &self,
        operation: &str,
        length: usize,
        bytes: usize,
        call: impl FnOnce(c_int, ffi::MPI_Comm) -> c_int,
    ) -> Result<(), CommError> {
        let _waiting = activity::enter(Backend::Mpi, operation, None);
        let started = Instant::now();
        let count = self.mpi.count(length, operation)?;
        // SAFETY: a constant that MPI's library defines.
        let world = unsafe { ffi::RSMPI_COMM_WORLD };
        self.mpi.check(call(count, world), operation, bytes, started)
    }

    /// Checks that `all` has as many parts of `part` as there are ranks.
    fn check_parts(&self, part: usize, all: usize) {
        assert_eq!(part * self.mpi.size, all, "one part for each rank");
    }
}

impl Primitives for MpiPrimitives {
    fn backend(&self) -> Backend {
        Backend::Mpi
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
            // SAFETY: the pointer and the count describe `buffer`, which is
            // borrowed mutably until the call returns; MPI refuses a longer
            // message.
            unsafe {
                let at = buffer.as_mut_ptr().cast();
                let ignore = ffi::RSMPI_STATUS_IGNORE;
                ffi::MPI_Recv(at, count, ffi::RSMPI_UINT8_T, from as c_int, TAG, world, ignore)
            }
        })
    }

    fn broadcast(&mut self, buffer: &mut [u8], root: usize) -> Result<(), CommError> {
        self.mpi.broadcast(buffer, root)
    }

    fn all_reduce(&mut self, buffer: &mut Wire) -> Result<(), CommError> {
        self.mpi.all_reduce(buffer, Communicator::world())
    }

    fn reduce(&mut self, mine: &Wire, sum: &mut Wire, root: usize) -> Result<(), CommError> {
        assert!(mine.len() == sum.len() && discriminant(mine) == discriminant(sum), "a sum like its terms");
        let (datatype, op) = sum_of(mine);
        self.call("reduce", mine.len(), mine.bytes().len(), |count, world| {
            let (from, to) = (mine.bytes().as_ptr().cast(), sum.bytes_mut().as_mut_ptr().cast());
            // SAFETY: both buffers hold `count` values of `datatype` and are
            // borrowed until the call returns.
            unsafe { ffi::MPI_Reduce(from, to, count, datatype, op, root as c_int, world) }
        })
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), CommError> {
        self.check_parts(mine.len(), all.len());
        self.call("all-gather", mine.len(), all.len(), |count, world| {
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
        self.call("gather", mine.len(), mine.len(), |count, world| {
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
        self.call("scatter", mine.len(), mine.len(), |count, world| {
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
        assert_eq!(discriminant(mine), discriminant(part), "a sum and its terms have one type");
        let (datatype, op) = sum_of(mine);
        self.call("reduce-scatter", part.len(), mine.bytes().len(), |count, world| {
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
        self.call("all-to-all", part, from.len(), |count, world| {
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
        self.mpi.barrier()
    }
}
