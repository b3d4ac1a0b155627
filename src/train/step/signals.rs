//! Signals between ranks that train with local updates: losses that are NaN or infinite, and stop requests.
//!
//! Local updates have no collective in most steps. So that a stop request takes effect soon, ranks exchange
//! their signals in each step, but wait for them only two steps later. The exchange then costs no time,
//! unless a rank is more than two steps behind.

use std::time::{Duration, Instant};

use burn_mpi::{
    Backend, Collective, CommError, Operation, Reduction, Signals, Transport, Wire, World, connect,
};

/// Number of steps after which a rank waits for the signals of a step.
const DELAY: usize = 2;

/// The signals of the last steps, which all ranks exchange over a communicator of their own.
pub struct LateSignals {
    collective: Box<dyn Collective>,
    /// Number of steps whose signals this rank has sent.
    sent: usize,
    /// Number of steps whose signals this rank has received.
    received: usize,
    /// Time in which this rank waited for other ranks.
    pub waited: Duration,
}

impl LateSignals {
    /// Connects all ranks, which must all call it.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn new(world: &World, transport: &Transport) -> Result<Self, CommError> {
        let collective = connect(world, Backend::Mpi, transport)?;
        Ok(Self { collective, sent: 0, received: 0, waited: Duration::ZERO })
    }

    /// Sends this rank's signals of a step. Returns the sum over ranks of the signals of the step two steps
    /// before; of all steps so far if `all` is true, which must be equal on all ranks.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn exchange(&mut self, mine: Signals, all: bool) -> Result<Signals, CommError> {
        let wire = Wire::F32(vec![mine.not_finite, mine.stop]);
        let sum = Operation::all_reduce(self.sent % (DELAY + 1), &wire, Reduction::Native);
        self.collective.start(sum, wire)?;
        self.sent += 1;
        let mut sums = Signals::default();
        let mut last = if all { self.sent } else { self.sent.saturating_sub(DELAY) };
        let began = Instant::now();
        while self.received < last {
            if let Wire::F32(values) = self.collective.wait(self.received % (DELAY + 1))? {
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
