//! Gradients over MPI: its own all-reduce, or one that adds in rank order.

use std::time::Instant;

use crate::guard::activity;
use crate::mpi::MpiWorld;
use crate::mpi::request::{Communicator, Request};
use crate::{Backend, Collective, Reduction, Wire};
use crate::{CommError, World};

/// [`Collective`] over `MPI_COMM_WORLD`.
///
/// Open MPI moves a non-blocking operation on only inside MPI calls, so
/// [`progress`](Collective::progress) has to be called often to hide it.
///
/// MPI matches collectives of a communicator by the order in which ranks start
/// them. The two stages of an ordered reduction therefore have a communicator
/// each, and second stages start in the order of the first ones: whichever
/// first stage a rank sees end first, the order is the same on all.
pub struct MpiCollective {
    mpi: MpiWorld,
    /// Of its own: with another collective of the same world, ranks may take
    /// turns in another order.
    first_stage: Communicator,
    second_stage: Communicator,
    flights: Vec<Flight>,
}

/// One operation under way. The transport reads and writes the buffers, whose
/// heap memory stays where it is while the `Flight` moves.
struct Flight {
    bucket: usize,
    stage: Stage,
    request: Request,
    buffer: Wire,
    /// Ordered: this rank's chunk of every rank's buffer, and their sum.
    chunks: Option<(Wire, Wire)>,
    started: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Reducing,
    Exchanging,
    /// Exchanged and summed; an earlier flight has to gather first.
    Exchanged,
    Gathering,
    Done,
}

/// The flight of a blocking call, which no bucket has the number of.
const BLOCKING: usize = usize::MAX;

impl MpiCollective {
    /// The collective of `world`. All ranks call it.
    ///
    /// # Errors
    /// When MPI fails.
    pub fn new(world: &World) -> Result<Self, CommError> {
        let mpi = world.mpi().clone();
        let (first_stage, second_stage) = (mpi.duplicate()?, mpi.duplicate()?);
        Ok(Self { first_stage, second_stage, mpi, flights: Vec::new() })
    }

    fn launch(&self, bucket: usize, mut buffer: Wire, how: Reduction) -> Result<Flight, CommError> {
        let started = Instant::now();
        let (stage, request, chunks) = match how {
            Reduction::Native => {
                let request = self.mpi.start_all_reduce(&mut buffer, self.first_stage)?;
                (Stage::Reducing, request, None)
            }
            Reduction::Ordered => {
                let sum = buffer.zeros_like(buffer.len() / self.mpi.size);
                let mut chunks = buffer.zeros_like(buffer.len());
                let request = self.mpi.start_all_to_all(&buffer, &mut chunks, self.first_stage)?;
                (Stage::Exchanging, request, Some((chunks, sum)))
            }
        };
        Ok(Flight { bucket, stage, request, buffer, chunks, started })
    }

    /// Tests all that is in flight and takes each to its next stage where the
    /// one under way is over.
    fn advance(&mut self) -> Result<(), CommError> {
        let mut may_gather = true;
        for flight in &mut self.flights {
            let bytes = flight.buffer.bytes().len();
            let over = match flight.stage {
                Stage::Done => true,
                Stage::Exchanged => true,
                _ => self.mpi.test(&mut flight.request, bytes, flight.started)?,
            };
            flight.stage = match (flight.stage, &mut flight.chunks) {
                (stage, _) if !over => stage,
                (Stage::Exchanging | Stage::Exchanged, Some((chunks, sum))) => {
                    if flight.stage == Stage::Exchanging {
                        sum.sum_of_chunks(chunks);
                    }
                    match may_gather {
                        true => {
                            let all = &mut flight.buffer;
                            flight.request = self.mpi.start_all_gather(sum, all, self.second_stage)?;
                            Stage::Gathering
                        }
                        false => Stage::Exchanged,
                    }
                }
                _ => Stage::Done,
            };
            may_gather &= !matches!(flight.stage, Stage::Exchanging | Stage::Exchanged);
        }
        Ok(())
    }

    /// Waits for the flight of `bucket`, while all others move on too: another
    /// rank may wait for their second stage first.
    fn land(&mut self, bucket: usize) -> Result<Wire, CommError> {
        loop {
            self.advance()?;
            match self.flights.iter().position(|flight| flight.bucket == bucket) {
                Some(at) if self.flights[at].stage == Stage::Done => {
                    return Ok(self.flights.remove(at).buffer);
                }
                Some(_) => self.mpi.pause(),
                None => unreachable!("bucket {bucket} is waited for without having been started"),
            }
        }
    }
}

impl Collective for MpiCollective {
    fn backend(&self) -> Backend {
        Backend::Mpi
    }

    fn world_size(&self) -> usize {
        self.mpi.size
    }

    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        match how {
            Reduction::Native => self.mpi.all_reduce(buffer, self.first_stage),
            Reduction::Ordered => {
                let _waiting = activity::enter(Backend::Mpi, "all-reduce", None);
                let taken = std::mem::replace(buffer, Wire::F32(Vec::new()));
                self.start(BLOCKING, taken, how)?;
                *buffer = self.land(BLOCKING)?;
                Ok(())
            }
        }
    }

    fn start(&mut self, bucket: usize, buffer: Wire, how: Reduction) -> Result<(), CommError> {
        let flight = self.launch(bucket, buffer, how)?;
        self.flights.push(flight);
        Ok(())
    }

    fn progress(&mut self) -> Result<(), CommError> {
        self.advance()
    }

    fn in_flight(&self) -> usize {
        self.flights.iter().filter(|flight| flight.stage != Stage::Done).count()
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let _waiting = activity::enter(Backend::Mpi, "all-reduce", Some(bucket));
        self.land(bucket)
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        let _waiting = activity::enter(Backend::Mpi, "barrier", None);
        self.mpi.barrier()
    }
}

impl Drop for MpiCollective {
    fn drop(&mut self) {
        if self.flights.iter().all(|flight| flight.stage == Stage::Done) && !std::thread::panicking() {
            self.mpi.free(self.first_stage);
            self.mpi.free(self.second_stage);
        }
        // After an error, MPI may still write to what is in flight: that memory
        // is given up rather than freed.
        self.flights.drain(..).filter(|flight| flight.stage != Stage::Done).for_each(std::mem::forget);
    }
}
