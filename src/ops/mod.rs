//! Operators with a backward of their own.

pub mod gradient_hook;
