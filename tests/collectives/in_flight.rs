//! Checks several operations in flight at once, which may complete in any order.

use burn_mpi::{Call, Collective, Operation, Reduction, Wire, World, chunk_range};

use crate::values::{SUMMED, sum, value, wire};
use crate::{Outcome, report};

/// Numbers of elements of the operations. Few world sizes divide them.
const LENGTHS: [usize; 9] = [4250, 1, 100_003, 17, 3_001, 0, 65_537, 2, 9_999];

pub fn check(world: &World, collective: &mut dyn Collective) -> Outcome {
    let name = collective.transport().to_owned();
    for round in 0..20 {
        for bucket in 0..LENGTHS.len() {
            let (operation, buffer) = operation_of(world, bucket, round);
            collective.start(operation, buffer)?;
            // Ranks poll at different times.
            if (bucket + round).is_multiple_of(world.rank() + 1) {
                collective.poll()?;
            }
        }
        // Each rank waits for these in another order.
        let mut first = [3, 0, 4, 7];
        first.rotate_left(world.rank() % 4);
        for bucket in first {
            came_back(world, collective, bucket, round)?;
        }
        // A blocking operation while others are in flight.
        let mut buffer = wire(0, 5, |_| 1.0);
        collective.all_reduce(&mut buffer, Reduction::Native)?;
        assert_eq!(buffer, wire(0, 5, |_| world.size() as f32));
        for bucket in if world.rank().is_multiple_of(2) { [1, 2, 5, 6, 8] } else { [8, 6, 5, 2, 1] } {
            came_back(world, collective, bucket, round)?;
        }
        assert_eq!(collective.poll()?, 0);
    }
    report(world, &format!("{name}: operations in flight come back right, in any order"))
}

/// Makes an operation, and this rank's buffer for it.
fn operation_of(world: &World, bucket: usize, round: usize) -> (Operation, Wire) {
    let (length, kind) = (LENGTHS[bucket], (bucket + round) % 5);
    let mine = if kind == 4 { chunk_range(length, world.size(), world.rank()) } else { 0..length };
    let buffer = wire(bucket % SUMMED, mine.len(), |i| value(world.rank(), mine.start + i + bucket));
    let operation = match kind {
        0 => Operation::all_reduce(bucket, &buffer, Reduction::Native),
        1 => Operation::reduce_scatter(bucket, &buffer, Reduction::Ordered),
        2 => Operation::all_reduce(bucket, &buffer, Reduction::Ordered),
        3 => Operation::reduce_scatter(bucket, &buffer, Reduction::Native),
        _ => Operation::all_gather(bucket, &buffer, length),
    };
    (operation, buffer)
}

fn came_back(world: &World, collective: &mut dyn Collective, bucket: usize, round: usize) -> Outcome {
    let (length, size) = (LENGTHS[bucket], world.size());
    let (operation, _) = operation_of(world, bucket, round);
    let expected = match operation.call {
        Call::AllGather => {
            let owner = |i: usize| i / length.div_ceil(size);
            wire(bucket % SUMMED, length, |i| value(owner(i), i + bucket))
        }
        Call::ReduceScatter => {
            let mine = chunk_range(length, size, world.rank());
            wire(bucket % SUMMED, mine.len(), |i| sum(size, mine.start + i + bucket))
        }
        _ => wire(bucket % SUMMED, length, |i| sum(size, i + bucket)),
    };
    assert!(
        collective.wait(bucket)? == expected,
        "{}: {operation:?} of bucket {bucket}",
        collective.transport()
    );
    Ok(())
}
