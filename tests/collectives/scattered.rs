//! Checks reduce-scatter and all-gather against arithmetic.

use std::time::Instant;

use burn_mpi::{Collective, CommError, Operation, Reduction, Wire, World, chunk_range};

use crate::values::{BYTES, LENGTHS, SUMMED, awkward, awkward_sum, sum, value, wire};
use crate::{Outcome, TIMEOUT, report};

pub fn check(world: &World, collective: &mut dyn Collective) -> Outcome {
    let (rank, size) = (world.rank(), world.size());
    let name = collective.transport().to_owned();
    for kind in 0..SUMMED {
        for length in LENGTHS {
            let mine = chunk_range(length, size, rank);
            for how in [Reduction::Native, Reduction::Ordered] {
                let buffer = wire(kind, length, |i| value(rank, i));
                collective.start(Operation::reduce_scatter(3, &buffer, how), buffer)?;
                poll_until_done(collective, 3)?;
                let part = collective.wait(3)?;
                let expected = wire(kind, mine.len(), |i| sum(size, mine.start + i));
                assert!(part == expected, "{name} reduce-scatter {how:?}: type {kind}, {length} elements");

                collective.start(Operation::all_gather(3, &part, length), part)?;
                let all = collective.wait(3)?;
                let expected = wire(kind, length, |i| sum(size, i));
                assert!(all == expected, "{name} all-gather: type {kind}, {length} elements");
            }
            let buffer = wire(kind, length, |i| awkward(rank, i));
            collective.start(Operation::reduce_scatter(0, &buffer, Reduction::Ordered), buffer)?;
            let part = collective.wait(0)?;
            let all = awkward_sum(kind, length, size);
            let width = all.element().width();
            let expected = &all.bytes()[mine.start * width..mine.end * width];
            assert!(
                part.bytes() == expected,
                "{name} ordered reduce-scatter: type {kind}, {length} elements"
            );
        }
    }
    for length in LENGTHS {
        let mine = chunk_range(length, size, rank);
        let part = wire(BYTES, mine.len(), |i| (mine.start + i) as f32 % 251.0);
        collective.start(Operation::all_gather(0, &part, length), part)?;
        let expected = wire(BYTES, length, |i| i as f32 % 251.0);
        assert!(collective.wait(0)? == expected, "{name} all-gather of {length} bytes");
    }
    report(world, &format!("{name}: reduce-scatter and all-gather of all types and lengths are right"))?;
    refusals(world, collective, &name)
}

fn poll_until_done(collective: &mut dyn Collective, bucket: usize) -> Outcome {
    let began = Instant::now();
    while !collective.is_done(bucket) {
        let in_flight = collective.poll()?;
        assert!(in_flight <= 1);
        if began.elapsed() > TIMEOUT {
            return Err(format!("bucket {bucket} is not done after {TIMEOUT:?} of polls").into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Checks that wrong calls are rejected before anything is sent, and that the collective still works
/// afterwards.
fn refusals(world: &World, collective: &mut dyn Collective, name: &str) -> Outcome {
    let bytes = || Wire::Bytes(vec![1; 4]);
    let mut buffer = bytes();
    let error = collective.all_reduce(&mut buffer, Reduction::Native).err().ok_or("bytes were summed")?;
    let names = |error: &CommError, call: &str| matches!(error, CommError::Operation { operation, .. } if operation.contains(call));
    assert!(names(&error, "all-reduce"), "{error}");
    let error = collective.start(Operation::reduce_scatter(0, &bytes(), Reduction::Native), bytes());
    let error = error.err().ok_or("bytes were summed")?;
    assert!(names(&error, "reduce-scatter"), "{error}");
    let long = Operation::all_gather(0, &bytes(), 5 * world.size());
    let error =
        collective.start(long, bytes()).err().ok_or("a chunk of 4 elements was accepted in place of 5")?;
    assert!(names(&error, "all-gather") && error.to_string().contains("4 elements"), "{error}");
    collective.all_reduce(&mut wire(0, 1, |_| 1.0), Reduction::Native)?;
    report(world, &format!("{name}: sums of bytes and chunks of a wrong length are rejected"))
}
