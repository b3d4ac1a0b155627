//! How long the bytes of a step's gradients take between the ranks, without sums or waiting.

use std::time::{Duration, Instant};

use super::median_ms;
use crate::commands::collective;
use crate::options::RunConfig;
use burn_mpi::World;

/// Untimed exchanges: the first opens connections, and TCP's window grows over the next.
const WARM_UP: usize = 3;
const TIMED: usize = 9;

/// Median time in ms, on this rank, of an all-gather in which each rank receives as many bytes as in
/// a ring all-reduce of `bytes`: 2(n-1)/n times as many on n ranks. `None` on one rank. All ranks
/// call it with the same number.
pub fn gather_ms(world: &World, config: &RunConfig, bytes: usize) -> anyhow::Result<Option<f64>> {
    if world.size() == 1 || bytes == 0 {
        return Ok(None);
    }
    let mut primitives = collective::primitives(world, config.communication.backend, &config.transport())?;
    let mine = vec![world.rank() as u8; (2 * bytes).div_ceil(world.size())];
    let mut all = vec![0; mine.len() * world.size()];
    let mut times: Vec<Duration> = Vec::new();
    for number in 0..WARM_UP + TIMED {
        // A rank that is late is waited for here, so that only bytes are timed.
        world.barrier()?;
        let began = Instant::now();
        primitives.all_gather(&mine, &mut all)?;
        if number >= WARM_UP {
            times.push(began.elapsed());
        }
    }
    Ok(Some(median_ms(&times)))
}
