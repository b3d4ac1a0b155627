//! NCCL as a transport of burn-mpi, with non-blocking and blocking operations. A bucket of gradients has at
//! most one operation in flight.

use burn_mpi::{
    Call, Collective, CommError, Element, Operation, Primitives, Reduction, Started, Wire, World,
};

use crate::NAME;
use crate::communicator::{Communicator, Pending};

/// Collective operations over NCCL, between ranks with one GPU each.
///
/// Operations run on the GPU, in one CUDA stream, without help of the CPU. They therefore overlap with other
/// work without calls of [`poll`](Collective::poll). With [`Reduction::Ordered`], each rank receives the
/// terms of all ranks and sums them on the CPU. An all-reduce then needs memory for one buffer of each rank.
///
/// The type also implements [`Primitives`], for blocking calls such as broadcast.
pub struct NcclCollective {
    communicator: Communicator,
    /// Operations that were started and not waited for.
    in_flight: Vec<InFlight>,
}

struct InFlight {
    operation: Operation,
    started: Started,
    /// `None` once the operation is complete, and from the beginning if the buffer is empty.
    pending: Option<Pending>,
    /// The data to send. Once the operation is complete, the result.
    buffer: Wire,
}

impl InFlight {
    /// If the operation is complete, takes its result from the communicator.
    fn advance(&mut self, communicator: &mut Communicator) -> Result<(), CommError> {
        let Some(pending) = &self.pending else { return Ok(()) };
        let is_complete = communicator.is_complete(pending);
        let is_complete = is_complete.map_err(|reason| communicator.world.broken(&self.started, reason))?;
        if let Some(pending) = self.pending.take_if(|_| is_complete) {
            let buffer = &mut self.buffer;
            buffer.resize(pending.result_bytes() / buffer.element().width());
            communicator.collect(pending, buffer.bytes_mut());
            // The buffer now has the terms of all ranks, one after the other.
            if self.operation.order == Reduction::Ordered {
                let mut sum = buffer.zeros_like(buffer.len() / communicator.world.size());
                sum.sum_of_chunks(buffer);
                *buffer = sum;
            }
            buffer.resize(self.operation.result_length(communicator.world.rank(), communicator.world.size()));
        }
        Ok(())
    }
}

impl NcclCollective {
    /// Connects all ranks of `world`. This rank uses the GPU with the number `gpu`, counted from 0 among the
    /// GPUs that the process sees. `None` means the first GPU that no lower rank of the machine uses. All
    /// ranks must call this function.
    ///
    /// Each rank has to be a process. Ranks that are [threads](burn_mpi::threads) run one at a time, so they
    /// would wait for each other forever.
    ///
    /// # Errors
    /// - [`SharedError::Elsewhere`](burn_mpi::SharedError::Elsewhere) on all ranks if one rank lacks the
    ///   driver, NCCL or a GPU of its own, or cannot open its GPU. [`refusal`](crate::refusal) returns what a
    ///   rank lacks.
    /// - [`SharedError::Diverged`](burn_mpi::SharedError::Diverged) on all ranks if ranks have different
    ///   versions of NCCL.
    /// - [`CommError::Operation`] if NCCL fails.
    /// - Another [`CommError`] if an exchange between the ranks fails.
    pub fn connect(world: &World, gpu: Option<usize>) -> Result<Self, CommError> {
        Ok(Self { communicator: Communicator::connect(world, gpu)?, in_flight: Vec::new() })
    }

    fn world(&self) -> &World {
        &self.communicator.world
    }

    fn position(&self, bucket: Option<usize>) -> Option<usize> {
        self.in_flight.iter().position(|op| op.operation.bucket == bucket)
    }

    /// Checks the buffer of an operation before it starts. Returns the operation's description, which errors
    /// contain.
    fn check(&self, operation: Operation, buffer: &Wire) -> Result<Started, CommError> {
        let world = self.world();
        let started = world.started(NAME, operation.call.name(), operation.bucket, buffer.bytes().len());
        let checked = operation.check(buffer, world.rank(), world.size());
        checked.map(|()| started).map_err(|reason| world.failed(&started, reason))
    }

    /// Starts an operation that was checked. Pads the buffer so that the parts of all ranks have the same
    /// length, as NCCL requires.
    fn begin(&mut self, started: Started, operation: Operation, mut buffer: Wire) -> Result<(), CommError> {
        let Operation { call, order, element, length, .. } = operation;
        let size = self.world().size();
        let chunk = length.div_ceil(size);
        let (call, read, written) = match (call, order) {
            (Call::AllReduce, Reduction::Native) => (call, length, length),
            // Every rank receives the terms of all ranks, and sums them itself.
            (Call::AllReduce, Reduction::Ordered) => (Call::AllGather, length, length * size),
            (Call::ReduceScatter, Reduction::Native) => (call, chunk * size, chunk),
            (Call::ReduceScatter, Reduction::Ordered) => (Call::AllToAll, chunk * size, chunk * size),
            (Call::AllGather, _) => (call, chunk, chunk * size),
            _ => return Err(CommError::Unsupported { operation: call.name(), transport: NAME.to_owned() }),
        };
        buffer.resize(read);
        let mut pending = None;
        if written > 0 {
            let call = self.communicator.start_call(call, element, buffer.bytes(), written * element.width());
            pending = Some(call.map_err(|reason| self.world().broken(&started, reason))?);
        }
        self.in_flight.push(InFlight { operation, started, pending, buffer });
        Ok(())
    }

    /// Waits for the operation of `bucket`.
    fn complete(&mut self, bucket: Option<usize>) -> Result<Wire, CommError> {
        loop {
            self.poll()?;
            let done = self.position(bucket).filter(|&at| self.in_flight[at].pending.is_none());
            if let Some(at) = done {
                return Ok(self.in_flight.remove(at).buffer);
            }
            self.communicator.look_again();
        }
    }

    /// Makes a blocking call on buffers that were checked.
    fn run(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), String> {
        let mine = match call {
            Call::AllReduce => &*to,
            Call::Broadcast { root } if root == self.world().rank() => &*to,
            _ => from,
        };
        let pending = self.communicator.start_call(call, element, mine, to.len())?;
        while !self.communicator.is_complete(&pending)? {
            self.communicator.look_again();
        }
        self.communicator.collect(pending, to);
        Ok(())
    }
}

impl Collective for NcclCollective {
    fn transport(&self) -> &str {
        NAME
    }

    fn connection(&self) -> Option<String> {
        Some(self.communicator.describe())
    }

    fn world_size(&self) -> usize {
        self.world().size()
    }

    fn start(&mut self, operation: Operation, buffer: Wire) -> Result<(), CommError> {
        let bucket = operation.bucket;
        assert!(
            self.position(bucket).is_none(),
            "bucket {} is in flight already: wait for it before starting it again",
            bucket.unwrap_or_default()
        );
        let started = self.check(operation, &buffer)?;
        // The first call that needs connections makes them, and waits in NCCL for the other ranks. The
        // deadline applies to this wait.
        let _waiting = self.world().watch(NAME, "launch", bucket);
        self.begin(started, operation, buffer)
    }

    fn poll(&mut self) -> Result<usize, CommError> {
        for operation in &mut self.in_flight {
            operation.advance(&mut self.communicator)?;
        }
        Ok(self.in_flight.iter().filter(|operation| operation.pending.is_some()).count())
    }

    fn is_done(&self, bucket: usize) -> bool {
        self.position(Some(bucket)).is_some_and(|at| self.in_flight[at].pending.is_none())
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let Some(at) = self.position(Some(bucket)) else {
            panic!("cannot wait for bucket {bucket}: it was not started")
        };
        let _waiting = self.world().watch(NAME, self.in_flight[at].operation.call.name(), Some(bucket));
        self.complete(Some(bucket))
    }

    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        let mut operation = Operation::all_reduce(0, buffer, how);
        operation.bucket = None;
        let started = self.check(operation, buffer)?;
        let _waiting = self.world().watch(NAME, operation.call.name(), None);
        let taken = std::mem::replace(buffer, Wire::Bytes(Vec::new()));
        self.begin(started, operation, taken)?;
        *buffer = self.complete(None)?;
        Ok(())
    }
}

impl Primitives for NcclCollective {
    fn transport(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.world().rank()
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let (world, bytes) = (self.world(), from.len().max(to.len()));
        let started = world.started(NAME, call.name(), None, bytes);
        let checked = call.check(element, from, to, world.rank(), world.size());
        checked.map_err(|reason| world.failed(&started, reason))?;
        let _waiting = world.watch(NAME, call.name(), None);
        let done = match call {
            // NCCL has no barrier, so the ranks sum a byte.
            Call::Barrier => self.run(Call::AllReduce, Element::Byte, &[], &mut [0]),
            _ if bytes == 0 => Ok(()),
            _ => self.run(call, element, from, to),
        };
        done.map_err(|reason| self.world().broken(&started, reason))
    }
}
