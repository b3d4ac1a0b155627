//! Data-parallel training with burn-train, by one call on its `SupervisedTraining`.
//!
//! burn-train 0.22 accepts a training strategy from another crate, and calls its `fit` with the learner and
//! the loaders ([`strategy`]). Some parts that a strategy needs are private in burn-train, and are reached
//! indirectly. A learner's optimizer and scheduler are read and written through checkpointers that keep
//! records in memory ([`state`]). The display, logs and checkpoints of ranks other than 0 are replaced by
//! silent ones ([`over_mpi`]). All ranks send the outputs of their steps to rank 0, which computes the
//! metrics of all ranks ([`outputs`]).

mod backward;
mod epoch;
mod first_step;
mod outputs;
mod over_mpi;
mod state;
mod strategy;

pub use backward::backward;
pub use outputs::RankOutput;
pub use over_mpi::{LearnerOptions, OverMpi};
