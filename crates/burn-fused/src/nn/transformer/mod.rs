//! Transformers: everything in [`burn::nn::transformer`], with fused modules.

mod decoder;
mod encoder;
mod feed_forward;
mod stack;
#[cfg(test)]
mod tests;

pub use decoder::{
    TransformerDecoder, TransformerDecoderAutoregressiveCache, TransformerDecoderConfig,
    TransformerDecoderInput, TransformerDecoderLayer, TransformerDecoderLayerAutoregressiveCache,
};
pub use encoder::{
    TransformerEncoder, TransformerEncoderAutoregressiveCache, TransformerEncoderConfig,
    TransformerEncoderInput, TransformerEncoderLayer, TransformerEncoderLayerAutoregressiveCache,
};
pub use feed_forward::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
