//! State outside of tensors and modules: the memory pool and counters, the threads of operators, the poll
//! callback that backward passes call, and the debug lines that were already logged.

pub(crate) mod fallback;
pub mod memory;
pub(crate) mod poll;
pub(crate) mod threads;
