//! A safe layer over the MPI calls that this crate needs.
//!
//! rsmpi starts MPI and provides the bindings. Its own collectives discard return codes,
//! support neither `MPI_IN_PLACE` nor 16-bit floats, and tie requests to scopes; so the
//! calls here use the bindings directly, set `MPI_ERRORS_RETURN`, and check every code.

pub mod collective;
pub(crate) mod library;
pub mod primitives;
pub(crate) mod request;
mod sum;

use std::ffi::c_int;
use std::time::{Duration, Instant};

use mpi::ffi;

use self::library::describe;
use crate::{CommError, Wire};

/// The transport's name.
pub(crate) const NAME: &str = "mpi";

/// This process's rank in the job, and the rank and host for error messages.
///
/// MPI runs from before the first of these is created until the process exits
/// ([`crate::guard::farewell`]), so any holder may call MPI on the thread that started
/// it. A type that holds one behind an `Rc` is `!Send`.
#[derive(Debug, Clone)]
pub(crate) struct MpiWorld {
    pub rank: usize,
    pub size: usize,
    pub host: String,
    /// Whether to yield the core while waiting, because another rank needs it.
    pub yields: bool,
}

impl MpiWorld {
    /// Queries rank and size, and sets MPI to return errors instead of aborting the
    /// process.
    ///
    /// # Safety
    /// MPI is initialised, by this thread, and is not finalized before the process exits.
    pub unsafe fn new(host: String) -> Result<Self, CommError> {
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

    /// Yields the core to another rank if ranks share cores.
    pub fn pause(&self) {
        match self.yields {
            true => std::thread::yield_now(),
            false => std::hint::spin_loop(),
        }
    }

    /// A number of elements, or of bytes, as an MPI count.
    fn count(&self, elements: usize, operation: &str) -> Result<c_int, CommError> {
        let reason = || "more elements than MPI counts in one call; use smaller buckets".into();
        c_int::try_from(elements).map_err(|_| self.error(operation, elements, Duration::ZERO, reason()))
    }

    /// Datatype and operation that sum a buffer like `buffer`.
    fn sum_of(&self, buffer: &Wire, operation: &str) -> Result<(ffi::MPI_Datatype, ffi::MPI_Op), CommError> {
        sum::sum_of(buffer).ok_or_else(|| {
            let reason = "bytes have no sum".into();
            self.error(operation, buffer.bytes().len(), Duration::ZERO, reason)
        })
    }

    fn check(&self, code: c_int, operation: &str, bytes: usize, started: Instant) -> Result<(), CommError> {
        match code {
            0 => Ok(()),
            _ => Err(self.error(operation, bytes, started.elapsed(), explained(describe(code)))),
        }
    }

    /// The error of an MPI operation that failed, or was never started, for `reason`.
    fn error(&self, operation: &str, bytes: usize, elapsed: Duration, reason: String) -> CommError {
        self.error_over(NAME, operation, bytes, elapsed, reason)
    }

    /// The same for any transport.
    pub fn error_over(
        &self,
        transport: &str,
        operation: &str,
        bytes: usize,
        elapsed: Duration,
        reason: String,
    ) -> CommError {
        CommError::Operation {
            rank: self.rank,
            host: self.host.clone(),
            operation: format!("{transport} {operation}"),
            bytes,
            elapsed,
            reason,
        }
    }
}

/// MPI's error string, and what it means for collectives.
fn explained(text: String) -> String {
    match text.contains("TRUNCATE") || text.contains("truncated") {
        true => format!("{text}; ranks call different operations, or the same ones on different sizes"),
        false => text,
    }
}
