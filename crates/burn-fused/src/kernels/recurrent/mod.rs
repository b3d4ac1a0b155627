//! What steps of recurrent layers compute on slices.

pub(crate) mod panel;
pub(crate) mod repeated;
pub(crate) mod units;
