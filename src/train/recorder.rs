//! `Recorder`: the run directory as all ranks see it.

use std::path::Path;

use super::{Position, TrainError};
use crate::layout::stored;
use crate::quant::Int8File;
use burn_mpi::{CommError, ParamLayout, SharedError, World};
use run_record::{Checkpoint, INT8_FILE, RecordError, RunDir, RunWriter, Start};

/// Writes a run's curves, epochs and checkpoints. Every rank has one and calls the same methods;
/// only rank 0's accesses files, and its errors are returned on every rank.
pub struct Recorder<'w> {
    world: &'w World,
    /// On rank 0.
    pub writer: Option<RunWriter>,
}

impl<'w> Recorder<'w> {
    /// Opens the curves in `dir`, which rank 0 alone has.
    ///
    /// # Errors
    /// As [`RunWriter::open`].
    pub fn open(world: &'w World, dir: Option<RunDir>, start: Start<'_>) -> Result<Self, RecordError> {
        Ok(Self { world, writer: dir.map(|dir| RunWriter::open(dir, world.size(), start)).transpose()? })
    }

    /// Writes a checkpoint, with the int8 model of its weights if there is one; no rank continues
    /// before it is complete. Returns whether it is written: if it cannot be and is not the `last` of the run, a
    /// warning and `run.json` say so.
    ///
    /// # Errors
    /// If the transport fails, or the last checkpoint cannot be written.
    pub fn checkpoint(
        &mut self,
        layout: &ParamLayout,
        int8: Option<&Int8File>,
        last: bool,
        checkpoint: &Checkpoint<Position>,
    ) -> Result<bool, TrainError> {
        let step = checkpoint.position.step;
        // The agreement is also the barrier: a rank gets its result only after rank 0 has written
        // and all others have arrived.
        let saved = self.write(|writer| {
            let int8 = int8.map(|int8| int8.encode(Path::new(INT8_FILE))).transpose()?;
            let Position { best_step, most_accurate_step, .. } = checkpoint.position;
            let kept = [best_step, most_accurate_step];
            writer.checkpoint(&stored(layout), int8.as_deref(), checkpoint, step, kept)
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

    /// Writes on rank 0, and agrees on the result.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(
        &mut self,
        with: impl FnOnce(&mut RunWriter) -> Result<(), RecordError>,
    ) -> Result<(), CommError> {
        let written = self.writer.as_mut().map_or(Ok(()), with);
        self.world.agree(written)
    }
}
