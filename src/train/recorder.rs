//! Writes curves, epochs and checkpoints of a training into the run directory.
//!
//! Only rank 0 reads and writes files. The other ranks call the same methods and receive rank 0's result, so
//! all ranks fail or continue together.

use std::path::Path;

use super::{Position, TrainError};
use crate::layout::stored;
use crate::quant::Int8File;
use burn_mpi::{CommError, ParamLayout, SharedError, World};
use run_record::{
    Checkpoint, FinishedMomentsFile, FinishedRankFile, INT8_FILE, RecordError, RunDir, RunWriter, Start,
};

/// The files of a checkpoint that are written before the others; `None` except on rank 0.
#[derive(Default)]
pub struct Streamed {
    /// The optimizer's moments.
    pub moments: Option<Result<FinishedMomentsFile, RecordError>>,
    /// The tensors that differ between ranks; `None` if there are none.
    pub ranks: Option<Result<FinishedRankFile, RecordError>>,
}

/// Writes a run's curves, epochs and checkpoints. Every rank has a recorder.
pub struct Recorder<'w> {
    world: &'w World,
    /// Writes the files; `None` except on rank 0.
    pub writer: Option<RunWriter>,
}

impl<'w> Recorder<'w> {
    /// Returns a recorder that writes to `dir`, and opens the curves there. `dir` is `None` except on rank 0.
    ///
    /// # Errors
    /// Returns the errors of [`RunWriter::open`].
    pub fn open(world: &'w World, dir: Option<RunDir>, start: Start<'_>) -> Result<Self, RecordError> {
        Ok(Self { world, writer: dir.map(|dir| RunWriter::open(dir, world.size(), start)).transpose()? })
    }

    /// Writes a checkpoint, with the int8 model of its weights, if there is one, and the `streamed` files. No
    /// rank continues before the checkpoint is complete. Returns whether the checkpoint is written.
    ///
    /// If a checkpoint cannot be written, the run goes on, unless the checkpoint is the `last` one. A warning
    /// and `run.json` report the failure.
    ///
    /// # Errors
    /// If the transport fails, or the last checkpoint cannot be written.
    pub fn checkpoint(
        &mut self,
        layout: &ParamLayout,
        (int8, streamed): (Option<&Int8File>, Streamed),
        last: bool,
        checkpoint: &Checkpoint<Position>,
    ) -> Result<bool, TrainError> {
        let step = checkpoint.position.step;
        // `write` is also a barrier: a rank gets the result only after rank 0 has written and all other ranks
        // have arrived.
        let saved = self.write(|writer| {
            let int8 = int8.map(|int8| int8.encode(Path::new(INT8_FILE))).transpose()?;
            let Streamed { moments, ranks } = streamed;
            let (moments, ranks) = (moments.transpose()?, ranks.transpose()?);
            let Position { best_step, most_accurate_step, .. } = checkpoint.position;
            let kept = [best_step, most_accurate_step];
            let files = (int8.as_deref(), moments.as_ref(), ranks.as_ref());
            writer.checkpoint(&stored(layout), files, checkpoint, step, kept)
        });
        match saved {
            Ok(()) => Ok(true),
            Err(CommError::Shared(SharedError::Elsewhere { reason, .. })) if !last => {
                self.writer.iter_mut().for_each(|writer| writer.note_failed(step, reason.clone()));
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Calls `with` on rank 0, and returns the result of this call on all ranks.
    ///
    /// # Errors
    /// If rank 0 cannot write, or the transport fails.
    pub fn write(
        &mut self,
        with: impl FnOnce(&mut RunWriter) -> Result<(), RecordError>,
    ) -> Result<(), CommError> {
        let written = self.writer.as_mut().map_or(Ok(()), with);
        self.world.agree(written)
    }
}
