//! Spans of a step: one recorder for each thread, which profiles and time lines read.
//!
//! **Forward.** Networks pass each of their operators through [`layer`], which reads the clock and the allocator's
//! counters before and after it.
//!
//! **Backward** runs inside Burn's autodiff. While spans are recorded, an identity operator follows each operator
//! ([`burn_fused::stamp_backward`]); its backward ends the span of the operator behind it and begins that of the
//! operator in front of it.
//!
//! **Gradients and collectives.** `GradientSync` reports its events while it is watched ([`burn_mpi::SyncEvent`]).
//!
//! **Without a recorder**, a span is a test of thread-local storage: no clock, no atomic operation, no identity
//! operators. `mpiburn profile` measures what a recorder costs: batches with and without it alternate.
//!
//! Spans nest: the time of an operator is its own (self) and that of spans inside it, such as copies of gradients
//! during backward. A whole batch is the outermost span, and its self time is the row `rest`, so that self times
//! sum to the wall time.
//!
//! The recorder is in thread-local storage because callbacks from inside backward have no other way to it.

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

/// What a span is of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Operator {
    /// Name of the layer, or of several in one operator.
    pub layer: String,
    /// What it computes.
    pub kind: String,
}

impl Operator {
    /// The operator of that kind in `layer`.
    pub fn new(layer: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { layer: layer.into(), kind: kind.into() }
    }

    /// The layer and the kind, once if they are equal.
    pub fn name(&self) -> String {
        if self.layer == self.kind { self.kind.clone() } else { format!("{} {}", self.layer, self.kind) }
    }
}

/// A part of a step that is the same for all networks: layer, kind and phase.
#[derive(Debug)]
pub struct Site(&'static str, &'static str, Phase);

/// Samples of a step, from memory or from disk.
pub static SAMPLES: Site = Site("samples", "read and augment", Phase::Data);
/// A batch of them.
pub static BATCH: Site = Site("samples", "bytes to tensor", Phase::Data);
/// The forward pass of quantization-aware training.
pub static FAKE_QUANTIZED: Site = Site("network", "fake quantized", Phase::Forward);
/// The loss.
pub static LOSS: Site = Site("loss", "cross entropy", Phase::Forward);
static LOSS_BACKWARD: Site = Site("loss", "cross entropy", Phase::Backward);
static AUTODIFF: Site = Site(AUTODIFF_KIND, AUTODIFF_KIND, Phase::Backward);
/// The kind of Burn's own work in backward.
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
    /// Makes this the recorder of the thread.
    pub fn start(self) {
        RECORDER.set(Some(self));
    }

    /// Takes the recorder of the thread, if there is one.
    pub fn stop() -> Option<Self> {
        RECORDER.take()
    }
}

/// Calls `body` with the recorder, if there is one that is not paused.
fn with<T>(body: impl FnOnce(&mut SpanRecorder) -> T) -> Option<T> {
    RECORDER.with_borrow_mut(|recorder| recorder.as_mut().filter(|recorder| !recorder.paused).map(body))
}

/// Whether spans are recorded.
pub fn is_recording() -> bool {
    with(|_| ()).is_some()
}

/// The result of `body`, as a span.
pub fn span<T>(site: &'static Site, body: impl FnOnce() -> T) -> T {
    in_row(with(|recorder| recorder.row_of(site)).unwrap_or(REST), body)
}

/// A forward pass, whose [`layer`]s are recorded.
pub fn forward<T>(body: impl FnOnce() -> T) -> T {
    with(|recorder| recorder.next_layer = Some(0));
    let result = body();
    with(|recorder| recorder.next_layer = None);
    result
}

/// `apply(input)`, as a span of an operator in forward and of its part of backward. Only new operators are named.
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

/// The end of forward: what follows is of autodiff, up to the loss's part of backward.
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

/// Ends all spans.
pub fn end_batch() {
    with(SpanRecorder::end_all);
}

/// Begins a step of a training, counted from 1, whose spans are recorded if its log covers the step.
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

/// Ends a step.
pub fn end_step(sync: &GradientSync) {
    end_batch();
    log_buckets(sync);
}

/// Logs which parameters are in which bucket.
pub fn log_buckets(sync: &GradientSync) {
    with(|recorder| recorder.log.as_mut().map(|log| log.buckets(&sync.report().buckets)));
}

/// The row of `operator` in `phase`, which is new; 0 if nothing is recorded.
pub fn register(operator: Operator, phase: Phase) -> usize {
    with(|recorder| recorder.register(operator, phase)).unwrap_or(REST)
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
    with(SpanRecorder::end_sequence);
}

/// The watch of a `GradientSync` whose events are recorded, if they are.
pub fn watcher() -> Option<fn(SyncEvent)> {
    with(|_| on_sync as fn(SyncEvent))
}

/// Records an event of gradient averaging.
pub(crate) fn on_sync(event: SyncEvent) {
    with(|recorder| recorder.sync(event));
}

/// The result of `body`, as a span in `row`.
pub(crate) fn in_row<T>(row: usize, body: impl FnOnce() -> T) -> T {
    with(|recorder| recorder.begin(row));
    let result = body();
    with(SpanRecorder::end);
    result
}
