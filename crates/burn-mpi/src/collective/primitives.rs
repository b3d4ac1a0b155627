//! Blocking message-passing operations of a transport, one method each.
//!
//! The small exchanges of a [`World`](crate::World) and the benchmarks use these operations. Gradients are
//! averaged through a [`Collective`](crate::Collective).

use super::operation::Call;
use super::wire::Element;
use crate::{CommError, Wire};

/// Blocking operations of one transport. All ranks call them in the same order with buffers of equal length.
/// [`send`](Self::send) and [`receive`](Self::receive) are the exception: one rank sends, and one other rank
/// receives. A transport has both of them or neither.
///
/// A transport implements [`call`](Self::call), which returns [`CommError::Unsupported`] for operations that
/// it does not have.
///
/// ```no_run
/// # use burn_mpi::connect_primitives;
/// # use burn_mpi::{Backend, CommError, Transport, World};
/// # fn example(world: &World) -> Result<(), CommError> {
/// let mut operations = connect_primitives(world, Backend::Mpi, &Transport::default())?;
/// let mut all = vec![0; world.size()];
/// operations.all_gather(&[world.rank() as u8], &mut all)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Each method: if the transport fails, and [`CommError::Unsupported`] if the transport has no such
/// operation. Over MPI and gloo, [`SharedError::OutOfStep`](crate::SharedError::OutOfStep) on all ranks if
/// their calls, types or lengths differ (see [`Collective`](crate::Collective)).
///
/// # Panics
/// Each method: if a buffer does not have the required length, or if the two buffers of a sum have different
/// types.
#[expect(clippy::missing_errors_doc, reason = "above, for all methods")]
pub trait Primitives {
    /// The transport's name in errors and tables, such as `mpi`.
    fn transport(&self) -> &str;

    /// This rank.
    fn rank(&self) -> usize;

    /// Runs `call` on values of type `element`: reads their bytes from `from` and writes their bytes to `to`.
    /// The methods below show which buffers each call takes. A broadcast and an all-reduce are in place, in
    /// `to`. A rank with nothing to read or nothing to write passes an empty buffer.
    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError>;

    /// Sends `buffer` to rank `to`, which receives it.
    fn send(&mut self, buffer: &[u8], to: usize) -> Result<(), CommError> {
        self.call(Call::Send { to }, Element::Byte, buffer, &mut [])
    }

    /// Receives a message from rank `from`. The message must be as long as `buffer`.
    fn receive(&mut self, buffer: &mut [u8], from: usize) -> Result<(), CommError> {
        self.call(Call::Receive { from }, Element::Byte, &[], buffer)
    }

    /// Overwrites `buffer` on all ranks with the `buffer` of rank `root`.
    fn broadcast(&mut self, buffer: &mut [u8], root: usize) -> Result<(), CommError> {
        self.call(Call::Broadcast { root }, Element::Byte, &[], buffer)
    }

    /// Sums `buffer` over all ranks, in place.
    fn all_reduce(&mut self, buffer: &mut Wire) -> Result<(), CommError> {
        self.call(Call::AllReduce, buffer.element(), &[], buffer.bytes_mut())
    }

    /// Sums `mine` over all ranks into rank `root`'s `sum`. `sum` has the type and length of `mine`. On other
    /// ranks `sum` is undefined afterwards.
    fn reduce(&mut self, mine: &Wire, sum: &mut Wire, root: usize) -> Result<(), CommError> {
        assert_eq!(mine.element(), sum.element(), "reduce: `sum` must have the element type of `mine`");
        self.call(Call::Reduce { root }, mine.element(), mine.bytes(), sum.bytes_mut())
    }

    /// Gathers every rank's `mine` into `all`, in rank order.
    fn all_gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), CommError> {
        self.call(Call::AllGather, Element::Byte, mine, all)
    }

    /// Gathers every rank's `mine` into rank `root`'s `all`, in rank order. On other ranks `all` may be
    /// empty.
    fn gather(&mut self, mine: &[u8], all: &mut [u8], root: usize) -> Result<(), CommError> {
        let all = if self.rank() == root { all } else { &mut [] };
        self.call(Call::Gather { root }, Element::Byte, mine, all)
    }

    /// Scatters rank `root`'s `all` in equal parts, one to each rank's `mine`. On other ranks `all` may be
    /// empty.
    fn scatter(&mut self, all: &[u8], mine: &mut [u8], root: usize) -> Result<(), CommError> {
        let all = if self.rank() == root { all } else { &[] };
        self.call(Call::Scatter { root }, Element::Byte, all, mine)
    }

    /// Reduce-scatter: sums `mine` over all ranks and divides the sum into equal parts. Each rank gets one
    /// part, in `part`, which has the type of `mine`.
    fn reduce_scatter(&mut self, mine: &Wire, part: &mut Wire) -> Result<(), CommError> {
        assert_eq!(
            mine.element(),
            part.element(),
            "reduce_scatter: `part` must have the element type of `mine`"
        );
        self.call(Call::ReduceScatter, mine.element(), mine.bytes(), part.bytes_mut())
    }

    /// All-to-all: sends each rank its part of `from`, and receives this rank's part of every rank's `from`
    /// into `to`. `from` and `to` have the same length.
    fn all_to_all(&mut self, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.call(Call::AllToAll, Element::Byte, from, to)
    }

    /// Barrier: returns once every rank has called this method.
    fn barrier(&mut self) -> Result<(), CommError> {
        self.call(Call::Barrier, Element::Byte, &[], &mut [])
    }
}
