//! A safe layer over NVIDIA's NCCL and the part of the CUDA driver that it needs.
//!
//! Both libraries are loaded when a program connects, by the names of their ABI (`libcuda.so.1`,
//! `libnccl.so.2`): a program that is built with this feature starts on machines that lack them.
//! The functions are declared here and not taken from a crate of bindings: cudarc 0.19 looks for
//! `libnccl.so` only, which NCCL's runtime packages do not have, panics where a function is
//! missing, and has Rust enums as return types, for which an error code of a newer library is
//! undefined behaviour.
//!
//! A bucket is in host memory. Each operation copies it to the GPU, calls NCCL and copies the
//! result back, all in one stream, so that nothing but the copy into pinned memory takes time of
//! the thread that starts it.

pub mod communicator;
mod cuda;
pub mod gpu;
mod library;
mod load;

/// The transport's name.
const NAME: &str = "nccl";
