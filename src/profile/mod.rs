//! The profiler: time and memory of each operator of a network, in inference and in
//! training.
//!
//! **Forward.** Networks are generic over an observer of their operators
//! ([`LayerWatch`](crate::model::LayerWatch)). The profiler's observer reads the clock and
//! the allocator's counters before and after each operator.
//!
//! **Backward** runs inside Burn's autodiff. While profiling, an identity operator follows
//! each operator ([`burn_fused::stamp_backward`]); its backward ends the span of the
//! operator behind it and begins that of the operator in front of it.
//!
//! **Gradients and collectives.** `GradientSync` reports its events while it is watched
//! ([`burn_mpi::SyncEvent`]).
//!
//! **Integer models** report the beginning of each stage ([`burn_fused::int8::Stage`]).
//!
//! **When off, nothing is left on a step's path**: no clock and no atomic operation. The
//! observer of training is compiled to nothing, the identity operators are not inserted,
//! and `GradientSync` tests an option that is `None`. `mpiburn profile` measures what
//! profiling costs: batches with and without it alternate.
//!
//! **Time lines** (`--trace`) are made of the same spans: a log keeps single ones beside the
//! sums, and rank 0 gathers those of all ranks.
//!
//! Spans nest: the time of an operator is its own (self) and that of spans inside it, such
//! as copies of gradients during backward. A whole batch is the outermost span, and its
//! self time is the row `rest`, so that self times sum to the wall time.

mod current;
mod log;
mod phase;
mod recorder;
mod rows;
mod timeline;
mod trace;
mod watch;

pub use current::{begin_batch, end_batch, end_sequence, follow, on_sync, register, span};
pub use log::Log;
pub use phase::Phase;
pub use recorder::Recorder;
pub use rows::{Profile, ProfileRow, SortKey};
pub use timeline::{TimeLine, log_buckets};
pub use trace::{Clock, RankTrace, TraceFile, Wait, longest_wait};
pub use watch::{OperatorWatch, WatchedForward, WatchedLoss, WatchedSamples};
