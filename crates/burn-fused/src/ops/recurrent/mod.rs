//! Recurrent layers as one operator for a whole sequence.
//!
//! Burn computes each gate of each step with separate operators, forward and backward. Here, one product
//! multiplies the inputs of all steps by the weights of all gates. Inputs that repeat, such as embeddings of
//! a few words, are multiplied once. Each step then only multiplies the hidden states by weights that are
//! packed once, and computes gates and states in one pass. Backward goes through the steps only for the
//! gradients of the gates. The gradients of the inputs are one product over all steps, and so are the
//! gradients of the weights.

mod gru;
mod lstm;
mod parameters;
mod sequences;
mod swap;

pub(crate) use gru::gru;
pub(crate) use lstm::lstm;
pub(crate) use parameters::Gate;
pub(crate) use swap::swap;
