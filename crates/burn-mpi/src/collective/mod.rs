//! Collectives that training needs, and the transports that implement them.
//!
//! A buffer in flight belongs to the collective: [`Collective::start`] takes it,
//! [`Collective::wait`] gives it back. No other code can touch or free memory that the
//! transport still reads or writes.

pub(crate) mod compared;
pub(crate) mod connect;
#[cfg(feature = "gloo")]
pub(crate) mod gloo;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
pub(crate) mod pending;
pub(crate) mod primitives;
pub(crate) mod wire;

use self::pending::BLOCKING;
use self::wire::Element;
use crate::{CommError, Reduction, Wire};

/// An operation that [`Collective::start`] begins.
///
/// Operations may be added: a transport returns [`CommError::Unsupported`] for those that it does
/// not implement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Sums the buffers of all ranks, which have equal lengths. Returns the sum on every rank.
    AllReduce(Reduction),
    /// Sums the buffers of all ranks, which have equal lengths. Returns this rank's
    /// [`chunk_range`](crate::chunk_range) of the sum.
    ReduceScatter(Reduction),
    /// Gathers `length` elements, of which each rank contributes its
    /// [`chunk_range`](crate::chunk_range). Returns all of them on every rank.
    AllGather {
        /// Elements of all ranks together, the same number on every rank.
        length: usize,
    },
}

impl Operation {
    /// The name of the operation in errors, such as `reduce-scatter`.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "all-reduce",
            Self::ReduceScatter(_) => "reduce-scatter",
            Self::AllGather { .. } => "all-gather",
        }
    }

    /// Checks the buffer that `rank` of `ranks` passes. A transport calls this before it sends anything.
    ///
    /// # Errors
    /// The reason of a [`CommError::Operation`]: a sum of bytes, or a chunk of a wrong length.
    ///
    /// # Panics
    /// If `ranks` is 0 and the operation is an all-gather.
    pub fn check(self, buffer: &Wire, rank: usize, ranks: usize) -> Result<(), String> {
        let found = buffer.len();
        match self {
            Self::AllReduce(_) | Self::ReduceScatter(_) if buffer.element() == Element::Byte => {
                Err("bytes have no sum; use f32, f64, bf16 or f16".to_owned())
            }
            Self::AllGather { length } => match wire::chunk_range(length, ranks, rank).len() {
                expected if expected == found => Ok(()),
                expected => Err(format!(
                    "this rank passes {found} elements, but its chunk of {length} on {ranks} ranks has {expected}"
                )),
            },
            _ => Ok(()),
        }
    }
}

/// Collective operations of one transport.
///
/// All ranks start the same operations in the same order, on buffers of the same type and length,
/// and either all start an operation or all call [`all_reduce`](Self::all_reduce): MPI does not
/// match a blocking collective with a non-blocking one. Ranks may poll and wait at any time and in
/// any order, with one exception: a sum in rank order has a second part, and a buffer of another type or length
/// than expected is sent only after ranks have compared both. A rank goes on with these in a poll or a wait of
/// the same collective; one that waits elsewhere keeps others waiting for it.
///
/// MPI and gloo would write past the end of a buffer, end the process or sum what was not meant where types or
/// lengths differ between ranks. So ranks compare them first, and all return [`SharedError::OutOfStep`](crate::SharedError::OutOfStep) if they
/// differ. Operations that repeat the order of earlier ones, as those of training steps do, are expected: they are
/// not compared, and cost nothing; a rank that calls something else then keeps the others waiting until their
/// deadline, which names what it calls.
///
/// A bucket is the number that identifies an operation in flight; the caller chooses it.
///
/// ```no_run
/// use burn_mpi::{Backend, CommError, Operation, Reduction, Transport, Wire, World, chunk_range, connect};
///
/// # fn main() -> Result<(), CommError> {
/// let world = World::init()?;
/// let mut collective = connect(&world, Backend::Mpi, &Transport::default())?;
/// // Each rank gets the sum of its chunk, changes it, and collects all chunks.
/// let gradients = Wire::F32(vec![1.0; 1001]);
/// collective.start(0, Operation::ReduceScatter(Reduction::Native), gradients)?;
/// collective.poll()?;
/// let sums = collective.wait(0)?;
/// assert_eq!(sums.len(), chunk_range(1001, world.size(), world.rank()).len());
/// collective.start(0, Operation::AllGather { length: 1001 }, sums)?;
/// assert_eq!(collective.wait(0)?.len(), 1001);
/// # Ok(())
/// # }
/// ```
///
/// # Transports of other crates
///
/// [`GradientSync`](crate::GradientSync) accepts any implementation. This one is for a job of one
/// process, in which every operation returns its buffer unchanged:
///
/// ```
/// use burn::module::Module;
/// use burn_mpi::{Collective, CommError, GradientSync, Operation, SyncOptions, Wire, World};
///
/// #[derive(Default)]
/// struct OneProcess {
///     pending: Vec<(usize, Wire)>,
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
///     fn start(&mut self, bucket: usize, operation: Operation, buffer: Wire) -> Result<(), CommError> {
///         match operation {
///             Operation::AllReduce(_) | Operation::ReduceScatter(_) | Operation::AllGather { .. } => {
///                 self.pending.push((bucket, buffer));
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
///         self.pending.iter().any(|op| op.0 == bucket)
///     }
///
///     fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
///         let at = self.pending.iter().position(|op| op.0 == bucket);
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
/// - checks its buffers with [`Operation::check`], and for [`Primitives`](crate::lab::Primitives) with
///   [`Call::check`](crate::lab::Call::check);
/// - registers its waits with [`World::watch`](crate::World::watch), so that the deadline can name missing ranks;
/// - calls [`World::is_ending`](crate::World::is_ending) while it waits, if its operations need to be aborted;
/// - returns [`World::departure`](crate::World::departure) if a peer has closed its connection.
pub trait Collective {
    /// The transport's name in errors, tables and records, such as `mpi`.
    fn transport(&self) -> &str;

    /// How this rank is connected to the others, such as `tcp over eth0 (10.0.0.1)`, for records
    /// of a run; `None` if the transport does not know.
    fn connection(&self) -> Option<String> {
        None
    }

    /// Number of ranks.
    fn world_size(&self) -> usize;

    /// Starts `operation` on `buffer` under the number `bucket`.
    ///
    /// # Errors
    /// [`CommError::Unsupported`] if the transport has no such operation; [`CommError::Operation`]
    /// if the transport fails, if the buffer of a sum is bytes, and if this rank's chunk of an
    /// all-gather has a wrong length.
    ///
    /// # Panics
    /// If `bucket` is already in flight.
    fn start(&mut self, bucket: usize, operation: Operation, buffer: Wire) -> Result<(), CommError>;

    /// Makes progress on the operations in flight, without waiting. Returns the number of
    /// operations that are not complete.
    ///
    /// # Errors
    /// If the transport fails.
    fn poll(&mut self) -> Result<usize, CommError>;

    /// Whether [`wait`](Self::wait) for `bucket` would return at once, as of the last
    /// [`poll`](Self::poll).
    fn is_done(&self, bucket: usize) -> bool;

    /// Waits for `bucket` and returns the result of its [`Operation`].
    ///
    /// # Errors
    /// If the transport fails or the deadline passes.
    ///
    /// # Panics
    /// If `bucket` is not in flight.
    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError>;

    /// Sums `buffer` over all ranks, in place, and returns when it is complete.
    ///
    /// The default implementation starts the operation and waits for it.
    ///
    /// # Errors
    /// If the transport fails or the deadline passes, or if the buffer is bytes.
    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        let taken = std::mem::replace(buffer, Wire::Bytes(Vec::new()));
        self.start(BLOCKING, Operation::AllReduce(how), taken)?;
        *buffer = self.wait(BLOCKING)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::{Activity, DEFAULT_DEADLINE, DEFAULT_STALL};
    use crate::clock::Clock;
    use crate::member::Member;

    #[test]
    fn bytes_are_gathered_and_not_summed() {
        let member = |rank| {
            let activity = Activity::new(Clock::system(), DEFAULT_DEADLINE, DEFAULT_STALL);
            Member::new(rank, 2, "node0".into(), activity)
        };
        let bytes = Wire::Bytes(vec![1, 2]);
        let sum = member(0).check_operation("mpi", Operation::ReduceScatter(Reduction::Native), &bytes);
        let error = sum.unwrap_err().to_string();
        assert!(error.contains("rank 0 on node0: mpi reduce-scatter") && error.contains("no sum"), "{error}");
        let gather = Operation::AllGather { length: 3 };
        assert!(member(0).check_operation("gloo", gather, &bytes).is_ok());
        let error = member(1).check_operation("gloo", gather, &bytes).unwrap_err().to_string();
        assert!(error.ends_with("passes 2 elements, but its chunk of 3 on 2 ranks has 1"), "{error}");
    }
}
