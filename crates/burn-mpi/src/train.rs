//! Data-parallel training with burn-train, by one call on its `SupervisedTraining`.
//!
//! burn-train 0.22 takes a training strategy of another crate, whose `fit` gets the learner and
//! the loaders ([`strategy`]). What it keeps private is reached like this: a learner's optimizer
//! and scheduler by its checkpointers, which capture or return records in memory ([`state`]); the
//! display, logs and checkpoints of ranks other than 0 by replacing them with silent ones
//! ([`silent`]); other ranks' metrics by sending the outputs of their steps to rank 0 ([`outputs`]).

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
