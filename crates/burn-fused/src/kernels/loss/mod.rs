//! Cross-entropy losses of rows of scores.

pub(crate) mod read;
pub(crate) mod rows;
