//! The training step and the loop around it.

mod buckets;
mod error;
mod evaluation;
mod gradient_sync;
mod metrics;
mod module;
mod optimizer;
mod step;
mod trainer;

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Int, Tensor};

pub use buckets::{CommTimes, Signals, WireType};
pub use error::TrainError;
pub use evaluation::Evaluation;
pub use gradient_sync::{GradientSync, SyncOptions, bucket_limits};
pub use metrics::count_correct;
pub use module::{broadcast_module, check_equal_weights};
pub use optimizer::{Adam, AdamSettings};
pub use step::{Learner, StepTimes};
pub use trainer::{Trainer, Watch};

/// Mean cross entropy of `scores` `[batch, classes]` and `targets` `[batch]`.
pub fn cross_entropy(scores: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    log_softmax(scores, 1).gather(1, targets.unsqueeze_dim(1)).mean().neg()
}

/// A tensor's values as f32.
fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.into_data().convert_dtype(DType::F32);
    data.try_into_vec().unwrap_or_default()
}
