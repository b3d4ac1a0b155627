//! Metrics over all ranks: means, NaN, and the error if ranks have different metrics.

use std::error::Error;

use burn_mpi::{CommError, Mean, SharedError, World, average_metrics};

use crate::shards::refused;

pub fn check(world: &World) -> Result<(), Box<dyn Error>> {
    let (rank, last) = (world.rank(), world.size() - 1);
    // Rank 0 has no samples, unless it is the only rank.
    let mean_of = |rank: usize| 0.1 + rank as f64 / 3.0;
    let samples_of = |rank: usize| if last == 0 { 7 } else { 10 * rank };
    let (mut loss, mut broken) = (Mean::default(), Mean::default());
    let nan = f64::NAN;
    loss.add(if samples_of(rank) == 0 { nan } else { mean_of(rank) }, samples_of(rank));
    broken.add(if rank == last { nan } else { 1.0 }, 3);
    let means = average_metrics(world, &[("loss", loss), ("broken", broken), ("none", Mean::default())])?;
    let sum: f64 = (0..=last).map(|rank| mean_of(rank) * samples_of(rank) as f64).sum();
    let expected = sum / (0..=last).map(samples_of).sum::<usize>() as f64;
    let bits: Vec<u64> = world.gather(&means[0].to_bits())?;
    if bits.iter().any(|&bits| bits != expected.to_bits()) {
        return Err(format!("the mean is {} instead of {expected}; bits {bits:?}", means[0]).into());
    }
    if !means[1].is_nan() || !means[2].is_nan() {
        return Err(format!("the second and the third mean should be NaN: {means:?}").into());
    }
    let diverged = |error: &CommError| matches!(error, CommError::Shared(SharedError::Diverged { rank, .. }) if *rank == last);
    let name = if rank == last && last > 0 { "accuracy" } else { "loss" };
    refused(world, average_metrics(world, &[(name, loss)]), diverged)?;
    let count = if rank == last && last > 0 { 0 } else { 1 };
    refused(world, average_metrics(world, &[("loss", loss)][..count]), diverged)
}
