//! Tests that involve several layers of the crate.

mod debug_lines;
mod poll;
mod shapes;
