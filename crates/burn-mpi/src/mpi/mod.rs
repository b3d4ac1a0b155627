//! A safe layer over the MPI calls that this program needs.
//!
//! rsmpi starts MPI and carries the bindings. Its own collectives discard
//! return codes, know neither `MPI_IN_PLACE` nor 16-bit floats, and tie
//! requests to scopes; so the calls here go to the bindings directly, set
//! `MPI_ERRORS_RETURN`, and check every code.

pub mod collective;
pub(crate) mod library;
pub mod primitives;
pub(crate) mod request;
pub(crate) mod sum;

use std::ffi::{c_int, c_void};
use std::time::Instant;

use mpi::ffi;

use crate::Wire;
use crate::guard::activity;
use crate::mpi::library::describe;
use crate::mpi::sum::sum_of;
use crate::{Backend, CommError};

// A function of mpi_shim.c.
unsafe extern "C" {
    fn mpiburn_allreduce(
        buffer: *mut c_void,
        count: c_int,
        datatype: ffi::MPI_Datatype,
        op: ffi::MPI_Op,
        comm: ffi::MPI_Comm,
    ) -> c_int;
}

/// Bytes moved by one call at most: MPI counts are C ints, so larger buffers
/// go in pieces.
const CHUNK_BYTES: usize = 1 << 30;

/// `MPI_COMM_WORLD`, with the rank and host that its errors are signed with.
#[derive(Debug, Clone)]
pub(crate) struct MpiWorld {
    pub rank: usize,
    pub size: usize,
    pub host: String,
    /// Whether to give the core away while waiting, since another rank needs it.
    pub yields: bool,
}

/// Element types that MPI sums for us.
pub(crate) trait Reducible: Copy {
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
    pub fn all_reduce(
        &self,
        buffer: &mut Wire,
        communicator: request::Communicator,
    ) -> Result<(), CommError> {
        let _waiting = activity::enter(Backend::Mpi, "all-reduce", None);
        let started = Instant::now();
        let count = self.count(buffer.len(), "all-reduce")?;
        let (datatype, op) = sum_of(buffer);
        let bytes = buffer.bytes_mut();
        // SAFETY: the pointer, count and datatype describe `buffer`, which is
        // borrowed mutably until the call returns.
        let code =
            unsafe { mpiburn_allreduce(bytes.as_mut_ptr().cast(), count, datatype, op, communicator.0) };
        self.check(code, "all-reduce", bytes.len(), started)
    }

    /// Gives the core to another rank for a moment, where one needs it.
    pub fn pause(&self) {
        match self.yields {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
    }

    pub(crate) fn count(&self, elements: usize, operation: &str) -> Result<c_int, CommError> {
        c_int::try_from(elements).map_err(|_| CommError::Operation {
            rank: self.rank,
            host: self.host.clone(),
            operation: format!("mpi {operation}"),
            bytes: elements,
            elapsed: std::time::Duration::ZERO,
            reason: "more elements than MPI counts in one call; use smaller buckets".into(),
        })
    }

    pub(crate) fn check(
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
            reason: explained(describe(code)),
        })
    }
}

/// MPI's words, and what they mean for collectives.
fn explained(words: String) -> String {
    match words.contains("TRUNCATE") || words.contains("truncated") {
        true => format!("{words}; ranks call different operations, or the same ones on different sizes"),
        false => words,
    }
}
