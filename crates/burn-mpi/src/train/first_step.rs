//! Checks of the first step: ranks with other batches, rates or optimizers would train on with weights
//! that are not the same.

use burn::module::Module;

use crate::module::check_equal_parameters;
use crate::{CommError, World};

/// Checks that all ranks have batches of one size, by what this rank has `own` in its first of a shard
/// of `items`: a whole batch, or a shard that is smaller than one.
///
/// # Errors
/// On all ranks, the first two whose batches cannot have the same size.
pub(super) fn check_batches(world: &World, own: usize, items: usize) -> Result<(), CommError> {
    let ranks: Vec<(usize, usize)> = world.gather(&(own, items))?;
    let is_whole = |&(own, items): &(usize, usize)| own < items;
    let Some(first) = ranks.iter().position(is_whole) else { return Ok(()) };
    let batch = ranks[first].0;
    let other = |rank: &(usize, usize)| rank.0 > batch || (is_whole(rank) && rank.0 != batch);
    let Some(rank) = ranks.iter().position(other) else { return Ok(()) };
    // The error compares with rank 0.
    let rank = if rank == 0 { first } else { rank };
    Err(world.diverged("the number of samples in the first batch", rank, ranks[rank].0, ranks[0].0))
}

/// Checks that the first step has left the same weights everywhere.
///
/// # Errors
/// On all ranks, the first parameter that differs.
pub(super) fn check_weights<M: Module>(world: &World, model: &M) -> Result<(), CommError> {
    check_equal_parameters(world, model).map_err(|mut error| {
        if let CommError::Diverged { what, .. } = &mut error {
            *what =
                format!("after the first step (ranks need the same optimizer, rate and clipping), {what}");
        }
        error
    })
}
