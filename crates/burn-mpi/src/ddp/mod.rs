//! Distributed data parallelism: bucketing and averaging of gradients.

pub mod arrival;
pub mod buckets;
pub mod buffers;
mod collector;
pub mod gradient_sync;
pub mod hook;
pub mod options;
pub mod report;
