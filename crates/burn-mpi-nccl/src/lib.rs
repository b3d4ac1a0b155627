//! A transport of [`burn_mpi`] that averages gradients between GPUs with NVIDIA's NCCL.
//!
//! **Experimental**: it has run over stand-ins for the CUDA driver and for NCCL, and not yet on a GPU.
//!
//! Each rank needs NVIDIA's driver (`libcuda.so.1`), NCCL 2.10 or newer (`libnccl.so.2`) and a GPU of its
//! own. A program builds and starts without them, because [`NcclCollective::connect`] loads both libraries at
//! run time.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use burn_mpi::{Collective, CommError, Reduction, Wire, World};
//! use burn_mpi_nccl::NcclCollective;
//!
//! # fn main() -> Result<(), CommError> {
//! let world = World::init()?;
//! // The deadline of each operation.
//! world.set_deadline(Duration::from_secs(120));
//! // The first GPU that no lower rank of the machine uses.
//! let mut collective = NcclCollective::connect(&world, None)?;
//! let mut gradients = Wire::F32(vec![1.0; 1001]);
//! Collective::all_reduce(&mut collective, &mut gradients, Reduction::Native)?;
//! # Ok(())
//! # }
//! ```
//!
//! [`GradientSync`](burn_mpi::GradientSync) takes a `Box::new(collective)` like any other transport.
//!
//! Gradients are averaged in buckets. A bucket is a buffer in host memory. Each operation copies a bucket to
//! pinned host memory, copies it from there to the GPU, calls NCCL, and copies the result back. Everything
//! after the first copy runs in one CUDA stream. The thread that starts an operation therefore waits only for
//! the first copy.
//!
//! Unlike MPI and gloo in `burn_mpi`, this transport does not compare the calls of the ranks. If ranks call
//! different operations, or operations of different lengths, they wait until the deadline or get undefined
//! results.

// This crate declares the functions of both libraries itself instead of using a crate of bindings. cudarc
// 0.19 looks only for `libnccl.so`, which NCCL's runtime packages do not have. It panics if a function is
// missing. Its functions return Rust enums, for which an error code of a newer library is undefined
// behaviour.

#![deny(missing_docs)]

mod collective;
mod communicator;
mod cuda;
mod gpu;
mod library;
mod load;
mod refusal;

pub use collective::NcclCollective;
pub use gpu::{gpus, refusal};
pub use refusal::{NoNccl, Refusal};

/// The transport's name.
const NAME: &str = "nccl";
