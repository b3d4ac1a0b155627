//! Aborting the whole job from one rank.

use std::sync::Once;

use crate::collective::mpi::library;
use crate::process::{identity, say};

/// Aborts all processes of the job with `code`; only this process if MPI is not running.
///
/// May be called from any thread, and from a panic hook. The thread that started MPI calls
/// `MPI_Abort`. Other threads must not, at the thread level that
/// [`World::init`](crate::World::init) requests: there this process exits at once, without
/// `MPI_Finalize`, and its launcher aborts the job (Open MPI's and MPICH's mpirun and Slurm's
/// srun do). Before that, the launcher has up to 5 seconds to read what this process has printed.
pub fn abort(code: i32) -> ! {
    library::abort(code)
}

/// Makes a panic on any thread of one rank abort all ranks, which would otherwise wait for it.
/// Prints the rank, calls the previous panic hook, and then [`abort`]s with code 101. The first call
/// counts.
pub fn end_the_job_on_panic() {
    /// The exit code of a Rust program that panics.
    const PANICKED: i32 = 101;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if let Some((rank, _, host)) = identity() {
                say(&format!("rank {rank} on {host} panicked: ending the job"));
            }
            before(panic);
            abort(PANICKED)
        }));
    });
}
