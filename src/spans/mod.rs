//! Records spans: when each operator of a training step or an inference starts and ends, and its memory.
//! Profiles and time lines are made from the recorded spans.
//!
//! Spans nest. The total time of an operator includes the spans inside it, such as copies of gradients during
//! backward; its self time excludes them. A whole batch is the outermost span. Its self time is the row
//! `rest`, so that self times sum to the wall time.
//!
//! **Forward.** Networks call each operator through [`layer`], which reads the clock and the allocator's
//! counters before and after the operator.
//!
//! **Backward** runs inside Burn's autodiff, where calls cannot be wrapped. While spans are recorded,
//! [`layer`] therefore appends an identity operator to each operator ([`burn_fused::stamp_backward`]). The
//! backward of the identity runs just before the operator's own backward. The identity's backward ends the
//! span of the operator whose backward ran last, and begins the span of its own operator.
//!
//! **Gradients and collectives.** `GradientSync` averages gradients over ranks. While spans are recorded, it
//! reports its events ([`burn_mpi::SyncEvent`]) to a callback, which records them as spans.
//!
//! **Without a recorder**, a span costs one test of thread-local storage: no clock, no atomic operation, no
//! identity operators. `mpiburn profile` measures the cost of a recorder by alternating batches with and
//! without it.
//!
//! Each thread has its own recorder, in thread-local storage, because callbacks from inside backward have no
//! other access to it.

mod log;
mod span_recorder;

use std::cell::RefCell;

use burn::tensor::Tensor;
use burn_fused::stamp_backward;
use burn_mpi::{GradientSync, SyncEvent};

pub use log::Log;
pub(crate) use log::{Logged, parameters};
pub use run_record::profile::Phase;
pub use span_recorder::SpanRecorder;
pub(crate) use span_recorder::{REST, Sums};

/// The operator or other work that a span measures.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operator {
    /// Name of the layer, or names of several layers in one operator.
    pub layer: String,
    /// What the operator computes, such as `conv+relu`.
    pub kind: String,
}

impl Operator {
    /// Makes the operator of this kind in `layer`.
    pub fn new(layer: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { layer: layer.into(), kind: kind.into() }
    }

    /// Returns layer and kind, or only one of them if they are equal.
    pub fn name(&self) -> String {
        if self.layer == self.kind { self.kind.clone() } else { format!("{} {}", self.layer, self.kind) }
    }
}

/// Work that is one span for every network, such as the loss or a checkpoint: its layer, kind and phase.
#[derive(Debug)]
pub struct Site(&'static str, &'static str, Phase);

/// Reading and augmenting a step's samples.
pub static SAMPLES: Site = Site("samples", "read and augment", Phase::Data);
/// Conversion of samples to a batch.
pub static BATCH: Site = Site("samples", "bytes to tensor", Phase::Data);
/// The forward pass of quantization-aware training.
pub static FAKE_QUANTIZED: Site = Site("network", "fake quantized", Phase::Forward);
/// The loss, with its gradient.
pub static LOSS: Site = Site("loss", "cross entropy", Phase::Forward);
static LOSS_BACKWARD: Site = Site("loss", "cross entropy", Phase::Backward);
static AUTODIFF: Site = Site(AUTODIFF_KIND, AUTODIFF_KIND, Phase::Backward);
/// Kind of the work that Burn itself does in backward.
pub(crate) const AUTODIFF_KIND: &str = "autodiff";
/// The weight update.
pub static OPTIMIZER: Site = Site("optimizer", "optimizer", Phase::Optimizer);
/// The test after an epoch.
pub static EVALUATION: Site = Site("evaluation", "evaluation", Phase::Evaluation);
/// Writing a checkpoint.
pub static CHECKPOINT: Site = Site("checkpoint", "checkpoint", Phase::Checkpoint);

thread_local! {
    static RECORDER: RefCell<Option<SpanRecorder>> = const { RefCell::new(None) };
}

impl SpanRecorder {
    /// Makes this recorder the recorder of the thread.
    pub fn start(self) {
        RECORDER.set(Some(self));
    }

    /// Takes the thread's recorder, if there is one.
    pub fn stop() -> Option<Self> {
        RECORDER.take()
    }
}

/// Calls `body` with the thread's recorder, if there is one and it is not paused.
fn with<T>(body: impl FnOnce(&mut SpanRecorder) -> T) -> Option<T> {
    RECORDER.with_borrow_mut(|recorder| recorder.as_mut().filter(|recorder| !recorder.paused).map(body))
}

/// Whether spans are recorded.
pub fn is_recording() -> bool {
    with(|_| ()).is_some()
}

/// Runs `body` as a span, and returns its result.
pub fn span<T>(site: &'static Site, body: impl FnOnce() -> T) -> T {
    in_row(with(|recorder| recorder.row_of(site)).unwrap_or(REST), body)
}

/// Runs a forward pass, in which [`layer`] records operators.
pub fn forward<T>(body: impl FnOnce() -> T) -> T {
    with(|recorder| recorder.next_layer = Some(0));
    let result = body();
    with(|recorder| recorder.next_layer = None);
    result
}

/// Returns `apply(input)`, recorded as a span in forward and a span in backward. `operator` returns the
/// operator's name and kind, and is called only in the first batch.
#[inline]
pub fn layer<const I: usize, const O: usize>(
    operator: impl FnOnce() -> Operator,
    input: Tensor<I>,
    apply: impl FnOnce(Tensor<I>) -> Tensor<O>,
) -> Tensor<O> {
    let rows = with(|recorder| {
        let rows = recorder.next_layer(operator)?;
        recorder.begin(rows[0]);
        Some(rows)
    });
    let Some(Some([_, backward])) = rows else { return apply(input) };
    let output = apply(input);
    with(SpanRecorder::end);
    stamp_backward(output, backward, follow)
}

/// Ends forward. While spans are recorded, appends an identity operator to `loss`, as [`layer`] does. Time
/// from here on counts as autodiff, until the loss's backward begins.
pub fn end_forward(loss: Tensor<1>) -> Tensor<1> {
    let rows = with(|recorder| [&LOSS_BACKWARD, &AUTODIFF].map(|site| recorder.row_of(site)));
    let Some([backward, graph]) = rows else { return loss };
    let loss = stamp_backward(loss, backward, follow);
    follow(graph);
    loss
}

/// Begins the span of a whole batch.
pub fn begin_batch() {
    with(|recorder| {
        recorder.log.iter_mut().for_each(|log| log.step += 1);
        recorder.begin(REST);
    });
}

/// Ends the span of the whole batch, and all spans inside it that are still open.
pub fn end_batch() {
    with(SpanRecorder::end_all);
}

/// Begins training step `step`, counted from 1. If there is a log that does not cover the step, nothing is
/// recorded in the step.
pub fn begin_step(step: usize) {
    RECORDER.with_borrow_mut(|recorder| {
        if let Some(recorder) = recorder
            && let Some(log) = &mut recorder.log
        {
            recorder.paused = !log.covers(step);
            log.step = step - 1;
        }
    });
    begin_batch();
}

/// Ends a training step.
pub fn end_step(sync: &GradientSync) {
    end_batch();
    log_buckets(sync);
}

/// Logs which parameters are in each bucket.
pub fn log_buckets(sync: &GradientSync) {
    with(|recorder| recorder.log.as_mut().map(|log| log.buckets(&sync.report().buckets)));
}

/// Adds a row for `operator` in `phase`, and returns the number of the row; 0 if nothing is recorded.
pub fn register(operator: Operator, phase: Phase) -> usize {
    with(|recorder| recorder.register(operator, phase)).unwrap_or(REST)
}

/// Begins the span of the operator in `row` as the next span of a sequence. In a sequence, each span ends
/// when the next span begins, so this call ends the previous span.
pub fn follow(row: usize) {
    with(|recorder| {
        recorder.end_sequence();
        recorder.begin(row);
        recorder.in_sequence = true;
    });
}

/// Ends the last span of a sequence that [`follow`] began.
pub fn end_sequence() {
    with(SpanRecorder::end_sequence);
}

/// Returns the callback that records the events of a `GradientSync`; `None` if nothing is recorded.
pub fn watcher() -> Option<fn(SyncEvent)> {
    with(|_| on_sync as fn(SyncEvent))
}

/// Records an event of gradient averaging.
pub(crate) fn on_sync(event: SyncEvent) {
    with(|recorder| recorder.sync(event));
}

/// Runs `body` as a span in `row`, and returns its result.
pub(crate) fn in_row<T>(row: usize, body: impl FnOnce() -> T) -> T {
    with(|recorder| recorder.begin(row));
    let result = body();
    with(SpanRecorder::end);
    result
}
