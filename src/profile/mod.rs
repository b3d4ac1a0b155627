//! Makes the tables of a profile, and time lines of all ranks, from recorded spans ([`crate::spans`]). A span
//! is one piece of work, such as a call of an operator, with its start and end.

mod rows;
mod trace;

pub use rows::{MeasuredProfile, SortKey};
pub use run_record::profile::ProfileRow;
pub use trace::{Clock, RankTrace, TraceFile, longest_wait};
