//! Tests that start real jobs under mpirun: trainings, interruptions, invalid input.

mod bad_files;
mod bad_input;
mod bench;
mod collectives;
mod compress;
mod disk;
mod failures;
mod foreign_traffic;
mod harness;
mod imports;
#[path = "../common/lab.rs"]
mod lab;
mod launch;
mod local;
mod locks;
mod messages;
mod output;
mod reshard;
mod restart;
mod resume;
mod run_json;
mod shard;
mod stalls;
mod start_up;
mod sweep;
mod sync;
mod terminal;
mod trace;
mod training;
