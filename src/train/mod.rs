//! The training step and the loop around it.

mod error;
mod gradient_sync;
mod metrics;
mod optimizer;
mod trainer;

pub use error::TrainError;
pub use gradient_sync::{BucketSizes, GradientSync, Signals};
pub use metrics::count_correct;
pub use optimizer::{Adam, AdamSettings};
pub use trainer::{Evaluation, Trainer, Watch};
