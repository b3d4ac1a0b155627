//! Real jobs under mpirun: trainings, interruptions, invalid input.

mod bad_input;
mod bench;
mod bench_int8;
mod collectives;
mod data;
mod failures;
mod harness;
mod int8;
mod networks;
mod output;
mod precision;
mod profile;
mod quantized;
mod recipes;
mod report;
mod resume;
mod run_json;
mod sweep;
mod sync;
mod trace;
mod trace_rejected;
mod training;
