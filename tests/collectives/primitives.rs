//! Checks the blocking operations of a transport against arithmetic.

use burn_mpi::{Primitives, World};

use crate::values::{SUMMED, sum, value, wire};
use crate::{Outcome, report};

pub fn check(world: &World, on: &mut dyn Primitives) -> Outcome {
    let (rank, size) = (world.rank(), world.size());
    let name = on.transport().to_owned();
    for length in [1, 7, 100_001] {
        let part = |r: usize| vec![r as u8 + 1; length];
        let everyone: Vec<u8> = (0..size).flat_map(part).collect();
        let zeros = vec![0; everyone.len()];
        for root in 0..size {
            let mut all = zeros.clone();
            on.gather(&part(rank), &mut all, root)?;
            assert!(all == if rank == root { everyone.clone() } else { zeros.clone() }, "gather");

            let mut mine = vec![0; length];
            on.scatter(if rank == root { &everyone } else { &[] }, &mut mine, root)?;
            assert!(mine == part(rank), "scatter");

            let mut bytes = if rank == root { part(9) } else { part(0) };
            on.broadcast(&mut bytes, root)?;
            assert!(bytes == part(9), "broadcast");

            for kind in 0..SUMMED {
                let mine = wire(kind, length, |i| value(rank, i));
                let mut total = mine.zeros_like(length);
                on.reduce(&mine, &mut total, root)?;
                let expected = wire(kind, length, |i| sum(size, i));
                assert!(rank != root || total == expected, "reduce: type {kind}, {length} elements");
            }
        }
        let mut all = zeros.clone();
        on.all_gather(&part(rank), &mut all)?;
        assert!(all == everyone, "all-gather");

        let from: Vec<u8> = (0..size).flat_map(|to| vec![(rank * size + to) as u8; length]).collect();
        on.all_to_all(&from, &mut all)?;
        let want: Vec<u8> = (0..size).flat_map(|r| vec![(r * size + rank) as u8; length]).collect();
        assert!(all == want, "all-to-all");

        let mine = wire(0, length * size, |i| value(rank, i));
        let mut share = mine.zeros_like(length);
        on.reduce_scatter(&mine, &mut share)?;
        assert!(share == wire(0, length, |i| sum(size, rank * length + i)), "reduce-scatter");

        on.barrier()?;
        // A message passes around the ring of ranks.
        let mut token = part(7);
        if size > 1 && rank == 0 {
            on.send(&token, 1)?;
            token.fill(0);
            on.receive(&mut token, size - 1)?;
        } else if size > 1 {
            token.fill(0);
            on.receive(&mut token, rank - 1)?;
            on.send(&token, (rank + 1) % size)?;
        }
        assert!(token == part(7), "send and receive");
    }
    report(
        world,
        &format!(
            "{name}: gather, scatter, broadcast, reduce, all-gather, reduce-scatter, all-to-all, barrier, send and \
             receive work"
        ),
    )
}
