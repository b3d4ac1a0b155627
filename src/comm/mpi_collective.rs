//! Gradients over MPI: its own all-reduce, or one that adds in rank order.

use std::time::Instant;

use super::collective::{Backend, Collective, Reduction, Wire};
use super::mpi::{MpiWorld, Request};
use super::{CommError, World};

/// [`Collective`] over `MPI_COMM_WORLD`.
///
/// Open MPI moves a non-blocking operation on only inside MPI calls, so
/// [`progress`](Collective::progress) has to be called often to hide it.
pub struct MpiCollective {
    mpi: MpiWorld,
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
    Gathering,
    Done,
}

impl MpiCollective {
    /// The collective of `world`.
    pub fn new(world: &World) -> Self {
        Self { mpi: world.mpi().clone(), flights: Vec::new() }
    }

    fn launch(&self, bucket: usize, mut buffer: Wire, how: Reduction) -> Result<Flight, CommError> {
        let started = Instant::now();
        let (stage, request, chunks) = match how {
            Reduction::Native => {
                let request = self.mpi.start_all_reduce(&mut buffer)?;
                (Stage::Reducing, request, None)
            }
            Reduction::Ordered => {
                let sum = buffer.zeros_like(buffer.len() / self.mpi.size);
                let mut chunks = buffer.zeros_like(buffer.len());
                let request = self.mpi.start_all_to_all(&buffer, &mut chunks)?;
                (Stage::Exchanging, request, Some((chunks, sum)))
            }
        };
        Ok(Flight { bucket, stage, request, buffer, chunks, started })
    }

    /// Tests `flight` and takes it to its next stage where the one under way
    /// is over. Tells whether all of it is done.
    fn advance(mpi: &MpiWorld, flight: &mut Flight) -> Result<bool, CommError> {
        if flight.stage == Stage::Done {
            return Ok(true);
        }
        if !mpi.test(&mut flight.request, flight.buffer.bytes().len(), flight.started)? {
            return Ok(false);
        }
        flight.stage = match (flight.stage, &mut flight.chunks) {
            (Stage::Exchanging, Some((chunks, sum))) => {
                sum.sum_of_chunks(chunks);
                flight.request = mpi.start_all_gather(sum, &mut flight.buffer)?;
                Stage::Gathering
            }
            _ => Stage::Done,
        };
        Ok(flight.stage == Stage::Done)
    }

    fn finish(mpi: &MpiWorld, mut flight: Flight) -> Result<Wire, CommError> {
        while !Self::advance(mpi, &mut flight)? {
            mpi.pause();
        }
        Ok(flight.buffer)
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
            Reduction::Native => self.mpi.all_reduce(buffer),
            Reduction::Ordered => {
                let taken = std::mem::replace(buffer, Wire::F32(Vec::new()));
                *buffer = Self::finish(&self.mpi, self.launch(0, taken, how)?)?;
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
        for flight in &mut self.flights {
            Self::advance(&self.mpi, flight)?;
        }
        Ok(())
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let Some(at) = self.flights.iter().position(|f| f.bucket == bucket) else {
            unreachable!("bucket {bucket} is waited for without having been started");
        };
        // All that is in flight moves on while this one is waited for; a later
        // bucket's second stage must not wait for this rank to ask for it.
        while !Self::advance(&self.mpi, &mut self.flights[at])? {
            self.progress()?;
            self.mpi.pause();
        }
        Ok(self.flights.remove(at).buffer)
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        self.mpi.barrier()
    }
}
