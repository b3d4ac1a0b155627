//! Forward and backward steps of recurrent layers.

pub(crate) mod gru;
pub(crate) mod lstm;
mod panel;
pub(crate) mod repeated;
pub(crate) mod sequences;
mod units;
