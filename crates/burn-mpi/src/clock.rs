//! The clock of a rank, and clock offsets between ranks, measured by round trips of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{Backend, CommError, Transport, World, connect_primitives};

/// Source of a rank's time: the system clock, or the virtual time of a simulation.
#[derive(Debug, Clone)]
pub(crate) enum Clock {
    /// The system's clock, which counts from this `Instant`.
    System(Instant),
    /// Virtual time in ns, set by the scheduler of the simulation.
    Simulated(Arc<AtomicU64>),
}

impl Clock {
    /// Starts a system clock at zero.
    pub fn system() -> Self {
        Self::System(Instant::now())
    }

    /// Returns the time since the clock's start.
    pub fn now(&self) -> Duration {
        match self {
            Self::System(beginning) => beginning.elapsed(),
            Self::Simulated(time) => Duration::from_nanos(time.load(Ordering::Relaxed)),
        }
    }
}

/// Number of round trips to each rank. Only the shortest round trip counts: other processes, and the
/// connection that the first message sets up, delay it least.
const ROUND_TRIPS: usize = 64;

/// Offset of a rank's clock from rank 0's, measured at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffset {
    /// Time of the comparison on the rank's own clock, in ns.
    pub at_ns: i64,
    /// The rank's clock minus rank 0's, in ns.
    pub offset_ns: i64,
    /// Maximum error of the offset, in ns: half of the shortest round trip, and 1 ns for rounding. 0 on rank
    /// 0.
    pub error_ns: u64,
}

impl World {
    /// Measures the offset of every rank's clock from rank 0's clock. `now` reads the clock of the calling
    /// rank. Returns the offsets in rank order, the same on every rank. All ranks must call it.
    ///
    /// Rank 0 sends 64 messages to each rank in turn, and the rank replies with its time. Only the shortest
    /// round trip counts. The rank is assumed to read its clock in the middle of the round trip, so the error
    /// is at most half of the round trip (Cristian's algorithm, 1989). The messages are sent over MPI, even
    /// if [`exchange_over`](Self::exchange_over) has set another transport.
    ///
    /// Clocks drift by some µs per second. Measure the offsets at the start and at the end of a measurement,
    /// and interpolate.
    ///
    /// ```no_run
    /// # use std::time::Instant;
    /// # use burn_mpi::{CommError, World};
    /// # fn example(world: &World) -> Result<(), CommError> {
    /// let since = Instant::now();
    /// let own = world.clock_offsets(|| since.elapsed())?[world.rank()];
    /// // The same moment on every rank, within `own.error_ns`.
    /// let now_ns = since.elapsed().as_nanos() as i64 - own.offset_ns;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If MPI fails or the deadline passes.
    pub fn clock_offsets(&self, now: impl Fn() -> Duration) -> Result<Vec<ClockOffset>, CommError> {
        let mut messages = connect_primitives(self, Backend::Mpi, &Transport::default())?;
        let mut own = vec![ClockOffset { at_ns: nanoseconds(now()), ..ClockOffset::default() }];
        let mut round_trip = |rank| {
            let mut reply = [0; 8];
            let asked = now();
            messages.send(&[0], rank)?;
            messages.receive(&mut reply, rank)?;
            Ok(ClockOffset::of_round_trip(asked, i64::from_le_bytes(reply), now()))
        };
        if self.is_root() {
            for rank in 1..self.size() {
                let trips: Vec<_> =
                    (0..ROUND_TRIPS).map(|_| round_trip(rank)).collect::<Result<_, CommError>>()?;
                own.extend(trips.into_iter().min_by_key(|offset| offset.error_ns));
            }
        } else {
            for _ in 0..ROUND_TRIPS {
                messages.receive(&mut [0], 0)?;
                messages.send(&nanoseconds(now()).to_le_bytes(), 0)?;
            }
        }
        self.broadcast(&own)
    }
}

impl ClockOffset {
    /// Computes the offset from one round trip. `asked` and `answered` are times on rank 0's clock, `replied`
    /// is the time in ns on the other rank's clock.
    fn of_round_trip(asked: Duration, replied: i64, answered: Duration) -> Self {
        let (asked, answered) = (nanoseconds(asked), nanoseconds(answered));
        Self {
            at_ns: replied,
            offset_ns: replied - (asked + answered) / 2,
            // Half of the round trip, rounded up. The added 1 ns covers the truncation in `offset_ns`.
            error_ns: (answered - asked).unsigned_abs().div_ceil(2) + 1,
        }
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_gives_offset_and_error() {
        // The other clock is 1000 ns ahead; requests take 10 to 90 ns, replies 30 to 500 ns.
        let trip = |asked: i64, there: i64, back: i64| {
            let nanoseconds = |time: i64| Duration::from_nanos(time as u64);
            let answered = nanoseconds(asked + there + back);
            ClockOffset::of_round_trip(nanoseconds(asked), asked + there + 1000, answered)
        };
        let trips = [trip(0, 90, 500), trip(2000, 10, 30), trip(4000, 40, 60)];
        let best = trips.into_iter().min_by_key(|offset| offset.error_ns);
        assert_eq!(best, Some(ClockOffset { at_ns: 3010, offset_ns: 990, error_ns: 21 }));
        for found in trips {
            assert!(found.offset_ns.abs_diff(1000) <= found.error_ns, "{found:?}");
        }
    }
}
