//! Operators with a backward of their own, and what makes them fast.

pub mod allocator;
pub mod batch_norm;
pub mod conv;
mod conv_operator;
pub mod conv_pair;
pub mod conv_relu;
pub mod conv_relu_pool;
#[cfg(feature = "tch")]
mod conv_tch;
#[cfg(test)]
mod conv_tests;
pub mod counting_allocator;
pub mod cross_entropy;
pub mod file_map;
mod flex_tensor;
pub mod linear;
mod linear_kernels;
pub mod live_bytes;
pub mod tail;
