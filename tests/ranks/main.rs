//! Runs commands of the program on ranks that are threads of the test, without mpirun. Tests what the ranks
//! do together.

mod bad_files;
mod bad_input;
mod bench;
mod collectives;
mod compress;
mod data;
mod disk;
mod harness;
mod int8;
#[path = "../common/lab.rs"]
mod lab;
mod local;
mod named_runs;
mod networks;
mod own_data;
mod precision;
mod profile;
mod quantized;
mod recipes;
mod report;
mod report_inputs;
mod report_profiles;
mod reshard;
mod resume;
mod run_json;
mod shard;
mod start_up;
mod state;
mod sweep;
mod target;
mod trace;
mod trace_rejected;
mod training;

use burn_fused::memory::counting_allocator::CountingAllocator;

/// Counts allocated bytes, which some commands report.
#[global_allocator]
static ALLOCATOR: CountingAllocator<std::alloc::System> = CountingAllocator(std::alloc::System);
