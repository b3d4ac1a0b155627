//! Everything between ranks, and the only place that knows MPI.
//!
//! [`World`] starts MPI and sets jobs up; a [`Collective`] carries gradients.

pub mod bucket;
pub mod collective;
mod connect;
mod error;
pub mod guard;
mod host;
mod launcher;
mod mpi;
mod mpi_collective;
mod world;

pub use collective::{Backend, Collective, Reduction, Wire};
pub use connect::{Transport, connect};
pub use error::CommError;
pub use host::{Place, oversubscribed, peak_rss_mb, topology};
pub use launcher::Launcher;
pub use mpi_collective::MpiCollective;
pub use world::{World, abort, end_the_job_on_panic, identity};
