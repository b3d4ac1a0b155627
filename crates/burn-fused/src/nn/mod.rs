//! Burn's modules with fused operators: a program changes `burn::nn` to `burn_fused::nn` in its imports.
//!
//! Everything in [`burn::nn`] is here at the same paths. The modules of this table replace Burn's: they have
//! the same names, fields and records, and run the operators of this crate. All other modules are Burn's own.
//!
//! | module | fused |
//! | --- | --- |
//! | [`Linear`] | product, bias and activation; no transposed copies |
//! | [`LayerNorm`], [`RmsNorm`] | one pass forward, and one backward |
//! | [`attention::MultiHeadAttention`], [`attention::CrossAttention`] | scores, softmax, dropout and context; no weights stored |
//! | [`transformer::TransformerEncoder`], [`transformer::TransformerDecoder`] | the modules above |
//! | [`transformer::PositionWiseFeedForward`] | the first layer and the activation in one operator |
//! | [`Dropout`] | forward and backward both compute the mask; it is not stored |
//! | [`norm::Normalization`], [`activation::Activation`] | a fused layer, or Burn's if there is none |
//! | [`Gelu`] | one pass forward, and one backward |
//! | [`Embedding`] | forward copies rows, and backward sums their gradients |
//! | [`loss::CrossEntropyLoss`] | one pass forward; backward in the memory of the scores |
//! | [`conv::Conv2d`] | 3x3 convolution and bias; [with ReLU and max pooling](conv::Conv2d::forward_with) |
//! | [`BatchNorm`] | statistics and output; [with ReLU and max pooling](BatchNorm::forward_with) |
//! | `Conv2d`, `BatchNorm` | [both in one operator](conv::Conv2d::forward_norm), with ReLU and max pooling |
//! | [`pool::MaxPool2d`] | 2x2 maxima, and the position of each maximum in one byte |
//! | [`Lstm`], [`BiLstm`], [`Gru`], [`BiGru`] | all steps and gates; gradients of weights and inputs are one product each |
//!
//! `Rnn` and `BiRnn` are Burn's, with [`burn::nn::GateController`] and Burn's activations. If the loss does
//! not depend on a gate of an LSTM, the gradient of the gate is zeros. In Burn's LSTM, such a gate has no
//! gradient. `Linear`, `Conv2d`, `BatchNorm`, `LayerNorm` and `RmsNorm` also take inputs of 16 bits beside
//! parameters in f32 ([mixed precision](crate::precision)).
//!
//! These items have no counterpart in Burn's modules:
//!
//! | item | computes |
//! | --- | --- |
//! | [`BatchNorm::unbiased`](BatchNorm) | the unbiased running variance, as in PyTorch |
//! | [`BatchNorm::running_affine`] | the layer in inference as a factor and a summand, to fold it into another layer |
//! | [`Dropout::forward_at`] | masks by seed, step and sample: equal for any number of processes, and after an interruption |
//! | [`precision::autocast`](crate::precision::autocast) | a model with activations in 16 bits |
//!
//! If a module's operator does not support the operands (for example f64, or another backend), the module is
//! composed of Burn's operators, and [logs](crate) the reason.

pub mod activation;
pub mod attention;
pub mod cache;
pub mod conv;
mod convert;
mod dropout;
mod embedding;
mod linear;
pub mod loss;
pub mod norm;
pub mod pool;
/// The same modules at the path `modules`, which Burn has too.
pub mod modules {
    pub use super::*;
}
mod rnn;
#[cfg(test)]
mod tests;
pub mod transformer;

pub use activation::Gelu;
pub use burn::nn::*;
pub use dropout::{BatchPlace, Dropout, DropoutConfig};
pub use embedding::{Embedding, EmbeddingConfig};
pub use linear::{Linear, LinearConfig};
pub use norm::{BatchNorm, BatchNormConfig, LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig};
pub use rnn::{BiGru, BiGruConfig, BiLstm, BiLstmConfig, GateController, Gru, GruConfig, Lstm, LstmConfig};
