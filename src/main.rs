//! Entry point of the program: parses options, starts the logger, runs the command. If the command fails, the
//! process prints one line and, if other ranks may be waiting for it, aborts the job.

use std::process::ExitCode;

use burn_fused::memory::allocator;
use burn_fused::memory::counting_allocator::CountingAllocator;
use burn_mpi::internals::messages::FAILED;
use mpiburn::commands::Ending;
use mpiburn::options::Cli;
use mpiburn::{INTERNAL_ERROR, commands};

/// mimalloc, with a count of allocations for benchmarks and profiles. The function `work` makes mimalloc keep
/// freed pages, because each training step allocates again what the previous step freed.
#[cfg(not(system_allocator))]
#[global_allocator]
static ALLOCATOR: CountingAllocator<mimalloc::MiMalloc> = CountingAllocator(mimalloc::MiMalloc);

/// The system's malloc, for tests under sanitizers and valgrind, which set `system_allocator`. These tools
/// track blocks from malloc; they do not see the blocks into which mimalloc divides its pages.
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
    // Long backward operators call the poll function, so that collectives in flight make progress meanwhile.
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

/// Installs a panic hook that asks for a report. A panic is always a bug: invalid input is reported as an
/// error.
fn ask_for_reports_of_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        commands::print_error(FAILED, INTERNAL_ERROR);
        default(panic);
    }));
}
