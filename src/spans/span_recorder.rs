//! The recorder of spans (calls of operators, from start to end): measures the time and memory of each span,
//! and sums them for each operator.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use burn_fused::memory::counting_allocator::{allocated_bytes, live_bytes, peak, set_peak};
use burn_mpi::SyncEvent;

use super::log::Log;
use super::{Operator, Phase, Site};

/// Sums over the calls of an operator in one phase. `own` is the time without inner spans, `total` the time
/// with them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub operator: Operator,
    pub phase: Phase,
    pub calls: usize,
    pub own: Duration,
    pub total: Duration,
    /// Bytes allocated minus bytes freed: `own_bytes` without inner spans, `total_bytes` with them.
    pub own_bytes: i64,
    pub total_bytes: i64,
    /// Largest increase of the live bytes during a call.
    pub peak_bytes: i64,
    /// Bytes allocated, whether freed or not, without inner spans.
    pub allocated_bytes: u64,
}

/// A span that has not ended yet. `bytes`, `outer_peak` and `allocated` are the allocator's counters at its
/// start.
#[derive(Debug)]
struct Span {
    row: usize,
    began: Instant,
    bytes: i64,
    outer_peak: i64,
    allocated: u64,
    /// Time, bytes and allocated bytes of the inner spans that have ended.
    inner: (Duration, i64, u64),
}

/// The row of a whole batch.
pub(crate) const REST: usize = 0;
const COPY: usize = 1;
const COLLECT: usize = 2;

/// Records spans and sums them over batches.
#[derive(Debug, Default)]
pub struct SpanRecorder {
    rows: Vec<Sums>,
    open: Vec<Span>,
    /// Row of each bucket (a buffer of gradients with its own all-reduce), by the bucket's index.
    buckets: Vec<usize>,
    hidden: Vec<Duration>,
    /// Buckets in flight during backward, and when they started.
    pending: VecDeque<(usize, Instant)>,
    /// Row of each site. A site is work that is one span for every network, such as the loss.
    sites: Vec<(&'static Site, usize)>,
    /// The operators of the network, in the order of forward. Each has a row for its forward and a row for
    /// its backward.
    layers: Vec<[usize; 2]>,
    /// Index in `layers` of the next operator; `None` outside of forward.
    pub(crate) next_layer: Option<usize>,
    /// Whether the innermost span is part of a sequence, in which each span ends when the next span begins.
    /// The backwards of operators are a sequence, and so are the layers of an int8 model.
    pub(crate) in_sequence: bool,
    pub(crate) paused: bool,
    /// Log of every span, for a time line.
    pub(crate) log: Option<Log>,
}

impl SpanRecorder {
    /// Makes a recorder that records every batch. A `log` keeps each span for a time line.
    pub fn new(log: Option<Log>) -> Self {
        let (open, pending) = (Vec::with_capacity(8), VecDeque::with_capacity(64));
        let mut recorder = Self { open, pending, log, ..Self::default() };
        recorder.register(Operator::new("rest", "rest"), Phase::Rest);
        recorder.register(Operator::new("copy of gradients", "copy of gradients"), Phase::Copy);
        recorder.register(Operator::new("collection of gradients", "collection of gradients"), Phase::Copy);
        recorder
    }

    /// Makes the recorder of a training's time line. It records nothing before the steps of `log`.
    pub fn of_training(log: Log) -> Self {
        Self { paused: true, ..Self::new(Some(log)) }
    }

    /// Returns the row of `site`. Adds a row if the site is new.
    pub(crate) fn row_of(&mut self, site: &'static Site) -> usize {
        if let Some((_, row)) = self.sites.iter().find(|(known, _)| std::ptr::eq(*known, site)) {
            return *row;
        }
        let row = self.register(Operator::new(site.0, site.1), site.2);
        self.sites.push((site, row));
        row
    }

    /// Returns the two rows of the network's next operator, for its forward and its backward; `None` outside
    /// of forward. In the first batch, adds these rows for `operator`.
    pub(crate) fn next_layer(&mut self, operator: impl FnOnce() -> Operator) -> Option<[usize; 2]> {
        let index = self.next_layer?;
        self.next_layer = Some(index + 1);
        if index == self.layers.len() {
            let operator = operator();
            let rows = [Phase::Forward, Phase::Backward].map(|phase| self.register(operator.clone(), phase));
            self.layers.push(rows);
        }
        Some(self.layers[index])
    }

    /// Returns operator and phase of each row.
    pub(crate) fn operators(&self) -> impl Iterator<Item = (&Operator, Phase)> {
        self.rows.iter().map(|row| (&row.operator, row.phase))
    }

    /// Returns the index of the bucket whose row is `row`, or `None` if no bucket has this row.
    pub(crate) fn bucket_of(&self, row: usize) -> Option<usize> {
        self.buckets.iter().position(|&bucket| bucket == row)
    }

    /// Resets all sums and the log, but keeps the operators. Called after the warm-up.
    pub fn clear(&mut self) {
        for row in &mut self.rows {
            let operator = std::mem::take(&mut row.operator);
            *row = Sums { operator, phase: row.phase, ..Sums::default() };
        }
        self.hidden.fill(Duration::ZERO);
        self.log.iter_mut().for_each(Log::clear);
    }

    /// Returns the sums of operators that were called. The first row is `rest`, whose total is the time of
    /// all batches.
    pub(crate) fn sums(&self) -> impl Iterator<Item = &Sums> {
        self.rows.iter().filter(|row| row.calls > 0)
    }

    /// Returns the sums of each bucket, and the time for which backward hid the bucket's all-reduce.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (&Sums, Duration)> {
        self.buckets.iter().map(|&row| &self.rows[row]).zip(self.hidden.iter().copied())
    }

    /// Adds an operator and returns its row.
    pub(crate) fn register(&mut self, operator: Operator, phase: Phase) -> usize {
        self.rows.push(Sums { operator, phase, ..Sums::default() });
        self.rows.len() - 1
    }

    pub(crate) fn begin(&mut self, row: usize) {
        let (bytes, outer_peak) = (live_bytes(), peak());
        set_peak(bytes);
        let (allocated, inner) = (allocated_bytes(), Default::default());
        self.open.push(Span { row, began: Instant::now(), bytes, outer_peak, allocated, inner });
    }

    pub(crate) fn end(&mut self) {
        let ended = Instant::now();
        let Some(span) = self.open.pop() else { unreachable!("a span has begun") };
        let (total, bytes, most) = (ended - span.began, live_bytes() - span.bytes, peak());
        let allocated = allocated_bytes() - span.allocated;
        let (inner, inner_bytes, inner_allocated) = span.inner;
        set_peak(span.outer_peak.max(most));
        let row = &mut self.rows[span.row];
        row.calls += 1;
        row.total += total;
        row.own += total.saturating_sub(inner);
        row.total_bytes += bytes;
        row.own_bytes += bytes - inner_bytes;
        row.peak_bytes = row.peak_bytes.max(most - span.bytes);
        row.allocated_bytes += allocated - inner_allocated;
        if let Some(log) = &mut self.log {
            log.span(span.row, span.began, ended);
        }
        if let Some(outer) = self.open.last_mut() {
            outer.inner.0 += total;
            outer.inner.1 += bytes;
            outer.inner.2 += allocated;
        }
    }

    pub(crate) fn end_sequence(&mut self) {
        if std::mem::take(&mut self.in_sequence) {
            self.end();
        }
    }

    /// Ends a batch and all open spans inside it.
    pub(crate) fn end_all(&mut self) {
        self.in_sequence = false;
        self.pending.clear();
        while !self.open.is_empty() {
            self.end();
        }
    }

    fn bucket(&mut self, bucket: usize) -> usize {
        while self.buckets.len() <= bucket {
            let name = format!("bucket {}", self.buckets.len() + 1);
            let row = self.register(Operator::new(name, "all-reduce"), Phase::Communication);
            self.buckets.push(row);
            self.hidden.push(Duration::ZERO);
        }
        self.buckets[bucket]
    }

    /// Ends all pending buckets except the last `left`. `complete` is true if the all-reduces of the ended
    /// buckets are complete. It is false if backward has ended, and no longer hides the all-reduces.
    fn finish_ops(&mut self, left: usize, complete: bool) {
        if self.pending.len() > left {
            let now = Instant::now();
            for (bucket, since) in self.pending.drain(..self.pending.len() - left) {
                self.hidden[bucket] += now - since;
                if let Some(log) = &mut self.log {
                    log.pending(self.buckets[bucket], since, now, complete);
                }
            }
        }
    }

    pub(crate) fn sync(&mut self, event: SyncEvent) {
        match event {
            SyncEvent::BackwardEnd => {
                self.end_sequence();
                self.finish_ops(0, false);
                self.begin(COLLECT);
            }
            SyncEvent::CollectEnd => self.end(),
            SyncEvent::CopyBegin => self.begin(COPY),
            SyncEvent::CopyEnd => self.end(),
            SyncEvent::BucketBegin(bucket) => {
                let row = self.bucket(bucket);
                self.begin(row);
            }
            SyncEvent::BucketEnd(bucket) => {
                self.end();
                if self.in_sequence {
                    self.pending.push_back((bucket, Instant::now()));
                }
            }
            SyncEvent::InFlight(left) => self.finish_ops(left, true),
        }
    }
}

#[cfg(test)]
#[path = "span_recorder_tests.rs"]
mod tests;
