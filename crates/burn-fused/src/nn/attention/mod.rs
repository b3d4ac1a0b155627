//! Attention: everything in [`burn::nn::attention`], with fused modules. The fused modules compute the scores
//! of a few queries at a time, so that the scores stay in the processor's cache.

mod cross;
mod multi_head;
#[cfg(test)]
mod tests;

pub use burn::nn::attention::*;
pub use cross::{CrossAttention, CrossAttentionCache, CrossAttentionConfig};
pub(super) use multi_head::Masks;
pub use multi_head::{MhaCache, MhaInput, MhaOutput, MultiHeadAttention, MultiHeadAttentionConfig};
