//! Tables of a profile, and time lines of all ranks, made from recorded spans ([`crate::spans`]).

mod rows;
mod trace;

pub use rows::{MeasuredProfile, SortKey};
pub use run_record::profile::ProfileRow;
pub use trace::{Clock, RankTrace, TraceFile, longest_wait};
