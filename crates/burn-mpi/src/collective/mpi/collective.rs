//! Collectives over MPI: native, or sums in rank order.

use std::rc::Rc;
use std::time::Instant;

use super::primitives::MpiPrimitives;
use super::request::{Communicator, Request};
use super::{MpiWorld, NAME};
use crate::collective::BLOCKING;
use crate::collective::ordered::chunk_range;
use crate::guard::activity;
use crate::{Collective, CommError, Operation, Primitives, Reduction, Wire, World};

/// [`Collective`] over all ranks of the job.
///
/// Open MPI makes progress on a non-blocking operation only inside MPI calls, so
/// [`poll`](Collective::poll) must be called often to overlap it.
///
/// MPI matches collectives of a communicator by the order in which ranks start them. The two
/// stages of an ordered all-reduce therefore use separate communicators, and second stages start
/// in the order of the first ones: whichever first stage completes first on a rank, the order is
/// the same on all.
///
/// It is `!Send` and `!Sync`: MPI is called only from the thread that started it.
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::MpiCollective>();
/// ```
///
/// ```compile_fail,E0277
/// fn is_used_by_several_threads<T: Sync>() {}
/// is_used_by_several_threads::<burn_mpi::MpiCollective>();
/// ```
pub struct MpiCollective {
    mpi: Rc<MpiWorld>,
    /// Separate communicator: with another collective of the same world, ranks may interleave
    /// calls in a different order.
    first_stage: Communicator,
    second_stage: Communicator,
    /// Blocking calls, on the first stage's communicator.
    blocking: MpiPrimitives,
    /// Whether two ranks on two machines exchange and sum halves. Open MPI's own non-blocking all-reduce
    /// (coll/libnbc, in place) sends all to one rank and back, so a link is idle in one direction.
    halves: bool,
    flights: Vec<Flight>,
}

/// One operation in flight. MPI reads and writes the buffers, whose heap memory does not move
/// when the `Flight` moves.
struct Flight {
    bucket: usize,
    operation: Operation,
    stage: Stage,
    request: Request,
    /// This rank's data, padded to equal chunks if the operation needs them.
    brought: Wire,
    /// Other memory that the operation writes.
    received: Option<Wire>,
    /// Ordered: the sum of this rank's chunk.
    sum: Option<Wire>,
    /// Elements of the result.
    length: usize,
    started: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// MPI performs the whole operation.
    Whole,
    /// Ordered: the all-to-all of chunks is in flight.
    Exchanging,
    /// Exchanged and summed; waits for an earlier flight to start its all-gather.
    Exchanged,
    Gathering,
    Done,
}

impl MpiCollective {
    /// The collective of `world`. All ranks must call it.
    ///
    /// # Errors
    /// When MPI fails.
    pub fn new(world: &World) -> Result<Self, CommError> {
        let mpi = Rc::clone(world.mpi());
        let (first_stage, second_stage) = (mpi.duplicate()?, mpi.duplicate()?);
        let blocking = MpiPrimitives::over(Rc::clone(&mpi), first_stage);
        let halves = matches!(world.places(), [one, other] if one.host != other.host);
        Ok(Self { mpi, first_stage, second_stage, blocking, halves, flights: Vec::new() })
    }

    /// The operation by which to perform another, with the same bits.
    fn performed_as(&self, operation: Operation) -> Operation {
        match operation {
            Operation::AllReduce(Reduction::Native) if self.halves => {
                Operation::AllReduce(Reduction::Ordered)
            }
            other => other,
        }
    }

    fn launch(&self, bucket: usize, operation: Operation, mut brought: Wire) -> Result<Flight, CommError> {
        let started = Instant::now();
        let MpiWorld { rank, size, .. } = *self.mpi;
        operation.check(NAME, &brought, &self.mpi)?;
        let whole = match operation {
            Operation::AllGather { length } => length,
            _ => brought.len(),
        };
        let length = match operation {
            Operation::ReduceScatter(_) => chunk_range(whole, size, rank).len(),
            _ => whole,
        };
        let chunk = whole.div_ceil(size);
        let (mut received, mut sum) = (None, None);
        let comm = self.first_stage;
        let (stage, request) = match operation {
            // Open MPI treats two empty buffers as aliased, and returns an error.
            _ if whole == 0 => {
                (sum, received) = (Some(brought.zeros_like(0)), Some(brought.zeros_like(0)));
                (Stage::Done, Request::over(operation.name()))
            }
            Operation::AllReduce(Reduction::Native) => {
                // SAFETY: the flight owns the buffer, touches it in `advance` only after the
                // request completes, and is leaked rather than dropped before that.
                (Stage::Whole, unsafe { self.mpi.start_all_reduce(&mut brought, comm) }?)
            }
            Operation::AllReduce(Reduction::Ordered) | Operation::ReduceScatter(Reduction::Ordered) => {
                brought.resize(chunk * size);
                sum = Some(brought.zeros_like(chunk));
                let chunks = received.insert(brought.zeros_like(chunk * size));
                // SAFETY: the flight owns the buffers, touches them in `advance` only after the
                // request completes, and is leaked rather than dropped before that.
                (Stage::Exchanging, unsafe { self.mpi.start_all_to_all(&brought, chunks, comm) }?)
            }
            Operation::ReduceScatter(Reduction::Native) => {
                brought.resize(chunk * size);
                let part = received.insert(brought.zeros_like(chunk));
                // SAFETY: the flight owns the buffers, touches them in `advance` only after the
                // request completes, and is leaked rather than dropped before that.
                (Stage::Whole, unsafe { self.mpi.start_reduce_scatter(&brought, part, comm) }?)
            }
            Operation::AllGather { .. } => {
                brought.resize(chunk);
                let all = received.insert(brought.zeros_like(chunk * size));
                // SAFETY: the flight owns the buffers, touches them in `advance` only after the
                // request completes, and is leaked rather than dropped before that.
                (Stage::Whole, unsafe { self.mpi.start_all_gather(&brought, all, comm) }?)
            }
        };
        Ok(Flight { bucket, operation, stage, request, brought, received, sum, length, started })
    }

    /// Tests all requests in flight, and starts the next stage of each flight whose current stage
    /// is complete.
    fn advance(&mut self) -> Result<(), CommError> {
        let mut may_gather = true;
        for flight in &mut self.flights {
            let bytes = flight.brought.bytes().len();
            let over = match flight.stage {
                Stage::Done | Stage::Exchanged => true,
                _ => self.mpi.test(&mut flight.request, bytes, flight.started)?,
            };
            if !over {
                may_gather &= flight.stage != Stage::Exchanging || !flight.gathers();
                continue;
            }
            if flight.stage == Stage::Exchanging
                && let (Some(sum), Some(chunks)) = (&mut flight.sum, &flight.received)
            {
                sum.sum_of_chunks(chunks);
            }
            flight.stage = match (flight.stage, &flight.sum) {
                (Stage::Exchanging | Stage::Exchanged, Some(sum)) if flight.gathers() => match may_gather {
                    true => {
                        let all = &mut flight.brought;
                        // SAFETY: as in `launch`.
                        flight.request = unsafe { self.mpi.start_all_gather(sum, all, self.second_stage) }?;
                        Stage::Gathering
                    }
                    false => Stage::Exchanged,
                },
                _ => Stage::Done,
            };
            may_gather &= flight.stage != Stage::Exchanged;
        }
        Ok(())
    }

    /// Waits for the flight of `bucket` and makes progress on all others: another rank may wait
    /// for their second stage first.
    fn land(&mut self, bucket: usize) -> Result<Wire, CommError> {
        loop {
            self.advance()?;
            let at = self.position(bucket);
            if self.flights[at].stage == Stage::Done {
                return Ok(self.flights.remove(at).result());
            }
            self.mpi.pause();
        }
    }

    fn position(&self, bucket: usize) -> usize {
        let found = self.flights.iter().position(|flight| flight.bucket == bucket);
        found.unwrap_or_else(|| panic!("bucket {bucket} is waited for without having been started"))
    }
}

impl Flight {
    /// Whether a second stage follows the all-to-all of chunks.
    fn gathers(&self) -> bool {
        self.operation == Operation::AllReduce(Reduction::Ordered)
    }

    /// The result of the operation, once complete.
    fn result(self) -> Wire {
        let result = match self.operation {
            Operation::AllReduce(_) => Some(self.brought),
            Operation::ReduceScatter(Reduction::Ordered) => self.sum,
            Operation::ReduceScatter(Reduction::Native) | Operation::AllGather { .. } => self.received,
        };
        let mut result = result.expect("each operation has a result");
        result.resize(self.length);
        result
    }
}

impl Collective for MpiCollective {
    fn transport(&self) -> &str {
        NAME
    }

    fn world_size(&self) -> usize {
        self.mpi.size
    }

    fn start(&mut self, bucket: usize, operation: Operation, buffer: Wire) -> Result<(), CommError> {
        assert!(self.flights.iter().all(|flight| flight.bucket != bucket), "bucket {bucket} is in flight");
        let flight = self.launch(bucket, self.performed_as(operation), buffer)?;
        self.flights.push(flight);
        Ok(())
    }

    fn poll(&mut self) -> Result<usize, CommError> {
        self.advance()?;
        Ok(self.flights.iter().filter(|flight| flight.stage != Stage::Done).count())
    }

    fn is_done(&self, bucket: usize) -> bool {
        self.flights.iter().any(|flight| flight.bucket == bucket && flight.stage == Stage::Done)
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let operation = self.flights[self.position(bucket)].operation;
        let _waiting = activity::enter(NAME, operation.name(), Some(bucket));
        self.land(bucket)
    }

    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        match how {
            Reduction::Native => self.blocking.all_reduce(buffer),
            Reduction::Ordered => {
                let _waiting = activity::enter(NAME, "all-reduce", None);
                let taken = std::mem::replace(buffer, Wire::Bytes(Vec::new()));
                self.start(BLOCKING, Operation::AllReduce(how), taken)?;
                *buffer = self.land(BLOCKING)?;
                Ok(())
            }
        }
    }

    fn broadcast(&mut self, buffer: &mut Wire, root: usize) -> Result<(), CommError> {
        self.blocking.broadcast(buffer.bytes_mut(), root)
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        self.blocking.barrier()
    }
}

impl Drop for MpiCollective {
    fn drop(&mut self) {
        if self.flights.iter().all(|flight| flight.stage == Stage::Done) && !std::thread::panicking() {
            // SAFETY: both are duplicates with no operation in flight.
            unsafe {
                self.mpi.free(self.first_stage);
                self.mpi.free(self.second_stage);
            }
        }
        // After an error, MPI may still write to buffers in flight: that memory is leaked rather
        // than freed.
        self.flights.drain(..).filter(|flight| flight.stage != Stage::Done).for_each(std::mem::forget);
    }
}
