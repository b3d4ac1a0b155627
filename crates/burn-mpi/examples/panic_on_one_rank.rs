//! A panic on one rank: the whole job aborts at once, with the panic's message.
//! Start it with `mpirun -n 3`.

use burn_mpi::{World, end_the_job_on_panic};

fn main() -> Result<(), burn_mpi::CommError> {
    end_the_job_on_panic();
    let world = World::init()?;
    assert!(world.rank() != 1, "rank 1 finds something that cannot be");
    world.barrier()?;
    println!("rank {} went on", world.rank());
    Ok(())
}
