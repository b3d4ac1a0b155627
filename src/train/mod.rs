//! The training step and the loop around it.

mod batches;
mod early_stopping;
mod error;
mod evaluation;
mod optimizer;
mod schedule;
mod step;
mod trainer;
mod update;
mod watch;

pub use early_stopping::best_epoch;
pub use error::TrainError;
pub use evaluation::Evaluation;
pub use optimizer::{Optimizer, Rate, Rule};
pub use schedule::{Curve, Schedule, ScheduleKind};
pub use step::{Learner, StepTimes};
pub use trainer::Trainer;
pub use update::{AveragedGradients, Updater};
pub use watch::Watch;
