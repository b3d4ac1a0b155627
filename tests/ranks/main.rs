//! Commands of the program on ranks that are threads of the test: what ranks do with each other, without
//! mpirun.

mod harness;
#[path = "../common/lab.rs"]
mod lab;
mod training;

use burn_fused::memory::counting_allocator::CountingAllocator;

/// Counts what commands count.
#[global_allocator]
static ALLOCATOR: CountingAllocator<std::alloc::System> = CountingAllocator(std::alloc::System);
