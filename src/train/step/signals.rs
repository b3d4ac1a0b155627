//! Signals between ranks that train with local updates: losses that are NaN or infinite, and stop requests.
//!
//! Local updates have no collective in most steps. So that a stop request takes effect soon, ranks exchange
//! their signals in each step, but wait for them only some steps later. The exchange then costs no time,
//! unless a rank is that many steps behind.

use std::time::{Duration, Instant};

use burn_mpi::{
    Backend, Collective, CommError, Operation, Reduction, Signals, Transport, Wire, World, connect,
};

/// Minimum number of steps after which a rank waits for the signals of a step.
const LEAST_DELAY: usize = 2;
/// Maximum number of these steps.
const MOST_DELAY: usize = 32;

/// The signals of the last steps. All ranks exchange them over an MPI communicator of their own, whatever the
/// backend: fragments may occupy the connections of another backend, one operation after the other.
pub struct LateSignals {
    collective: Box<dyn Collective>,
    /// Number of steps after which this rank waits for the signals of a step.
    delay: usize,
    /// Number of steps whose signals this rank has sent.
    sent: usize,
    /// Number of steps whose signals this rank has received.
    received: usize,
    /// Time in which this rank waited for other ranks.
    pub waited: Duration,
}

impl LateSignals {
    /// Connects all ranks, which must all call it. Signals share the network with fragments, which are in
    /// flight for `in_flight` steps, and may arrive only after them.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn new(world: &World, transport: &Transport, in_flight: usize) -> Result<Self, CommError> {
        let collective = connect(world, Backend::Mpi, transport)?;
        let delay = in_flight.clamp(LEAST_DELAY, MOST_DELAY);
        Ok(Self { collective, delay, sent: 0, received: 0, waited: Duration::ZERO })
    }

    /// Sends this rank's signals of a step. Returns the sum over ranks of the signals of an earlier step; of
    /// all steps so far if `all` is true, which must be equal on all ranks.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn exchange(&mut self, mine: Signals, all: bool) -> Result<Signals, CommError> {
        let wire = Wire::F32(vec![mine.not_finite, mine.stop]);
        let sum = Operation::all_reduce(self.sent % (self.delay + 1), &wire, Reduction::Native);
        self.collective.start(sum, wire)?;
        self.sent += 1;
        let mut sums = Signals::default();
        let mut last = if all { self.sent } else { self.sent.saturating_sub(self.delay) };
        let began = Instant::now();
        while self.received < last {
            if let Wire::F32(values) = self.collective.wait(self.received % (self.delay + 1))? {
                sums.not_finite += values[0];
                sums.stop += values[1];
            }
            self.received += 1;
            if sums.not_finite + sums.stop > 0.0 {
                // All ranks end after this step, and leave no signal in flight.
                last = self.sent;
            }
        }
        self.waited += began.elapsed();
        Ok(sums)
    }
}
