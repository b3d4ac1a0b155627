//! Real jobs under mpirun: trainings, interruptions, invalid input.

mod bad_files;
mod bad_input;
mod bench;
mod collectives;
mod disk;
mod failures;
mod harness;
#[path = "../common/lab.rs"]
mod lab;
mod locks;
mod output;
mod restart;
mod resume;
mod run_json;
mod stalls;
mod start_up;
mod strangers;
mod sweep;
mod sync;
mod trace;
mod training;
