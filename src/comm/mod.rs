//! Everything between ranks, and the only place that knows MPI and gloo.
//!
//! [`World`] starts MPI and sets jobs up; a [`Collective`] carries gradients.

mod activity;
pub mod bucket;
pub mod collective;
mod connect;
mod error;
mod farewell;
#[cfg(feature = "gloo")]
mod gloo;
#[cfg(feature = "gloo")]
mod gloo_add;
#[cfg(feature = "gloo")]
mod gloo_algorithm;
#[cfg(feature = "gloo")]
mod gloo_collective;
#[cfg(feature = "gloo")]
mod gloo_interface;
#[cfg(feature = "gloo")]
mod gloo_primitives;
#[cfg(feature = "gloo")]
mod gloo_sys;
mod guard;
mod host;
mod hydra;
mod launcher;
mod mpi;
mod mpi_collective;
mod mpi_library;
mod mpi_primitives;
mod mpi_request;
mod mpi_sum;
pub mod primitives;
mod run;
mod world;

pub use collective::{Backend, Collective, Reduction, Wire};
pub use connect::{Transport, connect};
pub use error::CommError;
#[cfg(feature = "gloo")]
pub use gloo::GlooContext;
#[cfg(feature = "gloo")]
pub use gloo_algorithm::GlooAlgorithm;
#[cfg(feature = "gloo")]
pub use gloo_collective::GlooCollective;
pub use guard::MARGIN;
pub use host::{Place, oversubscribed, page_faults, peak_rss_mb, shared_machine, topology};
pub use launcher::Launcher;
pub use mpi_collective::MpiCollective;
pub use mpi_primitives::MpiPrimitives;
pub use primitives::Primitives;
pub use run::run;
pub use world::{World, abort, end_the_job_on_panic, identity};
