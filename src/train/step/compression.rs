//! The state of compressed gradients in checkpoints: the factors of the last step, which all ranks have in
//! common, and each rank's error memory.

use super::Learner;
use crate::train::OwnTensors;
use burn_mpi::{CommError, CompressionState};

/// Name of the factors in a checkpoint. Rank 0 stores them.
const FACTORS: &str = "compression.factors";
/// Name of a rank's error memory in a checkpoint.
const ERRORS: &str = "compression.errors";

impl Learner<'_> {
    /// Returns what a checkpoint stores about the compression on this rank; `None` if gradients are not
    /// compressed.
    pub fn compression_tensors(&self) -> Option<OwnTensors> {
        let CompressionState { shared, own } = self.sync.compression_state()?;
        let shared = self.world.is_root().then(|| (FACTORS.to_owned(), shared));
        Some(shared.into_iter().chain([(ERRORS.to_owned(), own)]).collect())
    }

    /// Continues from the `tensors` of this rank in a checkpoint. Does nothing if gradients are not
    /// compressed.
    ///
    /// # Errors
    /// If the tensors do not fit the network and the options, or the transport fails.
    pub fn restore_compression(&mut self, mut tensors: OwnTensors) -> Result<(), CommError> {
        let is_compressed =
            self.options.communication.compression.compress_rank.is_some() && self.world.size() > 1;
        if !is_compressed {
            return Ok(());
        }
        let mut take = |name| tensors.remove(name).unwrap_or_default();
        let (mut shared, own) = (take(FACTORS), take(ERRORS));
        let length: usize = self.world.broadcast(&shared.len())?;
        shared.resize(length, 0.0);
        self.world.broadcast_f32(&mut shared)?;
        self.sync.restore_compression(CompressionState { shared, own })
    }
}
