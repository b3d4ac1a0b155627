//! Real jobs under mpirun: trainings, interruptions, invalid input.

mod bad_input;
mod bench;
mod collectives;
mod data;
mod failures;
mod harness;
mod networks;
mod output;
mod recipes;
mod report;
mod resume;
mod sweep;
mod sync;
mod training;
