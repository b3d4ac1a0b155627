//! Blocking message-passing operations of a transport, one method each.
//!
//! Training needs few of them, through a [`Collective`](crate::Collective).

use super::operation::Call;
use super::wire::Element;
use crate::{CommError, Wire};

/// Blocking operations of one transport. All ranks call them in the same order with
/// buffers of equal length, except [`send`](Self::send) and [`receive`](Self::receive),
/// which two ranks call: a transport has both of these or neither.
///
/// A transport implements [`call`](Self::call), which returns [`CommError::Unsupported`] for
/// operations that it does not have.
///
/// ```no_run
/// # use burn_mpi::lab::connect_primitives;
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
/// Each method: if the transport fails, and [`CommError::Unsupported`] if the transport
/// has no such operation. On all ranks, [`SharedError::OutOfStep`](crate::SharedError::OutOfStep) if calls, types or lengths differ between them
/// (over MPI and gloo; see [`Collective`](crate::Collective)).
///
/// # Panics
/// Each method: if a buffer does not have the required length.
#[expect(clippy::missing_errors_doc, reason = "above, for all methods")]
pub trait Primitives {
    /// The transport's name in errors and tables, such as `mpi`.
    fn transport(&self) -> &str;

    /// This rank.
    fn rank(&self) -> usize;

    /// Runs `call` on values of type `element`, whose bytes it reads in `from` and writes in `to`: what
    /// the method of this name passes, which may be nothing. A broadcast and an
    /// all-reduce are in place, in `to`; a rank that has nothing to read or to write passes nothing.
    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError>;

    /// Sends `buffer` to rank `to`, which receives it.
    fn send(&mut self, buffer: &[u8], to: usize) -> Result<(), CommError> {
        self.call(Call::Send { to }, Element::Byte, buffer, &mut [])
    }

    /// Receives what rank `from` sends, with the same length.
    fn receive(&mut self, buffer: &mut [u8], from: usize) -> Result<(), CommError> {
        self.call(Call::Receive { from }, Element::Byte, &[], buffer)
    }

    /// Overwrites `buffer` on all ranks with rank `root`'s.
    fn broadcast(&mut self, buffer: &mut [u8], root: usize) -> Result<(), CommError> {
        self.call(Call::Broadcast { root }, Element::Byte, &[], buffer)
    }

    /// Sums `buffer` over all ranks, in place.
    fn all_reduce(&mut self, buffer: &mut Wire) -> Result<(), CommError> {
        self.call(Call::AllReduce, buffer.element(), &[], buffer.bytes_mut())
    }

    /// Sums `mine` over all ranks into rank `root`'s `sum`, of the same type and
    /// length. On other ranks `sum` is undefined afterwards.
    fn reduce(&mut self, mine: &Wire, sum: &mut Wire, root: usize) -> Result<(), CommError> {
        assert_eq!(mine.element(), sum.element(), "a sum like its terms");
        self.call(Call::Reduce { root }, mine.element(), mine.bytes(), sum.bytes_mut())
    }

    /// Gathers every rank's `mine` into `all`, in rank order.
    fn all_gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), CommError> {
        self.call(Call::AllGather, Element::Byte, mine, all)
    }

    /// Gathers every rank's `mine` into rank `root`'s `all`, in rank order. On other
    /// ranks `all` may be empty.
    fn gather(&mut self, mine: &[u8], all: &mut [u8], root: usize) -> Result<(), CommError> {
        let all = if self.rank() == root { all } else { &mut [] };
        self.call(Call::Gather { root }, Element::Byte, mine, all)
    }

    /// Scatters rank `root`'s `all` in equal parts, one to each rank's `mine`. On other
    /// ranks `all` may be empty.
    fn scatter(&mut self, all: &[u8], mine: &mut [u8], root: usize) -> Result<(), CommError> {
        let all = if self.rank() == root { all } else { &[] };
        self.call(Call::Scatter { root }, Element::Byte, all, mine)
    }

    /// Reduce-scatter: sums `mine` over all ranks and returns the sum in equal parts,
    /// one in each rank's `part`, of the same type.
    fn reduce_scatter(&mut self, mine: &Wire, part: &mut Wire) -> Result<(), CommError> {
        assert_eq!(mine.element(), part.element(), "a sum like its terms");
        self.call(Call::ReduceScatter, mine.element(), mine.bytes(), part.bytes_mut())
    }

    /// All-to-all: sends each rank its part of `from`, and receives this rank's part of
    /// every rank's `from` into `to`, of the same length.
    fn all_to_all(&mut self, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.call(Call::AllToAll, Element::Byte, from, to)
    }

    /// Barrier: returns once every rank has called it.
    fn barrier(&mut self) -> Result<(), CommError> {
        self.call(Call::Barrier, Element::Byte, &[], &mut [])
    }
}
