//! Sweeps: files that describe runs, and the list of runs that they define.

mod file;
mod plan;

pub use crate::values::Takes;
pub use file::{OF_ONE_RUN, Options, SweepError, SweepFile};
pub use plan::{PlannedRun, plan, scaled};
