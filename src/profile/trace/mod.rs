//! Makes one time line of all ranks from the spans that each rank has recorded. All times are converted to
//! rank 0's clock.

mod file;
mod waits;

use std::collections::BTreeMap;

use burn_mpi::ClockOffset;
use serde::{Deserialize, Serialize};

use crate::spans::{AUTODIFF_KIND, Logged, Operator, Phase, REST, SpanRecorder, parameters};

pub use file::TraceFile;
pub use waits::longest_wait;

/// A rank's clock, compared with rank 0's clock before and after the events. The drift between the two
/// comparisons is assumed to be linear.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Comparison before the first event.
    pub start: ClockOffset,
    /// Comparison after the last event.
    pub end: ClockOffset,
}

impl Clock {
    /// Returns an upper bound of the error of converted times, in ns: the larger error of the two
    /// comparisons.
    pub fn error_ns(&self) -> u64 {
        self.start.error_ns.max(self.end.error_ns)
    }

    /// Returns the change of the offset from start to end, in ns.
    pub fn drift_ns(&self) -> i64 {
        self.end.offset_ns - self.start.offset_ns
    }

    /// Converts a time on the rank's clock to rank 0's clock, in ns.
    fn on_root(&self, ns: i64) -> i64 {
        let between = (self.end.at_ns - self.start.at_ns).max(1) as f64;
        let passed = (ns - self.start.at_ns) as f64 / between;
        ns - self.start.offset_ns - (passed * self.drift_ns() as f64).round() as i64
    }
}

/// The spans of one rank on rank 0's clock, in the form in which they are sent to rank 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankTrace {
    /// Title and phase of each operator. The `row` of a span is the index of its operator in this list.
    operators: Vec<(String, String)>,
    /// Spans of steps and operators, in the order in which they ended.
    spans: Vec<Logged>,
    /// Buckets, in the order in which they began.
    buckets: Vec<Bucket>,
}

/// The all-reduce of a bucket (a buffer of gradients) in one step. Times are in ns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Bucket {
    step: usize,
    index: usize,
    /// Which of the threads for buckets shows this bucket, from 0. Buckets that overlap in time are on
    /// different threads.
    lane: usize,
    begin: i64,
    end: i64,
    bytes: usize,
    parameters: String,
    /// Time in flight during backward.
    hidden: i64,
    /// The calls that start the all-reduce and wait for it.
    calls: Vec<Logged>,
}

impl RankTrace {
    /// Returns the spans and buckets that `recorder` has logged, with times on rank 0's clock. If `recorder`
    /// has no log, there are no spans and no buckets.
    pub fn new(recorder: &SpanRecorder, clock: &Clock) -> Self {
        let operators =
            recorder.operators().map(|(operator, phase)| (title(operator, phase), phase.to_string()));
        let mut trace = Self { operators: operators.collect(), spans: Vec::new(), buckets: Vec::new() };
        let Some(log) = &recorder.log else { return trace };
        let mut calls: BTreeMap<(usize, usize), Vec<Logged>> = BTreeMap::new();
        for span in &log.spans {
            let [begin_ns, end_ns] = [span.begin_ns, span.end_ns].map(|ns| clock.on_root(ns));
            let span = Logged { begin_ns, end_ns, ..*span };
            match recorder.bucket_of(span.row) {
                Some(bucket) => calls.entry((span.step, bucket)).or_default().push(span),
                None => trace.spans.push(span),
            }
        }
        let key = |&(span, complete): &(Logged, bool)| ((span.step, span.row), (span, complete));
        let in_flight: BTreeMap<(usize, usize), (Logged, bool)> = log.in_flight.iter().map(key).collect();
        for ((step, index), calls) in calls {
            let (flight, logged) = (in_flight.get(&(step, calls[0].row)), log.bucket(step, index));
            // A compressed bucket has further rounds after the one that backward may hide.
            let complete = flight.filter(|(_, complete)| *complete && calls.len() <= 2);
            let complete = complete.map(|(span, _)| clock.on_root(span.end_ns));
            trace.buckets.push(Bucket {
                step,
                index,
                lane: 0,
                begin: calls[0].begin_ns,
                end: complete.unwrap_or(calls[calls.len() - 1].end_ns),
                bytes: logged.map_or(0, |bucket| bucket.bytes),
                parameters: logged.map_or_else(String::new, |bucket| parameters(&bucket.parameters)),
                hidden: flight.map_or(0, |(span, _)| span.end_ns - span.begin_ns),
                calls,
            });
        }
        trace.buckets.sort_by_key(|bucket| (bucket.begin, bucket.end));
        let mut ends: Vec<i64> = Vec::new();
        for bucket in &mut trace.buckets {
            bucket.lane = ends.iter().position(|&end| end <= bucket.begin).unwrap_or(ends.len());
            match ends.get_mut(bucket.lane) {
                Some(end) => *end = bucket.end,
                None => ends.push(bucket.end),
            }
        }
        trace
    }

    /// Returns the first and the last recorded step, or `None` if no step was recorded.
    pub fn range(&self) -> Option<[usize; 2]> {
        Some([self.steps().next()?.step, self.steps().last()?.step])
    }

    /// Returns the spans of steps.
    fn steps(&self) -> impl Iterator<Item = &Logged> {
        self.spans.iter().filter(|span| span.row == REST)
    }
}

/// Returns the name of an operator's events. Viewers show the name without the phase, so the name of an event
/// in backward includes the word "backward", except for Burn's own work.
fn title(operator: &Operator, phase: Phase) -> String {
    match phase {
        Phase::Backward if operator.kind != AUTODIFF_KIND => format!("{} backward", operator.name()),
        _ => operator.name(),
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use burn_mpi::{BucketReport, SyncEvent};

    use super::file::computed;
    use super::*;
    use crate::spans::{Log, begin_batch, end_batch, follow, in_row, on_sync};

    const PAUSE: Duration = Duration::from_millis(1);

    /// Records a step with two buckets in flight. One of them completes during backward.
    fn step(forward: usize, backward: usize) {
        begin_batch();
        in_row(forward, || sleep(PAUSE));
        follow(backward);
        for bucket in [0, 1] {
            on_sync(SyncEvent::BucketBegin(bucket));
            on_sync(SyncEvent::BucketEnd(bucket));
        }
        sleep(PAUSE);
        on_sync(SyncEvent::InFlight(1));
        sleep(PAUSE);
        on_sync(SyncEvent::BackwardEnd);
        on_sync(SyncEvent::CollectEnd);
        for bucket in [0, 1] {
            on_sync(SyncEvent::BucketBegin(bucket));
            sleep(PAUSE);
            on_sync(SyncEvent::BucketEnd(bucket));
        }
        end_batch();
    }

    fn trace() -> RankTrace {
        let mut recorder = SpanRecorder::new(Some(Log::new(Instant::now(), 1..=2)));
        let operator = |name: &str| Operator::new(name, "linear");
        let rows = [Phase::Forward, Phase::Backward].map(|phase| recorder.register(operator("a"), phase));
        recorder.start();
        for _ in 0..3 {
            step(rows[0], rows[1]);
        }
        let bucket = BucketReport { parameters: vec!["a.weight".into()], bytes: 12 };
        let mut recorder = SpanRecorder::stop().expect("it was started");
        recorder.log.as_mut().expect("a log").buckets(&[bucket.clone(), bucket]);
        let same = ClockOffset::default();
        RankTrace::new(&recorder, &Clock { start: same, end: same })
    }

    #[test]
    fn spans_are_named_and_nested_in_their_steps() {
        let trace = trace();
        assert_eq!(trace.steps().map(|step| step.step).collect::<Vec<_>>(), [1, 2]);
        let computed = computed(&trace);
        let of_step = computed.iter().filter(|(_, _, span)| span.step == 1);
        let of_step: Vec<&str> = of_step.map(|(name, ..)| name.as_str()).collect();
        let expected = [
            "step 1",
            "a linear",
            "a linear backward",
            "start of bucket 1",
            "start of bucket 2",
            "collection of gradients",
            "wait for bucket 1",
            "wait for bucket 2",
        ];
        assert_eq!(of_step, expected);
        for step in trace.steps() {
            let mut inside = computed.iter().filter(|(_, _, span)| span.step == step.step);
            assert!(inside.all(|(.., span)| step.begin_ns <= span.begin_ns && span.end_ns <= step.end_ns));
        }
    }

    #[test]
    fn buckets_end_when_they_are_complete_and_overlap_in_lanes() {
        let trace = trace();
        let (mut found, mut ends) = (Vec::new(), Vec::new());
        for bucket in trace.buckets.iter().filter(|bucket| bucket.step == 2) {
            assert_eq!((bucket.bytes, bucket.parameters.as_str()), (12, "a.weight"));
            let exposed: i64 = bucket.calls.iter().map(|call| call.end_ns - call.begin_ns).sum();
            found.push((bucket.index, bucket.lane, bucket.end - bucket.begin, bucket.hidden, exposed));
            ends.push(bucket.end);
        }
        let pause = PAUSE.as_nanos() as i64;
        assert_eq!(found.iter().map(|bucket| (bucket.0, bucket.1)).collect::<Vec<_>>(), [(0, 0), (1, 1)]);
        let ((_, _, first, first_hidden, first_exposed), (_, _, second, second_hidden, second_exposed)) =
            (found[0], found[1]);
        assert!(first >= pause && first_hidden >= pause && first_exposed >= pause, "{found:?}");
        assert!(second >= 4 * pause && second_hidden >= 2 * pause, "{found:?}");
        assert!(second_exposed >= pause && ends[0] < ends[1], "{found:?} {ends:?}");
    }

    /// The first round of a compressed bucket completes during backward. The bucket lasts until the second
    /// round is over.
    #[test]
    fn a_compressed_bucket_lasts_until_its_last_round() {
        let mut recorder = SpanRecorder::new(Some(Log::new(Instant::now(), 1..=1)));
        let backward = recorder.register(Operator::new("a", "linear"), Phase::Backward);
        recorder.start();
        begin_batch();
        follow(backward);
        let call = || [SyncEvent::BucketBegin(0), SyncEvent::BucketEnd(0)].into_iter().for_each(on_sync);
        call();
        on_sync(SyncEvent::InFlight(0));
        on_sync(SyncEvent::BackwardEnd);
        on_sync(SyncEvent::CollectEnd);
        for _ in 0..3 {
            sleep(PAUSE);
            call();
        }
        end_batch();
        let recorder = SpanRecorder::stop().expect("it was started");
        let same = ClockOffset::default();
        let trace = RankTrace::new(&recorder, &Clock { start: same, end: same });
        let [bucket] = &trace.buckets[..] else { panic!("{:?}", trace.buckets) };
        assert_eq!(bucket.end, bucket.calls[3].end_ns);
        let computed = computed(&trace);
        let calls = computed.iter().map(|(name, ..)| name.as_str()).filter(|name| name.ends_with("bucket 1"));
        let expected =
            ["start of", "wait for", "start of", "wait for"].map(|what| format!("{what} bucket 1"));
        assert_eq!(calls.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn drift_is_corrected_linearly() {
        let at = |at_ns, offset_ns, error_ns| ClockOffset { at_ns, offset_ns, error_ns };
        // The clock is 500 ns ahead at first, and 700 ns at the end.
        let clock = Clock { start: at(1_000, 500, 3), end: at(3_000, 700, 9) };
        assert_eq!([1_000, 2_000, 3_000, 5_000].map(|ns| clock.on_root(ns)), [500, 1_400, 2_300, 4_100]);
        assert_eq!((clock.error_ns(), clock.drift_ns()), (9, 200));
        let root = Clock { start: at(5, 0, 0), end: at(5, 0, 0) };
        assert_eq!(root.on_root(77), 77);
    }
}
