//! Parts of a batch.

use serde::{Deserialize, Serialize};

/// Part of a batch that an operator belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// From bytes to a batch.
    Data,
    /// Forward pass and loss.
    Forward,
    /// Backward pass.
    Backward,
    /// Collecting gradients after backward, and copying them into buckets and out of messages.
    Copy,
    /// All-reduce of gradients.
    Communication,
    /// Weight update.
    Optimizer,
    /// Time of a batch outside all operators.
    Rest,
    /// Test after an epoch, on a time line alone.
    Evaluation,
    /// Writing a checkpoint, on a time line alone.
    Checkpoint,
}

impl Phase {
    /// The name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Copy => "copy",
            Self::Communication => "communication",
            Self::Optimizer => "optimizer",
            Self::Rest => "rest",
            Self::Evaluation => "evaluation",
            Self::Checkpoint => "checkpoint",
        }
    }
}
