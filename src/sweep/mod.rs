//! Sweeps: a file that describes runs, and the list of runs it stands for.

mod file;
mod plan;

pub use file::{SweepError, SweepFile};
pub use plan::{PlannedRun, plan};
