//! Operations in flight, whatever performs them: which there are, their progress, and the waits for them.

use crate::member::Member;
use crate::{Collective, CommError, Operation, Primitives, Reduction, Wire};

/// How one transport performs operations.
pub trait Engine {
    /// An operation in flight, with its buffers.
    type Op;

    /// The transport's name.
    const NAME: &'static str;

    /// The rank.
    fn member(&self) -> &Member;

    /// As [`Collective::connection`].
    fn connection(&self) -> Option<String> {
        None
    }

    /// Starts an operation on a buffer that has been checked.
    fn start(&mut self, bucket: usize, operation: Operation, buffer: Wire) -> Result<Self::Op, CommError>;

    /// Moves an operation on, without waiting; its result once it is complete. All operations in flight
    /// are moved on in the order of their start.
    fn advance(&mut self, op: &mut Self::Op) -> Result<Option<Wire>, CommError>;

    /// Between two looks of a rank that has nothing else to do.
    fn pause(&mut self) -> Result<(), CommError>;

    /// Blocking operations, which may follow operations in flight.
    fn blocking(&mut self) -> Result<&mut dyn Primitives, CommError>;

    /// Sums `buffer` on the thread of the caller; `None` if the operation is to be started and waited for.
    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Option<Result<(), CommError>> {
        match how {
            Reduction::Native => Some(self.blocking().and_then(|blocking| blocking.all_reduce(buffer))),
            Reduction::Ordered => None,
        }
    }
}

/// A [`Collective`] whose operations an engine performs.
pub struct PendingOps<E: Engine> {
    // Dropped first: the engine knows then which are complete.
    ops: Vec<PendingOp<E::Op>>,
    engine: E,
}

struct PendingOp<O> {
    bucket: usize,
    operation: Operation,
    state: State<O>,
}

enum State<O> {
    InFlight(O),
    Done(Wire),
}

/// The bucket number of blocking calls; no caller uses it.
pub(super) const BLOCKING: usize = usize::MAX;

impl<E: Engine> PendingOps<E> {
    pub(crate) fn over(engine: E) -> Self {
        Self { ops: Vec::new(), engine }
    }

    /// The operation of a bucket that was started and not returned to the caller.
    fn operation_of(&self, bucket: usize) -> Option<Operation> {
        self.ops.iter().find(|op| op.bucket == bucket).map(|op| op.operation)
    }

    /// Waits for the operation of `bucket` and makes progress on all others: another rank may wait
    /// for them first.
    fn complete(&mut self, bucket: usize) -> Result<Wire, CommError> {
        loop {
            self.poll()?;
            let done = |op: &PendingOp<E::Op>| op.bucket == bucket && matches!(op.state, State::Done(_));
            if let Some(at) = self.ops.iter().position(done)
                && let State::Done(result) = self.ops.remove(at).state
            {
                return Ok(result);
            }
            self.engine.pause()?;
        }
    }
}

impl<E: Engine> Collective for PendingOps<E> {
    fn transport(&self) -> &str {
        E::NAME
    }

    fn connection(&self) -> Option<String> {
        self.engine.connection()
    }

    fn world_size(&self) -> usize {
        self.engine.member().size
    }

    fn start(&mut self, bucket: usize, operation: Operation, buffer: Wire) -> Result<(), CommError> {
        assert!(self.operation_of(bucket).is_none(), "bucket {bucket} is in flight");
        operation.check(E::NAME, &buffer, self.engine.member())?;
        let state = State::InFlight(self.engine.start(bucket, operation, buffer)?);
        self.ops.push(PendingOp { bucket, operation, state });
        Ok(())
    }

    fn poll(&mut self) -> Result<usize, CommError> {
        let mut in_flight = 0;
        for op in &mut self.ops {
            if let State::InFlight(state) = &mut op.state {
                match self.engine.advance(state)? {
                    Some(result) => op.state = State::Done(result),
                    None => in_flight += 1,
                }
            }
        }
        Ok(in_flight)
    }

    fn is_done(&self, bucket: usize) -> bool {
        self.ops.iter().any(|op| op.bucket == bucket && matches!(op.state, State::Done(_)))
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let Some(operation) = self.operation_of(bucket) else {
            panic!("bucket {bucket} is waited for without having been started")
        };
        let _waiting = self.engine.member().enter(E::NAME, operation.name(), Some(bucket));
        self.complete(bucket)
    }

    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        if let Some(result) = self.engine.all_reduce(buffer, how) {
            return result;
        }
        let _waiting = self.engine.member().enter(E::NAME, "all-reduce", None);
        Operation::AllReduce(how).check(E::NAME, buffer, self.engine.member())?;
        let taken = std::mem::replace(buffer, Wire::Bytes(Vec::new()));
        self.start(BLOCKING, Operation::AllReduce(how), taken)?;
        *buffer = self.complete(BLOCKING)?;
        Ok(())
    }

    fn broadcast(&mut self, buffer: &mut Wire, root: usize) -> Result<(), CommError> {
        self.engine.blocking()?.broadcast(buffer.bytes_mut(), root)
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        self.engine.blocking()?.barrier()
    }
}
