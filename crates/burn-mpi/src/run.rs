//! `run`: executes a program's `main` as one rank of a job.

use std::error::Error;
use std::process::ExitCode;

use crate::process::say;
use crate::{World, end_the_job_on_panic};

/// Runs `body` as one rank of the job. An error or a panic on any rank prints
/// one line that names the rank and the reason, and aborts all ranks. A panic
/// aborts the job where it happens: it cannot be caught.
///
/// ```no_run
/// use std::process::ExitCode;
/// use burn_mpi::{World, run};
///
/// fn main() -> ExitCode {
///     run(train)
/// }
///
/// fn train(world: &World) -> Result<(), Box<dyn std::error::Error>> {
///     let data = std::fs::read(format!("shard{}.bin", world.rank()))?;
///     println!("rank {} has {} bytes", world.rank(), data.len());
///     Ok(())
/// }
/// ```
pub fn run(body: impl FnOnce(&World) -> Result<(), Box<dyn Error>>) -> ExitCode {
    end_the_job_on_panic();
    let world = match World::init() {
        Ok(world) => world,
        Err(error) => {
            if !error.is_rank_0s() {
                say(&error.to_string());
            }
            return ExitCode::FAILURE;
        }
    };
    let Err(error) = body(&world) else { return ExitCode::SUCCESS };
    world.report(error.as_ref());
    ExitCode::FAILURE
}
