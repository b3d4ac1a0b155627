//! Blocking message-passing operations of a transport, one method each.
//!
//! Training needs few of them, through a [`Collective`](crate::Collective).

use crate::{CommError, Wire};

/// Blocking operations of one transport. All ranks call them in the same order with
/// buffers of equal length, except [`send`](Self::send) and [`receive`](Self::receive),
/// which two ranks call: a transport has both of these or neither.
///
/// A transport omits operations that it does not support.
///
/// ```no_run
/// # use burn_mpi::{CommError, MpiPrimitives, Primitives, World};
/// # fn example(world: &World) -> Result<(), CommError> {
/// let mut operations = MpiPrimitives::new(world);
/// let mut all = vec![0; world.size()];
/// operations.all_gather(&[world.rank() as u8], &mut all)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Each method: if the transport fails, and [`CommError::Unsupported`] if the transport
/// has no such operation.
///
/// # Panics
/// Each method: if a buffer does not have the required length.
pub trait Primitives {
    /// The transport's name in errors and tables, such as `mpi`.
    fn transport(&self) -> &str;

    /// Sends `buffer` to rank `to`, which receives it.
    fn send(&mut self, _buffer: &[u8], _to: usize) -> Result<(), CommError> {
        unsupported(self.transport(), "send")
    }

    /// Receives what rank `from` sends, with the same length.
    fn receive(&mut self, _buffer: &mut [u8], _from: usize) -> Result<(), CommError> {
        unsupported(self.transport(), "recv")
    }

    /// Overwrites `buffer` on all ranks with rank `root`'s.
    fn broadcast(&mut self, _buffer: &mut [u8], _root: usize) -> Result<(), CommError> {
        unsupported(self.transport(), "broadcast")
    }

    /// Sums `buffer` over all ranks, in place.
    fn all_reduce(&mut self, _buffer: &mut Wire) -> Result<(), CommError> {
        unsupported(self.transport(), "all-reduce")
    }

    /// Sums `mine` over all ranks into rank `root`'s `sum`, of the same type and
    /// length. On other ranks `sum` is undefined afterwards.
    fn reduce(&mut self, _mine: &Wire, _sum: &mut Wire, _root: usize) -> Result<(), CommError> {
        unsupported(self.transport(), "reduce")
    }

    /// Gathers every rank's `mine` into `all`, in rank order.
    fn all_gather(&mut self, _mine: &[u8], _all: &mut [u8]) -> Result<(), CommError> {
        unsupported(self.transport(), "all-gather")
    }

    /// Gathers every rank's `mine` into rank `root`'s `all`, in rank order. On other
    /// ranks `all` may be empty.
    fn gather(&mut self, _mine: &[u8], _all: &mut [u8], _root: usize) -> Result<(), CommError> {
        unsupported(self.transport(), "gather")
    }

    /// Scatters rank `root`'s `all` in equal parts, one to each rank's `mine`. On other
    /// ranks `all` may be empty.
    fn scatter(&mut self, _all: &[u8], _mine: &mut [u8], _root: usize) -> Result<(), CommError> {
        unsupported(self.transport(), "scatter")
    }

    /// Reduce-scatter: sums `mine` over all ranks and returns the sum in equal parts,
    /// one in each rank's `part`, of the same type.
    fn reduce_scatter(&mut self, _mine: &Wire, _part: &mut Wire) -> Result<(), CommError> {
        unsupported(self.transport(), "reduce-scatter")
    }

    /// All-to-all: sends each rank its part of `from`, and receives this rank's part of
    /// every rank's `from` into `to`, of the same length.
    fn all_to_all(&mut self, _from: &[u8], _to: &mut [u8]) -> Result<(), CommError> {
        unsupported(self.transport(), "all-to-all")
    }

    /// Barrier: returns once every rank has called it.
    fn barrier(&mut self) -> Result<(), CommError> {
        unsupported(self.transport(), "barrier")
    }
}

fn unsupported(transport: &str, operation: &'static str) -> Result<(), CommError> {
    Err(CommError::Unsupported { operation, transport: transport.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Primitives for Nothing {
        fn transport(&self) -> &str {
            "nccl"
        }
    }

    #[test]
    fn what_a_transport_leaves_out_is_named_with_it() {
        let error = Nothing.reduce_scatter(&Wire::F32(vec![]), &mut Wire::F32(vec![])).unwrap_err();
        assert_eq!(error.to_string(), "reduce-scatter is not supported by nccl");
    }
}
