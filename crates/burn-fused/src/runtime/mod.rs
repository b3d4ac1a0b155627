//! What the process has once: memory, the callback from backward passes, and debug lines.

pub(crate) mod fallback;
pub mod memory;
pub(crate) mod poll;
