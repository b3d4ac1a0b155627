//! Console output of the commands: lines, tables, and digits of times.

#![forbid(unsafe_code)]

pub mod console;
pub mod digits;
pub mod table;
