//! Checks all-reduces in the transport's own order.

use burn_mpi::{Collective, GlooAlgorithm, GlooCollective, Reduction, World};

use crate::values::{LENGTHS, SUMMED, sum, value, wire};
use crate::{Outcome, TIMEOUT, report};

/// Checks all algorithms of gloo against arithmetic.
pub fn check(world: &World, interface: Option<&str>) -> Outcome {
    for algorithm in GlooAlgorithm::ALL {
        let mut gloo = GlooCollective::connect(world, interface, algorithm, TIMEOUT)?;
        sums(world, &mut gloo, &algorithm.to_string())?;
    }
    Ok(())
}

/// Checks a transport that has a single algorithm.
pub fn of_all_types(world: &World, collective: &mut dyn Collective) -> Outcome {
    let name = collective.transport().to_owned();
    sums(world, collective, &name)
}

fn sums(world: &World, collective: &mut dyn Collective, name: &str) -> Outcome {
    for kind in 0..SUMMED {
        for length in LENGTHS {
            let mut buffer = wire(kind, length, |i| value(world.rank(), i));
            collective.all_reduce(&mut buffer, Reduction::Native)?;
            let expected = wire(kind, length, |i| sum(world.size(), i));
            assert!(buffer == expected, "{name}: type {kind}, {length} elements");
        }
    }
    report(world, &format!("{name}: sums of all types and lengths are right"))
}
