//! Sweeps: files that describe runs, and the list of runs that they define.

mod file;
mod plan;

pub use file::SweepFile;
pub use plan::{PlannedRun, plan, scaled};
