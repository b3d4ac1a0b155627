//! What commands print: lines that a closed pipe does not end, tables, and digits of times.

#![forbid(unsafe_code)]

pub mod console;
pub mod digits;
pub mod table;
