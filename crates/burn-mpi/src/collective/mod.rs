//! [`Collective`]: the operations that all ranks of a job perform together, such as sums of gradients. The
//! submodules implement them over MPI and gloo.
//!
//! A buffer in flight belongs to the collective: [`Collective::start`] takes it, [`Collective::wait`] gives
//! it back. No other code can touch or free memory that the transport still reads or writes.

pub(crate) mod compared;
pub(crate) mod connect;
#[cfg(feature = "gloo")]
pub(crate) mod gloo;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
pub(crate) mod operation;
pub(crate) mod pending;
pub(crate) mod polled;
pub(crate) mod primitives;
pub(crate) mod spare;
pub(crate) mod wire;

use self::operation::{BLOCKING, Operation};
use self::wire::Element;
use crate::{CommError, Reduction, Wire};

/// Collective operations of one transport.
///
/// All ranks start the same operations in the same order, on buffers of the same type and length. For each
/// operation, either all ranks start it or all ranks call [`all_reduce`](Self::all_reduce): MPI does not
/// match a blocking collective with a non-blocking one.
///
/// Ranks may poll and wait at any time and in any order, with one exception. Two kinds of operation have a
/// second part: sums in rank order, and unexpected operations, which ranks compare before they send the
/// buffer (see below). A rank starts the second part only in a poll or a wait of the same collective. A rank
/// that waits for something else keeps the other ranks waiting.
///
/// MPI and gloo do not check types and lengths. If types or lengths differ between ranks, MPI and gloo write
/// past the end of a buffer, abort, or return a wrong sum. So ranks compare types and lengths first, and all
/// return [`SharedError::OutOfStep`](crate::SharedError::OutOfStep) if they differ. Training repeats the same
/// operations in each step. An operation that follows the order of earlier operations is expected: ranks do
/// not compare it, which saves time. If a rank calls a different operation instead of an expected one, all
/// ranks wait until the deadline. The error of the deadline names the different operation.
///
/// Each operation in flight has a number, its bucket, which the caller chooses.
///
/// ```no_run
/// use burn_mpi::{Backend, CommError, Operation, Reduction, Transport, Wire, World, chunk_range, connect};
///
/// # fn main() -> Result<(), CommError> {
/// let world = World::init()?;
/// let mut collective = connect(&world, Backend::Mpi, &Transport::default())?;
/// // Each rank gets the sum of its chunk, changes it, and collects all chunks.
/// let gradients = Wire::F32(vec![1.0; 1001]);
/// collective.start(Operation::reduce_scatter(0, &gradients, Reduction::Native), gradients)?;
/// collective.poll()?;
/// let sums = collective.wait(0)?;
/// assert_eq!(sums.len(), chunk_range(1001, world.size(), world.rank()).len());
/// collective.start(Operation::all_gather(0, &sums, 1001), sums)?;
/// assert_eq!(collective.wait(0)?.len(), 1001);
/// # Ok(())
/// # }
/// ```
///
/// # Transports of other crates
///
/// [`GradientSync`](crate::GradientSync) accepts any implementation. The following implementation is for a
/// job of one process, in which every operation returns its buffer unchanged:
///
/// ```
/// use burn::module::Module;
/// use burn_mpi::Call;
/// use burn_mpi::{Collective, CommError, GradientSync, Operation, SyncOptions, Wire, World};
///
/// #[derive(Default)]
/// struct OneProcess {
///     pending: Vec<(Option<usize>, Wire)>,
/// }
///
/// impl Collective for OneProcess {
///     fn transport(&self) -> &str {
///         "one-process"
///     }
///
///     fn world_size(&self) -> usize {
///         1
///     }
///
///     fn start(&mut self, operation: Operation, buffer: Wire) -> Result<(), CommError> {
///         match operation.call {
///             Call::AllReduce | Call::ReduceScatter | Call::AllGather => {
///                 self.pending.push((operation.bucket, buffer));
///                 Ok(())
///             }
///             other => Err(CommError::Unsupported {
///                 operation: other.name(),
///                 transport: self.transport().to_owned(),
///             }),
///         }
///     }
///
///     fn poll(&mut self) -> Result<usize, CommError> {
///         Ok(0)
///     }
///
///     fn is_done(&self, bucket: usize) -> bool {
///         self.pending.iter().any(|op| op.0 == Some(bucket))
///     }
///
///     fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
///         let at = self.pending.iter().position(|op| op.0 == Some(bucket));
///         Ok(self.pending.swap_remove(at.expect("the bucket was started")).1)
///     }
/// }
///
/// /// Trains over it as over any other.
/// fn sync_of<M: Module>(world: &World, module: &M) -> GradientSync {
///     GradientSync::of_module(world, Box::new(OneProcess::default()), module, SyncOptions::default())
/// }
///
/// let mut collective: Box<dyn Collective> = Box::new(OneProcess::default());
/// let mut buffer = Wire::F32(vec![1.0, 2.0]);
/// collective.all_reduce(&mut buffer, burn_mpi::Reduction::Native)?;
/// assert_eq!(buffer, Wire::F32(vec![1.0, 2.0]));
/// # Ok::<(), CommError>(())
/// ```
///
/// A transport between several ranks
/// - checks its buffers with [`Operation::check`], and for [`Primitives`](crate::Primitives) with
///   [`Call::check`](crate::Call::check);
/// - registers its waits with [`World::watch`](crate::World::watch), so that the deadline can name missing
///   ranks;
/// - calls [`World::is_ending`](crate::World::is_ending) while it waits, if its operations need to be
///   aborted;
/// - returns [`World::failed`](crate::World::failed) for an operation that fails, and
///   [`World::broken`](crate::World::broken) if a peer may have closed its connection.
pub trait Collective {
    /// The transport's name in errors, tables and records, such as `mpi`.
    fn transport(&self) -> &str;

    /// How this rank is connected to the others, such as `tcp over eth0 (10.0.0.1)`, for records of a run;
    /// `None` if the transport does not know.
    fn connection(&self) -> Option<String> {
        None
    }

    /// Number of ranks.
    fn world_size(&self) -> usize;

    /// Starts `operation` on `buffer`.
    ///
    /// # Errors
    /// [`CommError::Unsupported`] if the transport has no such operation; [`CommError::Operation`] if the
    /// transport fails, if a sum is over bytes, or if this rank's chunk of an all-gather has a wrong length.
    ///
    /// # Panics
    /// If the bucket of `operation` is already in flight, or if `operation` was made for a buffer of another
    /// type or length.
    fn start(&mut self, operation: Operation, buffer: Wire) -> Result<(), CommError>;

    /// Makes progress on the operations in flight, without waiting. Returns the number of operations that are
    /// not yet complete.
    ///
    /// # Errors
    /// If the transport fails, or the operations of the ranks differ.
    fn poll(&mut self) -> Result<usize, CommError>;

    /// Returns whether [`wait`](Self::wait) for `bucket` would return at once, as of the last
    /// [`poll`](Self::poll).
    fn is_done(&self, bucket: usize) -> bool;

    /// Waits for `bucket` and returns the result of its [`Operation`].
    ///
    /// # Errors
    /// If the transport fails, the deadline passes, or the operations of the ranks differ.
    ///
    /// # Panics
    /// If `bucket` is not in flight.
    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError>;

    /// Returns a buffer of `length` values of type `element`, for an operation. Its values are arbitrary: it
    /// may be memory of an earlier operation.
    ///
    /// The default implementation returns zeros in new memory.
    fn buffer(&mut self, element: Element, length: usize) -> Wire {
        Wire::zeros(element, length)
    }

    /// Takes a buffer that the caller no longer needs, for later calls of [`buffer`](Self::buffer) and later
    /// operations.
    ///
    /// The default implementation frees it.
    fn recycle(&mut self, buffer: Wire) {
        drop(buffer);
    }

    /// Sums `buffer` over all ranks, in place, and returns when the sum is complete.
    ///
    /// The default implementation starts the operation and waits for it.
    ///
    /// # Errors
    /// If the transport fails, the deadline passes, the operations of the ranks differ, or the buffer is
    /// bytes.
    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        let operation = Operation::all_reduce(BLOCKING, buffer, how);
        self.start(operation, std::mem::replace(buffer, Wire::Bytes(Vec::new())))?;
        *buffer = self.wait(BLOCKING)?;
        Ok(())
    }
}
