//! The run directory, the only output of a run. Rank 0 writes all of it.
//!
//! All contents are passed as values: the configuration in `run.json`, the
//! position in a checkpoint and the lines of `epochs.csv` are any serializable
//! types, so this module does not depend on training or options.

pub mod checkpoint;
mod curve_file;
mod error;
mod failed_attempt;
mod folders;
pub mod int8_file;
mod int8_model;
mod int8_reader;
mod manifest;
mod own_file;
mod phases;
mod recorder;
mod replaced;
mod run_dir;
mod run_json;
mod step_file;
mod sweep_json;
mod tensor_file;
mod tensorboard;

pub use checkpoint::{Beside, Checkpoint, Resumable};
pub use curve_file::check_curves;
pub use error::RecordError;
pub use failed_attempt::{FailedAttempt, Seen, set_aside};
pub use folders::Intact;
pub use int8_file::{INT8_FILE, Int8File, Method};
pub use manifest::{CurveDigest, Curves, DataDigests, Manifest, Origin};
pub use own_file::{is_of_run, is_own_file, run_around};
pub use phases::{Phases, StepMs};
pub use recorder::{Curve, CurvePoint, Metrics, Recorder, Start};
pub use run_dir::{RunDir, lock};
pub use run_json::{
    Attempt, Change, DataRecord, FailedCheckpoint, RankRecord, Results, RunRecord, Status, now, versions,
};
pub use step_file::StepFile;
pub use sweep_json::{RunState, SweepRecord, SweepRun};
