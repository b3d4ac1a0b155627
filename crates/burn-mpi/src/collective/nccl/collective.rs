//! Collectives over NCCL: native, or sums in rank order.

use std::time::Duration;

use super::NAME;
use super::communicator::{Communicator, Pending};
use super::library::Datatype;
use crate::collective::ordered::chunk_range;
use crate::collective::pending::{BLOCKING, Engine, PendingOps};
use crate::collective::wire::Element;
use crate::guard::abortable::Abortable;
use crate::member::Member;
use crate::{Call, CommError, Operation, Primitives, Reduction, Wire, World};

/// [`Collective`](crate::Collective) over NCCL, between GPUs.
///
/// Operations run on the GPU by themselves, in a stream of their own, so
/// [`poll`](crate::Collective::poll) is not needed to overlap them. Sums in rank order gather the buffers
/// of all ranks, which takes as many times the memory as there are ranks, and are computed by the processor.
///
/// It is `!Send` and `!Sync`, as is any type that holds it:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::NcclCollective>();
/// ```
///
/// ```compile_fail,E0277
/// fn is_used_by_several_threads<T: Sync>() {}
/// is_used_by_several_threads::<burn_mpi::NcclCollective>();
/// ```
pub type NcclCollective = PendingOps<NcclStream>;

impl NcclCollective {
    /// Connects all ranks of `world`, each with the GPU of number `gpu` or, if it is `None`, with
    /// the first one that no lower rank of its machine uses. All ranks must call it.
    ///
    /// # Errors
    /// [`CommError::NoNccl`] if a rank lacks the driver, NCCL or a GPU of its own; all ranks then
    /// return the same error. [`CommError::Operation`] if NCCL fails.
    pub fn connect(world: &World, gpu: Option<usize>) -> Result<Self, CommError> {
        Ok(Self::over(NcclStream::connect(world, gpu)?))
    }
}

/// [`Primitives`] over NCCL, between GPUs. Those between a root and all, and between all pairs, are groups
/// of its sends and receives. It is `!Send` and `!Sync`:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::NcclPrimitives>();
/// ```
pub type NcclPrimitives = NcclStream;

/// A stream in which operations run, in the order of their start.
pub struct NcclStream {
    communicator: Communicator,
    /// While this rank waits for an operation.
    waiting: Option<Abortable>,
}

impl NcclStream {
    /// Connects all ranks of `world`, each with the GPU of number `gpu` or, if it is `None`, with
    /// the first one that no lower rank of its machine uses. All ranks must call it.
    ///
    /// # Errors
    /// As [`NcclCollective::connect`].
    pub fn connect(world: &World, gpu: Option<usize>) -> Result<Self, CommError> {
        Ok(Self { communicator: Communicator::connect(world, gpu)?, waiting: None })
    }
}

/// An operation in flight.
pub struct NcclOp {
    bucket: usize,
    operation: Operation,
    /// `None` if there is nothing to send, and once complete.
    pending: Option<Pending>,
    /// The caller's buffer.
    brought: Wire,
    started: Duration,
}

impl NcclOp {
    /// NCCL's operation, and the elements of each rank in it.
    fn call(&self, size: usize) -> (Call, usize) {
        let (length, chunk) = (self.brought.len(), self.brought.len().div_ceil(size));
        match self.operation {
            Operation::AllReduce(Reduction::Native) => (Call::AllReduce, length),
            Operation::AllReduce(Reduction::Ordered) => (Call::AllGather, length),
            Operation::ReduceScatter(Reduction::Native) => (Call::ReduceScatter, chunk),
            Operation::ReduceScatter(Reduction::Ordered) => (Call::AllToAll, chunk),
            Operation::AllGather { length } => (Call::AllGather, length.div_ceil(size)),
        }
    }

    /// The result of an operation that is complete.
    fn result(&mut self, communicator: &mut Communicator) -> Wire {
        let (rank, size) = (communicator.rank(), communicator.size());
        let mut buffer = std::mem::replace(&mut self.brought, Wire::Bytes(Vec::new()));
        let Some(pending) = self.pending.take() else { return buffer };
        let length = buffer.len();
        match self.operation {
            Operation::AllReduce(Reduction::Native) => {
                communicator.collect(pending, buffer.bytes_mut());
                buffer
            }
            Operation::AllReduce(Reduction::Ordered) => {
                let mut all = buffer.zeros_like(length * size);
                communicator.collect(pending, all.bytes_mut());
                buffer.sum_of_chunks(&all);
                buffer
            }
            Operation::ReduceScatter(Reduction::Native) => {
                let mut sum = buffer.zeros_like(chunk_range(length, size, rank).len());
                communicator.collect(pending, sum.bytes_mut());
                sum
            }
            Operation::ReduceScatter(Reduction::Ordered) => {
                let chunk = length.div_ceil(size);
                let mut chunks = buffer.zeros_like(chunk * size);
                communicator.collect(pending, chunks.bytes_mut());
                let mut sum = buffer.zeros_like(chunk);
                sum.sum_of_chunks(&chunks);
                sum.resize(chunk_range(length, size, rank).len());
                sum
            }
            Operation::AllGather { length } => {
                let mut all = buffer.zeros_like(length);
                communicator.collect(pending, all.bytes_mut());
                all
            }
        }
    }

    fn error(&self, communicator: &Communicator, reason: String) -> CommError {
        let name = match self.bucket {
            BLOCKING => self.operation.name().to_owned(),
            bucket => format!("{} of bucket {bucket}", self.operation.name()),
        };
        communicator.error(&name, self.brought.bytes().len(), self.started, reason)
    }
}

impl Engine for NcclStream {
    type Op = NcclOp;

    const NAME: &'static str = NAME;

    fn member(&self) -> &Member {
        self.communicator.member()
    }

    fn connection(&self) -> Option<String> {
        Some(self.communicator.describe())
    }

    fn start(&mut self, bucket: usize, operation: Operation, brought: Wire) -> Result<NcclOp, CommError> {
        let started = self.member().now();
        let mut op = NcclOp { bucket, operation, pending: None, brought, started };
        let (call, count) = op.call(self.communicator.size());
        if count > 0 {
            // NCCL connects ranks in the first call that needs it, and then waits for them.
            let _waiting = self.member().enter(NAME, "launch", Some(bucket));
            let (datatype, bytes) = (Datatype::of(op.brought.element()), op.brought.bytes());
            let pending = self.communicator.start(call, datatype, count, bytes);
            op.pending = Some(pending.map_err(|reason| op.error(&self.communicator, reason))?);
        }
        Ok(op)
    }

    fn advance(&mut self, op: &mut NcclOp) -> Result<Option<Wire>, CommError> {
        let is_complete = match &op.pending {
            Some(pending) => self.communicator.is_complete(pending),
            None => Ok(true),
        };
        match is_complete {
            Ok(true) => {
                self.waiting = None;
                Ok(Some(op.result(&mut self.communicator)))
            }
            Ok(false) => Ok(None),
            Err(reason) => Err(op.error(&self.communicator, reason)),
        }
    }

    /// The guard has the communicator aborted if the wait exceeds the deadline.
    fn pause(&mut self) -> Result<(), CommError> {
        let activity = &self.communicator.member().activity;
        let waiting = self.waiting.get_or_insert_with(|| Abortable::enter(activity));
        self.communicator.pause(waiting);
        Ok(())
    }

    fn blocking(&mut self) -> Result<&mut dyn Primitives, CommError> {
        Ok(self)
    }
}

impl Primitives for NcclStream {
    fn transport(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.communicator.rank()
    }

    fn size(&self) -> usize {
        self.communicator.size()
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.communicator.run(call, element, from, to)
    }
}
