//! One time line of all ranks: events on rank 0's clock, and their file.

mod file;
mod rank;
mod waits;

use burn_mpi::lab::ClockOffset;
use serde::{Deserialize, Serialize};

use crate::spans::{Logged, REST};

pub use file::TraceFile;
pub use waits::{Wait, longest_wait};

/// A rank's clock compared with rank 0's before and after the events. Drift between the two
/// is taken to be linear.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Before the first event.
    pub start: ClockOffset,
    /// After the last.
    pub end: ClockOffset,
}

impl Clock {
    /// Bound of the error at both comparisons, in ns: the larger of the two.
    pub fn error_ns(&self) -> u64 {
        self.start.error_ns.max(self.end.error_ns)
    }

    /// Change of the offset from start to end, in ns.
    pub fn drift_ns(&self) -> i64 {
        self.end.offset_ns - self.start.offset_ns
    }

    /// A time of the rank's clock on rank 0's, in ns.
    fn on_root(&self, ns: i64) -> i64 {
        let between = (self.end.at_ns - self.start.at_ns).max(1) as f64;
        let passed = (ns - self.start.at_ns) as f64 / between;
        ns - self.start.offset_ns - (passed * self.drift_ns() as f64).round() as i64
    }
}

/// The spans of one rank on rank 0's clock, as sent to rank 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTrace {
    /// Titles and phases of operators, by row.
    operators: Vec<(String, String)>,
    /// Steps and operators, in the order in which they ended.
    spans: Vec<Logged>,
    /// In the order in which they began.
    buckets: Vec<Bucket>,
}

/// A bucket of a step, from its start to its end. Times in ns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Bucket {
    step: usize,
    index: usize,
    /// Its thread: buckets that overlap are on different ones.
    lane: usize,
    begin: i64,
    end: i64,
    bytes: usize,
    parameters: String,
    /// Time in flight behind backward.
    hidden: i64,
    /// The calls that start it and wait for it, on the thread that computes.
    calls: Vec<Logged>,
}

impl RankTrace {
    /// The first and the last step that was recorded, if one was.
    pub fn range(&self) -> Option<[usize; 2]> {
        Some([self.steps().next()?.step, self.steps().last()?.step])
    }

    /// The steps.
    fn steps(&self) -> impl Iterator<Item = &Logged> {
        self.spans.iter().filter(|span| span.row == REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_corrected_linearly() {
        let at = |at_ns, offset_ns, error_ns| ClockOffset { at_ns, offset_ns, error_ns };
        // 500 ns ahead at first and 700 ns at the end.
        let clock = Clock { start: at(1_000, 500, 3), end: at(3_000, 700, 9) };
        assert_eq!([1_000, 2_000, 3_000, 5_000].map(|ns| clock.on_root(ns)), [500, 1_400, 2_300, 4_100]);
        assert_eq!((clock.error_ns(), clock.drift_ns()), (9, 200));
        let root = Clock { start: at(5, 0, 0), end: at(5, 0, 0) };
        assert_eq!(root.on_root(77), 77);
    }
}
