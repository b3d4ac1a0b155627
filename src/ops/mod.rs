//! Reports gradients while backward still goes on.

pub mod gradient_hook;
