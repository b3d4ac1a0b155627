//! Keeps single spans (one call of an operator, from start to end) for a time line. The tables of a profile
//! need only sums of spans, and no log.

use std::ops::RangeInclusive;
use std::time::Instant;

use burn_mpi::BucketReport;
use serde::{Deserialize, Serialize};

/// A span that has ended. `row` is the number of its operator in the recorder. Times are in ns after
/// [`Log::since`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logged {
    pub row: usize,
    pub step: usize,
    pub begin_ns: i64,
    pub end_ns: i64,
}

/// The spans of a range of steps, in the order in which they ended.
#[derive(Debug, Clone)]
pub struct Log {
    since: Instant,
    steps: RangeInclusive<usize>,
    /// The current step.
    pub(crate) step: usize,
    pub(crate) spans: Vec<Logged>,
    /// Spans of buckets in flight during backward. The flag is true if a span ended because the all-reduce
    /// was complete, and false if it ended because backward ended.
    pub(crate) in_flight: Vec<(Logged, bool)>,
    /// The plans of buckets. Each plan has the first step in which it applies, and the parameters in each
    /// bucket.
    plans: Vec<(usize, Vec<BucketReport>)>,
}

impl Log {
    /// Makes a log of `steps`, counted from 1. Times are measured from `since`.
    pub fn new(since: Instant, steps: RangeInclusive<usize>) -> Self {
        Self { since, steps, step: 0, spans: Vec::new(), in_flight: Vec::new(), plans: Vec::new() }
    }

    /// Whether the log keeps spans of `step`.
    pub(crate) fn covers(&self, step: usize) -> bool {
        self.steps.contains(&step)
    }

    /// Removes all spans, and counts steps from 1 again.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.since, self.steps.clone());
    }

    pub(crate) fn span(&mut self, row: usize, began: Instant, ended: Instant) {
        self.spans.extend(self.logged(row, began, ended));
    }

    pub(crate) fn pending(&mut self, row: usize, since: Instant, until: Instant, complete: bool) {
        self.in_flight.extend(self.logged(row, since, until).map(|span| (span, complete)));
    }

    fn logged(&self, row: usize, began: Instant, ended: Instant) -> Option<Logged> {
        let (begin_ns, end_ns) = (self.ns(began), self.ns(ended));
        self.covers(self.step).then_some(Logged { row, step: self.step, begin_ns, end_ns })
    }

    /// Records the buckets of the current step.
    pub(crate) fn buckets(&mut self, buckets: &[BucketReport]) {
        if self.plans.last().is_none_or(|(_, last)| last != buckets) {
            self.plans.push((self.step, buckets.to_vec()));
        }
    }

    /// Returns a bucket of `step` by its index.
    pub(crate) fn bucket(&self, step: usize, bucket: usize) -> Option<&BucketReport> {
        // A profile records its only plan after all steps. This plan also applies to earlier steps.
        let plan = self.plans.iter().rev().find(|(first, _)| *first <= step).or(self.plans.first());
        plan.and_then(|(_, buckets)| buckets.get(bucket))
    }

    fn ns(&self, time: Instant) -> i64 {
        i64::try_from(time.saturating_duration_since(self.since).as_nanos()).unwrap_or(i64::MAX)
    }
}

/// Returns the name of the first parameter, and the number of the others. A bucket without parameters
/// contains only control values, such as stop requests.
pub(crate) fn parameters(names: &[String]) -> String {
    match names {
        [] => "control values".into(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn spans_of_the_range_alone_are_kept() {
        let since = Instant::now();
        let mut log = Log::new(since, 2..=3);
        let at = |ns| since + Duration::from_nanos(ns);
        for step in 1..=4u64 {
            log.step += 1;
            log.span(7, at(10 * step), at(10 * step + 5));
            log.pending(0, at(10 * step), at(10 * step + 1), true);
        }
        let spans: Vec<[i64; 2]> = log.spans.iter().map(|span| [span.begin_ns, span.end_ns]).collect();
        assert_eq!(spans, [[20, 25], [30, 35]]);
        assert_eq!(log.in_flight.iter().map(|(span, _)| span.step).collect::<Vec<_>>(), [2, 3]);
        log.clear();
        log.step = 2;
        log.span(7, at(1), at(2));
        assert_eq!(log.spans, [Logged { row: 7, step: 2, begin_ns: 1, end_ns: 2 }]);
    }

    #[test]
    fn buckets_are_those_of_the_step() {
        let mut log = Log::new(Instant::now(), 1..=9);
        let plan = |bytes| [BucketReport { parameters: vec!["a".into(), "b".into()], bytes }];
        for (step, bytes) in [(1, 8), (2, 4), (3, 4)] {
            log.step = step;
            log.buckets(&plan(bytes));
        }
        let bytes: Vec<usize> = (1..=4).filter_map(|step| Some(log.bucket(step, 0)?.bytes)).collect();
        assert_eq!(bytes, [8, 4, 4, 4]);
        let first = log.bucket(1, 0).map(|bucket| parameters(&bucket.parameters));
        assert_eq!(first.as_deref(), Some("a and 1 more"));
        assert_eq!(log.bucket(1, 1), None);
    }
}
