//! Entry point: parses options, starts the logger, runs the command. A failure
//! prints one line and aborts the whole job.

use std::process::ExitCode;

use burn_fused::memory::allocator;
use burn_fused::memory::counting_allocator::CountingAllocator;
use burn_mpi::messages::FAILED;
use mpiburn::commands::Ending;
use mpiburn::options::Cli;
use mpiburn::{INTERNAL_ERROR, commands};

/// Keeps freed pages: a training step allocates what the step before freed. It
/// counts allocations for `bench step`.
#[cfg(not(system_allocator))]
#[global_allocator]
static ALLOCATOR: CountingAllocator<mimalloc::MiMalloc> = CountingAllocator(mimalloc::MiMalloc);

/// The tests under sanitizers and valgrind set `system_allocator`: these tools see what
/// comes from malloc, not the blocks into which mimalloc divides its pages.
#[cfg(system_allocator)]
#[global_allocator]
static ALLOCATOR: CountingAllocator<std::alloc::System> = CountingAllocator(std::alloc::System);

fn main() -> ExitCode {
    work().into()
}

fn work() -> u8 {
    ask_for_reports_of_panics();
    terminal::console::survive_large_files();
    burn_mpi::name_program("mpiburn");
    burn_mpi::end_the_job_on_panic();
    allocator::keep_freed_pages();
    allocator::use_common_pages();
    // Transfers also make progress during the backward of long operators.
    burn_fused::set_poll(burn_mpi::poll);
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return commands::usage(&error),
    };
    commands::set_deadline(&cli.command);
    commands::logging::start(cli.verbose, cli.quiet);
    match commands::run(cli) {
        Ok(0) if terminal::console::lost() => 1,
        Ok(code) => code,
        Err(failure) => {
            failure.print();
            if failure.ending == Ending::Abort {
                burn_mpi::abort(i32::from(failure.exit_code()));
            }
            failure.exit_code()
        }
    }
}

/// Invalid input is an error, never a panic.
fn ask_for_reports_of_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        commands::print_error(FAILED, INTERNAL_ERROR);
        default(panic);
    }));
}
