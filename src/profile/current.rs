//! The recorder of this thread, in thread-local storage, because callbacks from inside
//! Burn's autodiff carry no data but a number.

use std::cell::RefCell;

use burn_mpi::SyncEvent;

use super::log::Log;
use super::phase::Phase;
use super::recorder::{REST, Recorder};
use crate::model::Operator;

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

impl Recorder {
    /// Begins to record on this thread.
    pub fn start(self) {
        RECORDER.set(Some(self));
    }

    /// Ends recording on this thread; returns its recorder.
    pub fn stop() -> Option<Self> {
        RECORDER.take()
    }
}

/// Uses this thread's recorder, if it records.
pub(super) fn with<T>(body: impl FnOnce(&mut Recorder) -> T) -> Option<T> {
    RECORDER.with_borrow_mut(|recorder| recorder.as_mut().filter(|recorder| !recorder.paused).map(body))
}

/// Uses this thread's recorder, paused or not.
fn always<T>(body: impl FnOnce(&mut Recorder) -> T) -> Option<T> {
    RECORDER.with_borrow_mut(|recorder| recorder.as_mut().map(body))
}

/// Records nothing from here on (`true`), or continues.
pub(super) fn pause(paused: bool) {
    always(|recorder| recorder.paused = paused);
}

/// Uses the log of spans, if there is one.
pub(super) fn with_log(body: impl FnOnce(&mut Log)) {
    with(|recorder| recorder.log.as_mut().map(body));
}

/// Begins a batch.
pub fn begin_batch() {
    with(|recorder| {
        recorder.log.iter_mut().for_each(Log::next_step);
        recorder.begin(REST);
    });
}

/// Ends a batch, and the spans inside it that are open.
pub fn end_batch() {
    with(Recorder::end_all);
}

/// The result of `body`, as a span of the operator in `row`.
pub fn span<T>(row: usize, body: impl FnOnce() -> T) -> T {
    begin(row);
    let result = body();
    with(Recorder::end);
    result
}

/// Begins a span that [`end`] or the end of the batch ends.
pub(super) fn begin(row: usize) {
    with(|recorder| recorder.begin(row));
}

/// Ends the innermost span.
pub(super) fn end() {
    with(Recorder::end);
}

/// The row of `operator` in `phase`, which is new; 0 if nothing is recorded.
pub fn register(operator: Operator, phase: Phase) -> usize {
    always(|recorder| recorder.register(operator, phase)).unwrap_or(REST)
}

/// Begins the span of the operator in `row`, where that of the operator before it in the
/// sequence ends.
pub fn follow(row: usize) {
    with(|recorder| {
        recorder.end_sequence();
        recorder.begin(row);
        recorder.in_sequence = true;
    });
}

/// Ends the sequence that [`follow`] has continued.
pub fn end_sequence() {
    with(Recorder::end_sequence);
}

/// Records an event of gradient averaging: the watch of a `GradientSync`.
pub fn on_sync(event: SyncEvent) {
    with(|recorder| recorder.sync(event));
}
