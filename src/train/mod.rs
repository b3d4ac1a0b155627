//! The training step and the loop around it.

mod buckets;
mod error;
mod evaluation;
mod gradient_sync;
mod module;
mod optimizer;
mod step;
mod trainer;

pub use buckets::{CommTimes, Signals, WireType};
pub use error::TrainError;
pub use evaluation::Evaluation;
pub use gradient_sync::{GradientSync, SyncOptions, bucket_limits};
pub use module::{broadcast_module, check_equal_weights};
pub use optimizer::{Adam, AdamSettings};
pub use step::{Learner, StepTimes};
pub use trainer::{Trainer, Watch};
