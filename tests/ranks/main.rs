//! Commands of the program on ranks that are threads of the test: what ranks do with each other, without
//! mpirun.

mod bench;
mod collectives;
mod gradients;
mod harness;
mod int8;
#[path = "../common/lab.rs"]
mod lab;
mod networks;
mod precision;
mod profile;
mod quantized;
mod recipes;
mod report;
mod report_inputs;
mod report_profiles;
mod training;

use burn_fused::memory::counting_allocator::CountingAllocator;

/// Counts what commands count.
#[global_allocator]
static ALLOCATOR: CountingAllocator<std::alloc::System> = CountingAllocator(std::alloc::System);
