//! Tests of more than one layer.

mod debug_lines;
mod poll;
mod shapes;
