//! The message-passing operations that a transport may have, one method each.
//!
//! Training needs few of them, and takes them from a [`Collective`](crate::Collective).

use crate::{CommError, Wire};

/// Blocking operations of one transport. All ranks call them in one order with
/// equally long buffers, except [`send`](Self::send) and
/// [`receive`](Self::receive), which two ranks call: a transport has both of
/// these or neither.
///
/// A transport leaves out what it cannot do.
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
/// Each method: when the transport fails, and [`CommError::Unsupported`] where
/// the transport has no such operation.
///
/// # Panics
/// Each method: when a buffer has not the length that its text asks for.
pub trait Primitives {
    /// The transport's name in errors and tables, as `mpi`.
    fn transport(&self) -> &str;

    /// Sends `buffer` to rank `to`, which receives it.
    fn send(&mut self, _buffer: &[u8], _to: usize) -> Result<(), CommError> {
        unsupported(self.transport(), "send")
    }

    /// Receives what rank `from` sends, equally long.
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

    /// Sums `mine` over all ranks into rank `root`'s `sum`, of the same type
    /// and length. What `sum` holds on other ranks afterwards is undefined.
    fn reduce(&mut self, _mine: &Wire, _sum: &mut Wire, _root: usize) -> Result<(), CommError> {
        unsupported(self.transport(), "reduce")
    }

    /// Collects every rank's `mine` in `all`, in rank order.
    fn all_gather(&mut self, _mine: &[u8], _all: &mut [u8]) -> Result<(), CommError> {
        unsupported(self.transport(), "all-gather")
    }

    /// Collects every rank's `mine` in rank `root`'s `all`, in rank order. On
    /// other ranks `all` may be empty.
    fn gather(&mut self, _mine: &[u8], _all: &mut [u8], _root: usize) -> Result<(), CommError> {
        unsupported(self.transport(), "gather")
    }

    /// Hands out rank `root`'s `all` in equal parts, one to each rank's `mine`.
    /// On other ranks `all` may be empty.
    fn scatter(&mut self, _all: &[u8], _mine: &mut [u8], _root: usize) -> Result<(), CommError> {
        unsupported(self.transport(), "scatter")
    }

    /// Sums `mine` over all ranks and hands the sum out in equal parts, one to
    /// each rank's `part`, of the same type.
    fn reduce_scatter(&mut self, _mine: &Wire, _part: &mut Wire) -> Result<(), CommError> {
        unsupported(self.transport(), "reduce-scatter")
    }

    /// Sends each rank its part of `from`, and collects this rank's part of
    /// every rank's in `to`, which is as long.
    fn all_to_all(&mut self, _from: &[u8], _to: &mut [u8]) -> Result<(), CommError> {
        unsupported(self.transport(), "all-to-all")
    }

    /// Returns once every rank has called it.
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
