//! Sweeps: files that describe runs, and the list of runs that they define.

mod file;
mod plan;

pub use file::{OF_ONE_RUN, Options, SweepError, SweepFile, Takes};
pub use plan::{PlannedRun, plan, scaled};
