//! Checks user-defined modules on every rank:
//! `mpirun -n N target/release/examples/check_modules [mpi|gloo]...`. Without arguments, checks over all
//! transports of this build.

mod compressed;
mod missing;
mod own_module;
mod sharded;
mod types;

use std::error::Error;
use std::process::ExitCode;

use burn_mpi::{Backend, World, run};

fn main() -> ExitCode {
    run(|world| {
        let typed: Vec<Backend> =
            std::env::args().skip(1).map(|name| name.parse()).collect::<Result<_, _>>()?;
        let built = [Backend::Mpi, Backend::Gloo].into_iter().filter(|backend| backend.check_built().is_ok());
        for backend in if typed.is_empty() { built.collect() } else { typed } {
            check(world, backend).map_err(|error| format!("{backend}: {error}"))?;
            println!("rank {}: modules are right over {backend}", world.rank());
        }
        Ok(())
    })
}

fn check(world: &World, backend: Backend) -> Result<(), Box<dyn Error>> {
    missing::check(world, backend)?;
    own_module::check(world, backend)?;
    sharded::check(world, backend)?;
    types::check(world, backend)?;
    compressed::check(world, backend)
}
