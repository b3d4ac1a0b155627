//! Collectives over NCCL: native, or sums in rank order.

use super::NAME;
use super::communicator::{Communicator, Pending};
use crate::collective::announced::Announcement;
use crate::collective::pending::{Comparison, PendingOps, Requests, Step};
use crate::collective::wire::Element;
use crate::member::{Member, Started};
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
pub type NcclCollective = PendingOps<Communicator>;

impl NcclCollective {
    /// Connects all ranks of `world`, each with the GPU of number `gpu` or, if it is `None`, with
    /// the first one that no lower rank of its machine uses. All ranks must call it.
    ///
    /// # Errors
    /// [`SharedError::NoNccl`](crate::SharedError::NoNccl) if a rank lacks the driver, NCCL or a GPU of its own; all ranks then
    /// return the same error. [`CommError::Operation`] if NCCL fails.
    pub fn connect(world: &World, gpu: Option<usize>) -> Result<Self, CommError> {
        Ok(Self::over(world, Communicator::connect(world, gpu)?))
    }
}

/// [`Primitives`] over NCCL, between GPUs. Those between a root and all, and between all pairs, are groups
/// of its sends and receives. It is `!Send` and `!Sync`:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::lab::NcclPrimitives>();
/// ```
pub type NcclPrimitives = Communicator;

/// A call in flight.
pub struct NcclRequest {
    started: Started,
    operation: Operation,
    /// `None` once complete.
    buffers: Option<(Pending, Wire, Wire)>,
}

impl Requests for Communicator {
    type Request = NcclRequest;

    const NAME: &'static str = NAME;

    const SUMS_IN_ORDER: bool = true;

    const COMPARISON: Comparison = Comparison::Never;

    fn member(&self) -> &Member {
        &self.member
    }

    fn connection(&self) -> Option<String> {
        Some(self.describe())
    }

    fn start(
        &mut self,
        step: Step,
        _: Option<Announcement>,
        from: Wire,
        to: Wire,
    ) -> Result<NcclRequest, CommError> {
        let Step { operation, .. } = step;
        let call = match operation {
            // All terms come to the rank that sums them.
            Operation::AllReduce(Reduction::Ordered) => Call::AllGather,
            Operation::ReduceScatter(Reduction::Ordered) => Call::AllToAll,
            _ => step.call,
        };
        let (element, count) = (to.element(), step.call.part(from.len(), to.len(), self.member.size));
        let mine = if from.is_empty() { to.bytes() } else { from.bytes() };
        let started = step.started(&self.member, NAME, &from, &to);
        // NCCL connects ranks in the first call that needs it, and then waits for them. A blocking call is
        // in a wait already.
        let _waiting = started.bucket.map(|bucket| self.member.enter(NAME, "launch", Some(bucket)));
        let pending = self.start_call(call, element, count, mine);
        let pending = pending.map_err(|reason| self.error(&started, reason))?;
        Ok(NcclRequest { started, operation, buffers: Some((pending, from, to)) })
    }

    fn test(&mut self, request: &mut NcclRequest) -> Result<Option<(Wire, Wire)>, CommError> {
        let Some((pending, ..)) = &request.buffers else { return Ok(None) };
        let is_complete = self.is_complete(pending).map_err(|reason| self.error(&request.started, reason))?;
        let Some((pending, from, mut to)) = request.buffers.take_if(|_| is_complete) else { return Ok(None) };
        match request.operation {
            Operation::AllReduce(Reduction::Ordered) | Operation::ReduceScatter(Reduction::Ordered) => {
                let mut terms = to.zeros_like(to.len() * self.member.size);
                self.collect(pending, terms.bytes_mut());
                to.sum_of_chunks(&terms);
            }
            _ => self.collect(pending, to.bytes_mut()),
        }
        Ok(Some((from, to)))
    }

    fn pause(&mut self) -> Result<(), CommError> {
        self.pause();
        Ok(())
    }

    fn blocking(&mut self) -> &mut dyn Primitives {
        self
    }
}

impl Primitives for Communicator {
    fn transport(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.member.rank
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let (_waiting, started) = self.member.begin(NAME, call, element, from, to)?;
        if started.bytes == 0 && call.has_parts() {
            return Ok(());
        }
        let part = if call == Call::Barrier { 1 } else { call.part(from.len(), to.len(), self.member.size) };
        let mine = if from.is_empty() { &*to } else { from };
        let result = self.start_call(call, element, part / element.width(), mine).and_then(|pending| {
            while !self.is_complete(&pending)? {
                self.pause();
            }
            self.collect(pending, to);
            Ok(())
        });
        result.map_err(|reason| self.error(&started, reason))
    }
}
