//! A training that one rank is asked to stop, and all do.

use burn::train::Interrupter;

use crate::{CommError, World};

/// Whether any rank's interrupter is asked to stop; then all are, with the first one's reason. All ranks
/// must call it.
pub(super) fn is_asked(world: &World, interrupter: &Interrupter) -> Result<bool, CommError> {
    let reason = || interrupter.get_message().unwrap_or_else(|| "it was asked to stop".to_owned());
    let ranks: Vec<Option<String>> = world.gather(&interrupter.should_stop().then(reason))?;
    let first = ranks.into_iter().enumerate().find_map(|(rank, reason)| Some((rank, reason?)));
    let Some((rank, reason)) = first else { return Ok(false) };
    if !interrupter.should_stop() {
        interrupter.stop(Some(&format!("rank {rank} on {}: {reason}", world.host_of(rank))));
    }
    Ok(true)
}
