//! The optimizer's moments in checkpoints. Ranks may have a share of the moments each: rank 0 gathers them
//! into the file, and sends them to the ranks, one parameter after the other.

use super::Learner;
use crate::layout::stored;
use crate::train::{Recorder, TrainError};
use burn_mpi::CommError;
use run_record::{FinishedMomentsFile, MomentsFile, NewMomentsFile, RecordError};

impl Learner<'_> {
    /// Writes the moments of all parameters into a file that the checkpoint after `step` steps takes, with
    /// local updates those of rank 0. Returns the file on rank 0 and `None` on other ranks. If rank 0 cannot
    /// write, the other ranks send their moments nevertheless, and rank 0 returns the error inside the
    /// result. All ranks must call it after the same step.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn write_moments(
        &self,
        recorder: &Recorder<'_>,
        step: usize,
    ) -> Result<Option<Result<FinishedMomentsFile, RecordError>>, CommError> {
        let (layout, names) = (stored(&self.layout), self.optimizer.names());
        let writer = recorder.writer.as_ref();
        let mut file = writer.map(|writer| writer.moments_file(step, &layout, &names));
        let mut write = |moment, param, values: &[f32]| {
            if let Some(Ok(new)) = &mut file
                && let Err(error) = new.write(moment, param, values)
            {
                file = Some(Err(error));
            }
        };
        for (moment, (_, values)) in self.optimizer.moments.iter().enumerate() {
            if self.local.is_some() {
                let mut rest = values.as_slice();
                let specs = self.layout.specs().iter().enumerate();
                for (param, spec) in specs.filter(|(_, spec)| spec.trainable) {
                    let (values, after) = rest.split_at(spec.range.len());
                    rest = after;
                    write(moment, param, values);
                }
            } else if self.optimizer.updates() > 0 {
                self.sync.gather_share(values, |param, values| {
                    write(moment, param, values);
                    Ok::<_, RecordError>(())
                })?;
            }
        }
        Ok(file.map(|file| file.and_then(NewMomentsFile::finish)))
    }

    /// Sets the number of updates, and this rank's moments from the `file` of a checkpoint, which rank 0 has
    /// open. `names` are the moments in the file. Ranks must know their shares. With local updates, the
    /// moments of each rank are in another file. All ranks must call it.
    ///
    /// # Errors
    /// If the moments belong to a different optimizer, the file cannot be read, or the transport fails.
    pub fn restore_moments(
        &mut self,
        names: &[String],
        updates: u64,
        file: Option<&MomentsFile>,
    ) -> Result<(), TrainError> {
        let mut moments: Vec<(String, Vec<f32>)> =
            names.iter().map(|name| (name.clone(), Vec::new())).collect();
        self.optimizer.check(&moments)?;
        if updates > 0 {
            for (at, (_, values)) in moments.iter_mut().enumerate() {
                *values = self.sync.scatter_share(|param, values| match file {
                    Some(file) => file.read(at, param, values),
                    None => Ok(()),
                })?;
            }
        }
        self.optimizer.restore(moments, updates)
    }
}
