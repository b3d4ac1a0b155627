//! State that a process has once: memory, the callback from backward passes, and the debug lines already
//! logged.

pub(crate) mod fallback;
pub mod memory;
pub(crate) mod poll;
