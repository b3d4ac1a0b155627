//! Parts of lines that this crate prints on standard error, for programs that read them.

/// Of a warning that a rank waits: `mpi all-reduce has waited for 60 s on rank 0 …`.
pub const STALLED: &str = "has waited for";

/// Of the end of a job in which a rank was silent while another one waited to exit.
pub const NO_ANSWER: &str = "has not answered for";

/// Of a rank that exits although MPI does not end.
pub const NOT_FINALIZED: &str = "MPI_Finalize did not return";
