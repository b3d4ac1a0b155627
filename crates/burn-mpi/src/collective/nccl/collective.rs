//! Collectives over NCCL: native, or sums in rank order.

use std::time::Instant;

use super::NAME;
use super::call::Call;
use super::communicator::{Communicator, Pending};
use super::library::Datatype;
use crate::collective::ordered::chunk_range;
use crate::guard::activity;
use crate::{Collective, CommError, Operation, Reduction, Wire, World};

/// [`Collective`] over NCCL, between GPUs.
///
/// Operations run on the GPU by themselves, in a stream of their own, so [`poll`](Collective::poll)
/// is not needed to overlap them. Sums in rank order gather the buffers of all ranks, which takes as
/// many times the memory as there are ranks, and are computed by the processor.
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
pub struct NcclCollective {
    communicator: Communicator,
    /// In the order of their start, which is that of their completion.
    flights: Vec<Flight>,
}

/// An operation in flight.
struct Flight {
    bucket: usize,
    operation: Operation,
    /// `None` if there is nothing to send.
    pending: Option<Pending>,
    is_done: bool,
    /// The caller's buffer.
    brought: Wire,
    started: Instant,
}

impl NcclCollective {
    /// Connects all ranks of `world`, each with the GPU of number `gpu` or, if it is `None`, with
    /// the first one that no lower rank of its machine uses. All ranks must call it.
    ///
    /// # Errors
    /// [`CommError::NoNccl`] if a rank lacks the driver, NCCL or a GPU of its own; all ranks then
    /// return the same error. [`CommError::Operation`] if NCCL fails.
    pub fn connect(world: &World, gpu: Option<usize>) -> Result<Self, CommError> {
        Ok(Self { communicator: Communicator::connect(world, gpu)?, flights: Vec::new() })
    }

    fn position(&self, bucket: usize) -> usize {
        let found = self.flights.iter().position(|flight| flight.bucket == bucket);
        found.unwrap_or_else(|| panic!("bucket {bucket} is waited for without having been started"))
    }

    /// A blocking operation on one buffer, in place.
    fn call(&mut self, operation: &str, call: Call, buffer: &mut Wire) -> Result<(), CommError> {
        let _waiting = activity::enter(NAME, operation, None);
        in_place(&mut self.communicator, operation, call, buffer)
    }
}

/// Runs `call` on the elements of `buffer`, which has the result afterwards. The caller has entered
/// the operation.
pub(super) fn in_place(
    communicator: &mut Communicator,
    operation: &str,
    call: Call,
    buffer: &mut Wire,
) -> Result<(), CommError> {
    let (started, datatype, count) = (Instant::now(), Datatype::of(buffer), buffer.len());
    if count == 0 {
        return Ok(());
    }
    let layout = call.layout(count, communicator.rank(), communicator.size());
    let bytes = buffer.bytes_mut();
    let mine = if layout.brings.is_empty() { &[] } else { &*bytes };
    let result = communicator.start(call, datatype, count, mine).and_then(|pending| {
        communicator.wait(&pending)?;
        let returned = if layout.returns.is_empty() { &mut [] } else { &mut *bytes };
        communicator.collect(pending, returned);
        Ok(())
    });
    let length = bytes.len();
    result.map_err(|reason| communicator.error(operation, length, started, reason))
}

impl Flight {
    /// NCCL's operation, and the elements of each rank in it.
    fn call(operation: Operation, buffer: &Wire, size: usize) -> (Call, usize) {
        let (length, chunk) = (buffer.len(), buffer.len().div_ceil(size));
        match operation {
            Operation::AllReduce(Reduction::Native) => (Call::AllReduce, length),
            Operation::AllReduce(Reduction::Ordered) => (Call::AllGather, length),
            Operation::ReduceScatter(Reduction::Native) => (Call::ReduceScatter, chunk),
            Operation::ReduceScatter(Reduction::Ordered) => (Call::AllToAll, chunk),
            Operation::AllGather { length } => (Call::AllGather, length.div_ceil(size)),
        }
    }

    /// The result of an operation that is complete.
    fn result(self, communicator: &mut Communicator) -> Wire {
        let (rank, size) = (communicator.rank(), communicator.size());
        let Self { operation, pending, brought: mut buffer, .. } = self;
        let Some(pending) = pending else { return buffer };
        let length = buffer.len();
        match operation {
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
}

impl Collective for NcclCollective {
    fn transport(&self) -> &str {
        NAME
    }

    fn connection(&self) -> Option<String> {
        Some(self.communicator.describe())
    }

    fn world_size(&self) -> usize {
        self.communicator.size()
    }

    fn start(&mut self, bucket: usize, operation: Operation, buffer: Wire) -> Result<(), CommError> {
        assert!(self.flights.iter().all(|flight| flight.bucket != bucket), "bucket {bucket} is in flight");
        let started = Instant::now();
        operation.check(NAME, &buffer, self.communicator.mpi())?;
        let (call, count) = Flight::call(operation, &buffer, self.communicator.size());
        let pending = if count == 0 {
            None
        } else {
            // NCCL connects ranks in the first call that needs it, and then waits for them.
            let _waiting = activity::enter(NAME, "launch", Some(bucket));
            let (datatype, bytes) = (Datatype::of(&buffer), buffer.bytes());
            let pending = self.communicator.start(call, datatype, count, bytes);
            Some(pending.map_err(|reason| self.error(bucket, operation, bytes.len(), started, reason))?)
        };
        let is_done = pending.is_none();
        self.flights.push(Flight { bucket, operation, pending, is_done, brought: buffer, started });
        Ok(())
    }

    fn poll(&mut self) -> Result<usize, CommError> {
        for at in 0..self.flights.len() {
            let flight = &mut self.flights[at];
            if let Some(pending) = flight.pending.as_ref().filter(|_| !flight.is_done) {
                match self.communicator.is_complete(pending) {
                    Ok(true) => flight.is_done = true,
                    // One stream: those that were started later are not complete either.
                    Ok(false) => break,
                    Err(reason) => return Err(self.error_of(at, reason)),
                }
            }
        }
        Ok(self.flights.iter().filter(|flight| !flight.is_done).count())
    }

    fn is_done(&self, bucket: usize) -> bool {
        self.flights.iter().any(|flight| flight.bucket == bucket && flight.is_done)
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let at = self.position(bucket);
        let flight = &self.flights[at];
        let _waiting = activity::enter(NAME, flight.operation.name(), Some(bucket));
        if let Some(pending) = flight.pending.as_ref().filter(|_| !flight.is_done) {
            self.communicator.wait(pending).map_err(|reason| self.error_of(at, reason))?;
        }
        Ok(self.flights.remove(at).result(&mut self.communicator))
    }

    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        match how {
            Reduction::Native => {
                Operation::AllReduce(how).check(NAME, buffer, self.communicator.mpi())?;
                self.call("all-reduce", Call::AllReduce, buffer)
            }
            Reduction::Ordered => {
                let taken = std::mem::replace(buffer, Wire::Bytes(Vec::new()));
                self.start(crate::collective::BLOCKING, Operation::AllReduce(how), taken)?;
                *buffer = self.wait(crate::collective::BLOCKING)?;
                Ok(())
            }
        }
    }

    fn broadcast(&mut self, buffer: &mut Wire, root: usize) -> Result<(), CommError> {
        self.call("broadcast", Call::Broadcast { root }, buffer)
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        self.call("barrier", Call::AllReduce, &mut Wire::Bytes(vec![0]))
    }
}

impl NcclCollective {
    fn error(
        &self,
        bucket: usize,
        operation: Operation,
        bytes: usize,
        started: Instant,
        reason: String,
    ) -> CommError {
        let name = match bucket {
            crate::collective::BLOCKING => operation.name().to_owned(),
            bucket => format!("{} of bucket {bucket}", operation.name()),
        };
        self.communicator.error(&name, bytes, started, reason)
    }

    fn error_of(&self, at: usize, reason: String) -> CommError {
        let Flight { bucket, operation, started, ref brought, .. } = self.flights[at];
        self.error(bucket, operation, brought.bytes().len(), started, reason)
    }
}
