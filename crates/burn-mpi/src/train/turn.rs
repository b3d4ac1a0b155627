//! What ranks tell each other before a step.

use crate::{CommError, World};

/// One step of all ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Turn {
    /// Samples of this rank.
    pub own: usize,
    /// Samples of all ranks; none after the last step.
    pub total: usize,
    /// Whether no rank has samples after this step.
    pub last: bool,
    /// Whether rank 0 has been asked to stop.
    pub stop: bool,
}

impl Turn {
    /// Exchanges this rank's samples, whether its shard ends with them, and rank 0's `stop`.
    ///
    /// # Errors
    /// On all ranks, the `failure` of the first that has one.
    pub fn take(
        world: &World,
        own: usize,
        last: bool,
        stop: bool,
        failure: Option<String>,
    ) -> Result<Self, CommError> {
        let flag = |flag: bool| f64::from(u8::from(flag));
        let mut sums = [own as f64, flag(last), flag(stop && world.is_root()), flag(failure.is_some())];
        world.sum_f64(&mut sums)?;
        let [total, ended, stops, failures] = sums;
        if failures > 0.0 {
            world.agree(failure.map_or(Ok(()), Err))?;
        }
        Ok(Self { own, total: total as usize, last: ended as usize == world.size(), stop: stops > 0.0 })
    }
}
