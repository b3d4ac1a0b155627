//! Writes the output of mpiburn's commands to a terminal or a pipe: lines, tables, and times with enough
//! digits.

#![forbid(unsafe_code)]

pub mod console;
pub mod digits;
pub mod table;
