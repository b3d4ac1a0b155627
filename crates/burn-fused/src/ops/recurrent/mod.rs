//! Recurrent layers as one operator for a whole sequence.
//!
//! Burn computes each gate of each step by operators of its own, and as many again in backward. Here the inputs of
//! all steps are one product with the weights of all gates, and inputs that repeat, as those of an embedding of a few
//! words do, are multiplied once. What remains of a step is the product of the hidden states, with weights that are
//! packed once, and one pass for gates and states. Backward goes through the steps for the gradients of the gates
//! alone: those of inputs and weights are one product each over all steps.

mod gru;
mod lstm;
mod parameters;
mod sequences;

pub(crate) use crate::kernels::recurrent::sequences::Order;
pub(crate) use gru::gru;
pub(crate) use lstm::lstm;
pub(crate) use parameters::Gate;
