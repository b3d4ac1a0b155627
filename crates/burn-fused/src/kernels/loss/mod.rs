//! Cross-entropy losses of rows of scores (logits).

pub(crate) mod read;
pub(crate) mod rows;
