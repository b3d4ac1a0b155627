//! The training step and the loop around it.

mod arrival;
mod batches;
mod buckets;
mod collector;
mod early_stopping;
mod error;
mod evaluation;
mod gradient_sync;
mod irregular;
mod module;
mod optimizer;
mod schedule;
mod step;
mod sync_options;
mod sync_report;
mod trainer;
mod update;
mod watch;
mod wire_type;

pub use buckets::Signals;
pub use early_stopping::best_epoch;
pub use error::TrainError;
pub use evaluation::Evaluation;
pub use gradient_sync::{GradientSync, MicroBatch};
pub use module::{broadcast_module, check_equal_weights};
pub use optimizer::{Optimizer, Rate, Rule};
pub use schedule::{Curve, Schedule, ScheduleKind};
pub use step::{Learner, StepTimes};
pub use sync_options::{SyncOptions, bucket_limits};
pub use sync_report::{BucketReport, CommTimes, NoOverlap, Overlap, SyncReport};
pub use trainer::Trainer;
pub use update::{AveragedGradients, Updater};
pub use watch::Watch;
pub use wire_type::WireType;
