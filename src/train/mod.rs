//! Training: one step, the loop around it, and a training's options and state.
//!
//! The crate `run-record` writes checkpoints and curves. It does not depend on the types of this module: it
//! writes any serializable value.

mod backend;
mod batches;
mod compress_options;
mod config;
mod error;
mod evaluation;
mod local_options;
mod optimizer;
mod precision;
mod ranks;
mod recorder;
mod reshard;
mod schedule;
mod schema;
mod state;
mod step;
mod tally;
mod trainer;

pub use backend::BackendKind;
pub use batches::LabelledBytes;
pub use compress_options::{Compress, CompressionOptions};
pub use config::{Communication, DataOptions, GAMMA, Recipe, RunConfig, SamplesIn, Threads};
pub use error::TrainError;
pub use evaluation::{Evaluation, Tested};
pub use local_options::{LocalUpdatesOptions, OUTER_LR, OUTER_MOMENTUM, OuterKind};
pub use optimizer::{AveragedGradients, Optimizer, OptimizerKind, Rate};
pub use precision::LossScale;
pub use precision::MixedPrecision;
pub use ranks::{OwnTensors, read as read_rank_tensors};
pub use recorder::Recorder;
pub use schedule::{Schedule, ScheduleKind};
pub use schema::{OPTIONS, OptionSpec, Scope, spec};
pub use state::{Position, best_epoch};
pub use step::{Learner, LocalPosition, OwnGradients, StepTimes};
pub use tally::Tally;
pub use trainer::{Setup, Trainer, Watch};
