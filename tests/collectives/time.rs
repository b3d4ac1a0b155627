//! Measures all-reduces over both transports.

use std::error::Error;
use std::time::Instant;

use burn_mpi::{
    Backend, Collective, GlooAlgorithm, GlooCollective, Operation, Reduction, Transport, World, connect,
};

use crate::values::wire;
use crate::{Outcome, TIMEOUT};

pub fn compare(world: &World, interface: Option<&str>) -> Outcome {
    for (length, rounds) in [(4250, 200), (250_000, 40), (3_400_000, 20)] {
        let length = usize::next_multiple_of(length, world.size());
        let mut rows = Vec::new();
        let mut mpi = connect(world, Backend::Mpi, &Transport::default())?;
        rows.push(("mpi".to_owned(), median(world, &mut *mpi, length, rounds)?));
        for algorithm in GlooAlgorithm::ALL {
            let mut gloo = GlooCollective::connect(world, interface, algorithm, TIMEOUT)?;
            rows.push((algorithm.to_string(), median(world, &mut gloo, length, rounds)?));
        }
        for (name, [native, started, ordered]) in rows {
            if world.is_root() {
                println!(
                    "{:>9} bytes  {name:<17} {native:>8.0} us   started and waited for {started:>8.0} us   \
                     ordered {ordered:>8.0} us",
                    length * 4
                );
            }
        }
    }
    Ok(())
}

/// Returns the median times of a blocking, a started, and a blocking ordered all-reduce, in microseconds.
fn median(
    world: &World,
    transport: &mut dyn Collective,
    length: usize,
    rounds: usize,
) -> Result<[f64; 3], Box<dyn Error>> {
    let mut buffer = wire(0, length, |_| 0.0);
    let mut medians = [0.0; 3];
    for (way, median) in medians.iter_mut().enumerate() {
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds + 5 {
            world.barrier()?;
            let started = Instant::now();
            if way == 1 {
                transport.start(Operation::all_reduce(0, &buffer, Reduction::Native), buffer)?;
                buffer = transport.wait(0)?;
            } else {
                let how = if way == 0 { Reduction::Native } else { Reduction::Ordered };
                transport.all_reduce(&mut buffer, how)?;
            }
            if round >= 5 {
                times.push(started.elapsed().as_secs_f64() * 1e6);
            }
        }
        times.sort_by(f64::total_cmp);
        *median = times[times.len() / 2];
    }
    Ok(medians)
}
