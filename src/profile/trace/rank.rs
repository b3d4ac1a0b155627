//! Events of one rank, from its recorder.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Clock, Event, EventKind, RankTrace};
use crate::spans::{AUTODIFF_KIND, Log, Logged, LoggedOp, Operator, Phase, REST, Recorder, parameters};

/// Category of steps, which no operator has.
const STEP: &str = "step";

/// Name of an operator's events. A viewer shows it without the category.
fn title(operator: &Operator, phase: Phase) -> String {
    match phase {
        Phase::Backward if operator.kind != AUTODIFF_KIND => format!("{} backward", operator.name()),
        _ => operator.name(),
    }
}

impl RankTrace {
    /// The events that `recorder` has logged, none without a log, with the rank's clock.
    pub fn new(recorder: &Recorder, clock: &Clock) -> Self {
        let operators =
            recorder.operators().map(|(operator, phase)| (title(operator, phase), phase.name().to_owned()));
        let mut trace = Self { names: operators.collect(), events: Vec::new() };
        let Some(log) = &recorder.log else { return trace };
        let buckets: Vec<Option<usize>> = (0..trace.names.len()).map(|row| recorder.bucket_of(row)).collect();
        let mut exposed: BTreeMap<(usize, usize), Vec<Logged>> = BTreeMap::new();
        for span in &log.spans {
            let event =
                |name, kind| Event { name, step: span.step, begin: span.begin_ns, end: span.end_ns, kind };
            match buckets[span.row] {
                Some(bucket) => exposed.entry((span.step, bucket)).or_default().push(*span),
                None if span.row == REST => {
                    let name = trace.name(format!("step {}", span.step), STEP);
                    trace.events.push(event(name, EventKind::Step));
                }
                None => trace.events.push(event(span.row, EventKind::Operator)),
            }
        }
        for spans in exposed.values() {
            trace.wait(spans, &buckets);
        }
        trace.ops(&exposed, log);
        trace.events.sort_by_key(|event| (event.begin, Reverse(event.end), event.kind != EventKind::Step));
        for event in &mut trace.events {
            (event.begin, event.end) = (clock.on_root(event.begin), clock.on_root(event.end));
        }
        trace
    }

    fn name(&mut self, name: String, category: &str) -> usize {
        let named = |(own, of): &(String, String)| *own == name && of == category;
        // Recently added names are at the end.
        self.names.iter().rposition(named).unwrap_or_else(|| {
            self.names.push((name, category.to_owned()));
            self.names.len() - 1
        })
    }

    /// Events of the calls that start a bucket in one step and wait for it.
    fn wait(&mut self, spans: &[Logged], buckets: &[Option<usize>]) {
        for (at, span) in spans.iter().enumerate() {
            let Some(bucket) = buckets[span.row] else { continue };
            let what = match (at, spans.len()) {
                (_, 1) => "all-reduce of",
                (0, _) => "start of",
                _ => "wait for",
            };
            let name = self.name(format!("{what} bucket {}", bucket + 1), "communication");
            let (begin, end) = (span.begin_ns, span.end_ns);
            self.events.push(Event {
                name,
                step: span.step,
                begin,
                end,
                kind: EventKind::Exposed { bucket },
            });
        }
    }

    /// Events of buckets from start to end. Those that overlap are in different lanes.
    fn ops(&mut self, exposed: &BTreeMap<(usize, usize), Vec<Logged>>, log: &Log) {
        let ops: BTreeMap<(usize, usize), &LoggedOp> =
            log.ops.iter().map(|op| ((op.step, op.bucket), op)).collect();
        let mut events: Vec<Event> = Vec::new();
        for ((step, bucket), spans) in exposed {
            let (Some(first), Some(last)) = (spans.first(), spans.last()) else { continue };
            let op = ops.get(&(*step, *bucket));
            let complete = op.filter(|op| op.complete);
            let logged = log.bucket(*step, *bucket);
            let kind = EventKind::Bucket {
                bucket: *bucket,
                lane: 0,
                bytes: logged.map_or(0, |bucket| bucket.bytes),
                parameters: logged.map_or_else(String::new, |bucket| parameters(&bucket.parameters)),
                hidden: op.map_or(0, |op| op.until_ns - op.since_ns),
                exposed: spans.iter().map(|span| span.end_ns - span.begin_ns).sum(),
            };
            let name = self.name(format!("bucket {} all-reduce", bucket + 1), "communication");
            let end = complete.map_or(last.end_ns, |op| op.until_ns);
            events.push(Event { name, step: *step, begin: first.begin_ns, end, kind });
        }
        events.sort_by_key(|event| (event.begin, event.end));
        let mut ends: Vec<i64> = Vec::new();
        for event in &mut events {
            let free = ends.iter().position(|&end| end <= event.begin).unwrap_or(ends.len());
            match ends.get_mut(free) {
                Some(end) => *end = event.end,
                None => ends.push(event.end),
            }
            if let EventKind::Bucket { lane, .. } = &mut event.kind {
                *lane = free;
            }
        }
        self.events.append(&mut events);
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use burn_mpi::lab::ClockOffset;
    use burn_mpi::{BucketReport, SyncEvent};

    use super::*;
    use crate::spans::{begin_batch, end_batch, follow, in_row, on_sync};

    const PAUSE: Duration = Duration::from_millis(1);

    /// A step with two buckets in flight, of which one ends during backward.
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
        let mut recorder = Recorder::default().with_log(Log::new(Instant::now(), 1..=2));
        let operator = |name: &str| Operator::new(name, "linear");
        let rows = [Phase::Forward, Phase::Backward].map(|phase| recorder.register(operator("a"), phase));
        recorder.start();
        for _ in 0..3 {
            step(rows[0], rows[1]);
        }
        let bucket = BucketReport { parameters: vec!["a.weight".into()], bytes: 12 };
        let mut recorder = Recorder::stop().expect("it was started");
        recorder.log.as_mut().expect("a log").buckets(&[bucket.clone(), bucket]);
        let same = ClockOffset::default();
        RankTrace::new(&recorder, &Clock { start: same, end: same })
    }

    #[test]
    fn spans_are_named_and_nested_in_their_steps() {
        let trace = trace();
        assert_eq!(trace.steps().map(|step| step.step).collect::<Vec<_>>(), [1, 2]);
        let of_step: Vec<&str> = trace
            .events
            .iter()
            .filter(|event| event.step == 1 && !matches!(event.kind, EventKind::Bucket { .. }))
            .map(|event| trace.names[event.name].0.as_str())
            .collect();
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
            let inside = trace.events.iter().filter(|event| event.step == step.step);
            assert!(inside.into_iter().all(|event| step.begin <= event.begin && event.end <= step.end));
        }
    }

    #[test]
    fn buckets_end_when_they_are_complete_and_overlap_in_lanes() {
        let trace = trace();
        let (mut found, mut ends) = (Vec::new(), Vec::new());
        for event in trace.events.iter().filter(|event| event.step == 2) {
            if let EventKind::Bucket { bucket, lane, bytes, parameters, hidden, exposed } = &event.kind {
                assert_eq!((*bytes, parameters.as_str()), (12, "a.weight"));
                found.push((*bucket, *lane, event.end - event.begin, *hidden, *exposed));
                ends.push(event.end);
            }
        }
        let pause = PAUSE.as_nanos() as i64;
        assert_eq!(found.iter().map(|bucket| (bucket.0, bucket.1)).collect::<Vec<_>>(), [(0, 0), (1, 1)]);
        let ((_, _, first, first_hidden, first_exposed), (_, _, second, second_hidden, second_exposed)) =
            (found[0], found[1]);
        assert!(first >= pause && first_hidden >= pause && first_exposed >= pause, "{found:?}");
        assert!(second >= 4 * pause && second_hidden >= 2 * pause, "{found:?}");
        assert!(second_exposed >= pause && ends[0] < ends[1], "{found:?} {ends:?}");
    }
}
