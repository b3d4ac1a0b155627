//! Points of the training curves between two writes.

use super::Tally;
use burn_mpi::{CommError, World};
use run_record::CurvePoint;

/// This rank's logged points that are not written yet: steps and tallies.
#[derive(Debug, Default)]
pub(super) struct Unwritten(Vec<(usize, Tally)>);

impl Unwritten {
    /// Stores this rank's tally of the steps up to `step`.
    pub(super) fn push(&mut self, step: usize, tally: Tally) {
        self.0.push((step, tally));
    }

    /// The points of all ranks, on every rank; clears the stored ones.
    ///
    /// # Errors
    /// If the transport fails.
    pub(super) fn gather(&mut self, world: &World) -> Result<Vec<CurvePoint>, CommError> {
        let ranks: Vec<Vec<(usize, Tally)>> = world.gather(&std::mem::take(&mut self.0))?;
        // All ranks log the same steps.
        let point = |at: usize| {
            let tallies: Vec<Tally> = ranks.iter().map(|lines| lines[at].1).collect();
            Tally::curve_point(ranks[0][at].0, &tallies)
        };
        Ok((0..ranks[0].len()).map(point).collect())
    }
}
