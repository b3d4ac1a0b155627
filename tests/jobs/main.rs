//! Real jobs under mpirun: trainings, interruptions, invalid input.

mod bad_files;
mod bad_input;
mod bench;
mod bench_int8;
mod collectives;
mod data;
mod disk;
mod failures;
mod harness;
mod int8;
#[path = "../common/lab.rs"]
mod lab;
mod locks;
mod networks;
mod output;
mod precision;
mod profile;
mod quantized;
mod recipes;
mod report;
mod report_inputs;
mod report_profiles;
mod restart;
mod resume;
mod run_json;
mod special_files;
mod stalls;
mod start_up;
mod state;
mod strangers;
mod sweep;
mod sweep_folders;
mod sync;
mod trace;
mod trace_rejected;
mod training;
