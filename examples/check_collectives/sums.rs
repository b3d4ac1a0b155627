//! All-reduces in gloo's own order.

use burn_mpi::{Collective, GlooAlgorithm, GlooCollective, Reduction, World};

use crate::values::{LENGTHS, SUMMED, sum, value, wire};
use crate::{Outcome, TIMEOUT, report};

/// gloo's algorithms, against arithmetic.
pub fn check(world: &World, interface: Option<&str>) -> Outcome {
    for algorithm in GlooAlgorithm::ALL {
        let mut gloo = GlooCollective::connect(world, interface, algorithm, TIMEOUT)?;
        for kind in 0..SUMMED {
            for length in LENGTHS {
                let mut buffer = wire(kind, length, |i| value(world.rank(), i));
                gloo.all_reduce(&mut buffer, Reduction::Native)?;
                let expected = wire(kind, length, |i| sum(world.size(), i));
                assert!(buffer == expected, "{algorithm}: type {kind}, {length} elements");
            }
        }
        report(world, &format!("{algorithm}: sums of all types and lengths are right"))?;
    }
    Ok(())
}
