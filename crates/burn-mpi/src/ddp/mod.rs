//! Data-parallel training: each rank computes gradients on its own samples, and the gradients are averaged
//! over all ranks. Start with [`gradient_sync`].

pub mod arrival;
pub mod buckets;
pub mod buffers;
mod collector;
mod compressed;
pub mod gradient_sync;
pub mod hook;
pub mod norm;
pub mod optimizer_state;
pub mod options;
pub mod report;
pub mod sharded_optimizer;
pub mod share;
