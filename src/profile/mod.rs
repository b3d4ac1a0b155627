//! Tables of a profile, and time lines of all ranks, from the spans of a recorder ([`crate::spans`]).

mod rows;
mod trace;

pub use rows::{MeasuredProfile, SortKey};
pub use run_record::profile::ProfileRow;
pub use trace::{Clock, RankTrace, TraceFile, longest_wait};
