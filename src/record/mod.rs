//! The run directory, the only product of a run. Rank 0 writes all of it.

pub mod checkpoint;
mod error;
mod overfitting;
mod run_dir;
mod run_json;
mod run_log;
mod sweep_json;
mod tally;
mod tensor_file;
mod tensorboard;

pub use checkpoint::{Checkpoint, Moment, Position};
pub use error::RecordError;
pub use overfitting::overfits_after;
pub use run_dir::RunDir;
pub use run_json::{RankRecord, Results, RunRecord, Status, StepMs, versions};
pub use run_log::{EpochRow, Recorder};
pub use sweep_json::{RunState, SweepRecord, SweepRun};
pub use tally::Tally;
