//! Tests that involve several parts of the crate.

mod debug_lines;
mod poll;
mod shapes;
mod threads;
mod types;
