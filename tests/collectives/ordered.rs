//! Checks that an all-reduce in rank order has the bits of plain additions over any transport.

use burn_mpi::{Collective, Reduction, World};

use crate::values::{LENGTHS, SUMMED, awkward, awkward_sum, wire};
use crate::{Outcome, report};

pub fn check(world: &World, collective: &mut dyn Collective) -> Outcome {
    let name = collective.transport().to_owned();
    for kind in 0..SUMMED {
        for length in LENGTHS.into_iter().chain([1063 * world.size(), 250_000 * world.size()]) {
            let mut buffer = wire(kind, length, |i| awkward(world.rank(), i));
            collective.all_reduce(&mut buffer, Reduction::Ordered)?;
            let expected = awkward_sum(kind, length, world.size());
            assert!(buffer.bytes() == expected.bytes(), "{name} ordered: type {kind}, {length} elements");
        }
    }
    report(world, &format!("{name}: ordered sums of all types and lengths have the bits of plain additions"))
}
