//! Sweeps: files that describe runs, and the list of runs that they define.

mod file;
mod folder;
mod plan;

pub use file::{OF_ONE_RUN, SweepError, SweepFile, TrainOptions};
pub use folder::{check_folder, failure_line};
pub use plan::{PlannedRun, plan, scaled};
