//! Data-parallel training of [Burn](https://burn.dev) models over MPI and gloo.
//!
//! Every process of a job, started by `mpirun`, is a rank. Each rank computes gradients of its own samples.
//! [`GradientSync`] averages them, weighted by samples, in buckets that are reduced during backward. Ranks
//! may differ in samples, branches and micro-batches. An error, a panic or a stall on one rank aborts the job
//! with a line that names the rank.
//!
//! ```no_run
//! use std::error::Error;
//! use std::process::ExitCode;
//!
//! use burn::nn::LinearConfig;
//! use burn::optim::AdamConfig;
//! use burn::tensor::{Device, Tensor};
//! use burn_mpi::{
//!     Backend, GradientSync, SyncOptions, Transport, World, broadcast_module, connect, run,
//! };
//!
//! fn main() -> ExitCode {
//!     run(train)
//! }
//!
//! fn train(world: &World) -> Result<(), Box<dyn Error>> {
//!     let device = Device::flex().autodiff();
//!     let mut model = broadcast_module(world, LinearConfig::new(4, 1).init(&device))?;
//!     let collective = connect(world, Backend::Mpi, &Transport::default())?;
//!     let mut sync = GradientSync::of_module(world, collective, &model, SyncOptions::default());
//!     let mut optimizer = AdamConfig::new().init();
//!     for _ in 0..100 {
//!         // This rank's 8 of the step's samples.
//!         let x = Tensor::<2>::ones([8, 4], &device);
//!         let loss = model.forward(x).mean();
//!         let gradients = sync.average(&loss, &model, 8, 8 * world.size())?;
//!         model = optimizer.step(1e-3, model, gradients);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! | part | what it does |
//! | --- | --- |
//! | [`threads`] | ranks that are threads, for tests: a seed decides which runs next, time is virtual |
//! | [`run`], [`World`] | start, rank and world size, small exchanges, agreement on errors, deadlines |
//! | [`connect`], [`Collective`] | transports: MPI; gloo (feature `gloo`); transports of other crates |
//! | [`GradientSync`], [`SyncOptions`], [`SyncReport`] | averaged gradients, accumulation, overlap, clipping |
//! | [`ShardedOptimizer`] | Burn's optimizers with their state in shares, one for each rank (ZeRO-1) |
//! | [`LocalUpdates`], [`LocalOptions`] | local SGD, DiLoCo, Streaming DiLoCo: ranks average every H steps |
//! | [`PowerSgd`], [`Compression`] | compressed gradients: low-rank matrices, or a compression of your own |
//! | [`ShardPlan`], `ShardedDataset` with the feature `data` | shards of any Burn data set, uneven batches |
//! | [`LrScaling`], [`warmup`], [`TargetAccuracy`] | learning rates for more ranks, time to an accuracy |
//! | [`average_metrics`], [`save_record`], [`load_module`] | metrics of all ranks, files of rank 0 |
//! | `OverMpi` with the feature `train` | `SupervisedTraining` of burn-train over all ranks |
//! | [`World::all_reduce`], `all_gather`, `broadcast_tensor`, `reduce_scatter` | tensors between ranks, with gradients |
//! | [`nn::SyncBatchNorm`], [`tie_parameters`] | batch norm over the samples of all ranks, tied parameters |
//! | [`broadcast_module`], [`check_equal_weights`], [`ParamLayout`] | whole modules between ranks |
//! | [`connect_primitives`], [`Primitives`] | single blocking operations of a transport |
//!
//! Without the default feature `mpi`, ranks can only be [`threads`], and building requires no library. With
//! `mpi`, building requires an MPI with its headers, and libclang (Debian: `libopenmpi-dev`, `libclang-dev`).
//! The feature `gloo` requires `libgloo-dev`. `MPICC` names a compiler wrapper other than `mpicc`. NVIDIA's
//! NCCL is a transport in a crate of its own, `burn-mpi-nccl` in the repository. It is experimental: it has not
//! run on a GPU yet, so it is not published.
//!
//! The [`guide`] describes accumulation, batch norm, tied parameters, local updates and all errors.

#![deny(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod activity;
mod calling;
mod cause;
mod clock;
mod collective;
mod compress;
mod cores;
mod ddp;
#[cfg(feature = "mpi")]
mod environment;
mod error;
mod exchange;
mod gathers;
#[cfg(feature = "mpi")]
mod guard;
mod host;
#[cfg(feature = "mpi")]
mod launcher;
mod learning_rate;
mod local;
mod member;
mod messages;
mod metrics;
mod module;
mod named;
pub mod nn;
mod params;
mod process;
mod records;
#[cfg(feature = "mpi")]
mod run;
#[cfg(feature = "data")]
mod sharded;
mod sharding;
mod tensors;
pub mod threads;
mod tied;
#[cfg(feature = "train")]
mod train;
mod world;

pub use activity::Waiting;
pub use clock::ClockOffset;
pub use collective::Collective;
pub use collective::connect::{Backend, GlooAlgorithm, Reduction, Transport, connect, connect_primitives};
#[cfg(feature = "gloo")]
pub use collective::gloo::GlooCollective;
pub use collective::operation::{Call, Operation};
pub use collective::primitives::Primitives;
pub use collective::wire::{Element, Wire, chunk_range};
pub use compress::powersgd::PowerSgd;
pub use compress::{Compression, CompressionState, GradientBucket};
pub use ddp::arrival::ArrivalOrder;
pub use ddp::buckets::Signals;
pub use ddp::gradient_sync::{GradientSync, MicroBatch};
pub use ddp::hook::poll;
pub use ddp::options::{SyncOptions, WireType};
pub use ddp::report::{BucketReport, CommTimes, NoOverlap, Overlap, SyncEvent, SyncReport, SyncWatch};
pub use ddp::sharded_optimizer::ShardedOptimizer;
pub use ddp::share::Piece;
pub use error::{CommError, MissingGradient, SharedError};
pub use exchange::{Exchanged, Summed};
pub use host::{Place, oversubscribed};
#[cfg(feature = "mpi")]
pub use launcher::Launcher;
pub use learning_rate::{LrScaling, Reached, TargetAccuracy, warmup};
pub use local::{FragmentState, LocalError, LocalOptions, LocalState, LocalUpdates, Outer};
pub use member::Started;
pub use metrics::{Mean, average_metrics};
pub use module::{broadcast_module, check_equal_weights};
pub use params::{ParamLayout, ParamSpec};
pub use process::{identity, name_deadline, name_program, set_deadline, set_stall_warning};
pub use records::{Record, load_module, load_record, save_record};
#[cfg(feature = "mpi")]
pub use run::{abort, end_the_job_on_panic, run};
#[cfg(feature = "data")]
pub use sharded::{BatchError, RankBatch, ShardedDataset};
pub use sharding::{SampleOrder, ShardPlan, UnevenBatch};
pub use tied::tie_parameters;
#[cfg(feature = "train")]
pub use train::{LearnerOptions, OverMpi, RankOutput, backward};
pub use world::World;

#[doc = include_str!("../GUIDE.md")]
pub mod guide {}

/// The examples of the README, as documentation tests.
#[cfg(all(doctest, feature = "mpi", feature = "data"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Types of MPI's headers for docs.rs, which has no MPI: rustdoc reads the signatures of functions, and not
/// their bodies.
#[cfg(burn_mpi_docs)]
#[allow(non_camel_case_types, reason = "the names of MPI")]
mod ffi {
    pub type MPI_Comm = usize;
    pub type MPI_Datatype = usize;
    pub type MPI_Op = usize;
    pub type MPI_Request = usize;
}
#[cfg(burn_mpi_docs)]
extern crate self as mpi;

/// What the program mpiburn uses beyond the interface of this crate. A release may change it in any way.
#[cfg(feature = "internals")]
#[allow(missing_docs, reason = "a list of re-exports")]
pub mod internals {
    #[cfg(feature = "gloo")]
    pub use crate::collective::gloo::sys::gloo_version;
    #[cfg(feature = "mpi")]
    pub use crate::collective::mpi::mpi_library;
    pub use crate::cores::{cores_and_cpus, memory_limit};
    pub use crate::ddp::buffers::CONTROL;
    pub use crate::ddp::options::bucket_limits;

    pub mod messages {
        pub use crate::messages::{FAILED, NOTICED, WAITS, tag, tag_lines};
    }

    /// The MPI of this build, found from its compiler wrapper: `openmpi` or `mpich`.
    #[cfg(feature = "mpi")]
    pub const MPI_FLAVOUR: &str = env!("BURN_MPI_FLAVOUR");
}
