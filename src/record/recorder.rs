//! `Recorder`: curves, epochs and checkpoints of a run, written by rank 0.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::tensorboard::TensorBoard;
use super::{Checkpoint, Int8File, RecordError, Resumable, RunDir};
use burn_mpi::{ParamLayout, World};

/// A point of the loss and accuracy curves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metrics {
    /// Mean over samples.
    pub loss: f64,
    /// Percent.
    pub accuracy: f64,
}

/// One step's point on the curves of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct CurvePoint {
    /// Steps done of the run.
    pub step: usize,
    /// By rank; `None` for a rank without samples.
    pub ranks: Vec<Option<Metrics>>,
    /// Mean over the samples of all ranks.
    pub mean: Option<Metrics>,
}

/// The pair of curves that a point belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// `train.loss` and `train.acc`.
    Train,
    /// `test.loss` and `test.acc`.
    Test,
}

impl Curve {
    /// TensorBoard's prefix, and the files of a rank's folder for loss and accuracy.
    fn names(self) -> (&'static str, [&'static str; 2]) {
        match self {
            Self::Train => ("train", ["train.loss", "train.acc"]),
            Self::Test => ("test", ["test.loss", "test.acc"]),
        }
    }
}

/// Writes a run's curves, epochs and checkpoints. Every rank has one and calls the same methods;
/// only rank 0's accesses files, and its errors are returned on every rank.
pub struct Recorder<'w> {
    world: &'w World,
    dir: Option<RunDir>,
    tensorboard: Option<TensorBoard>,
}

impl<'w> Recorder<'w> {
    /// Opens the curves in `dir` (given on rank 0 alone), truncated to `step` and to the epochs in
    /// `history`, whose fields are the columns of `epochs.csv`: the run writes again what it wrote
    /// after the checkpoint from which it resumes.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn open<R: Serialize + Default>(
        world: &'w World,
        dir: Option<RunDir>,
        step: usize,
        history: &[R],
    ) -> Result<Self, RecordError> {
        let mut tensorboard = None;
        if let Some(dir) = &dir {
            for rank in 0..world.size() {
                let folder = dir.path().join(format!("rank{rank}"));
                fs::create_dir_all(&folder).map_err(|e| RecordError::write(&folder, e))?;
                for (_, files) in [Curve::Train, Curve::Test].map(Curve::names) {
                    files.iter().try_for_each(|file| cut_back(&folder.join(file), step))?;
                }
            }
            let mut names: Vec<String> = (0..world.size()).map(|rank| format!("rank{rank}")).collect();
            names.push("mean".into());
            tensorboard = Some(TensorBoard::create(&dir.path().join("tensorboard"), &names)?);
            write_epochs(&dir.path().join("epochs.csv"), history)?;
        }
        Ok(Self { world, dir, tensorboard })
    }

    /// The run directory, on rank 0.
    pub fn path(&self) -> Option<&Path> {
        self.dir.as_ref().map(RunDir::path)
    }

    /// Adds points to the curves, the same on every rank.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn points(&mut self, curve: Curve, points: &[CurvePoint]) -> Result<(), RecordError> {
        let written = points.iter().try_for_each(|point| self.write_point(curve, point));
        Ok(self.world.agree(written)?)
    }

    /// Writes a checkpoint, with the int8 model of its weights if there is one; no rank continues
    /// before it is complete. `checkpoint` is called on rank 0 alone.
    ///
    /// # Errors
    /// If the transport fails or a file cannot be written.
    pub fn checkpoint<P: Resumable>(
        &mut self,
        layout: &ParamLayout,
        int8: Option<&Int8File>,
        checkpoint: impl FnOnce() -> Checkpoint<P>,
    ) -> Result<(), RecordError> {
        let saved = match &self.dir {
            Some(dir) => checkpoint().save(&dir.checkpoints(), layout, int8).map(Some),
            None => Ok(None),
        };
        // The agreement is also the barrier: a rank gets its result only after rank 0 has written
        // and all others have arrived.
        if let Some(path) = self.world.agree(saved)? {
            log::debug!("checkpoint {}", path.display());
        }
        Ok(())
    }

    /// Appends the line of a finished epoch to `epochs.csv`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn epoch(&mut self, row: &impl Serialize) -> Result<(), RecordError> {
        let written = match &self.dir {
            Some(dir) => append_epoch(&dir.path().join("epochs.csv"), row),
            None => Ok(()),
        };
        Ok(self.world.agree(written)?)
    }

    /// Adds a point to TensorBoard's curve `tag` of the means over ranks.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn mean(&mut self, tag: &str, step: usize, value: f64) -> Result<(), RecordError> {
        let ranks = self.world.size();
        let written = match &mut self.tensorboard {
            Some(board) => board.point(ranks, tag, step, value).and_then(|()| board.flush()),
            None => Ok(()),
        };
        Ok(self.world.agree(written)?)
    }

    /// Adds one point to each rank's loss and accuracy curves and to the means.
    fn write_point(&mut self, curve: Curve, point: &CurvePoint) -> Result<(), RecordError> {
        let (Some(dir), Some(tensorboard)) = (&self.dir, &mut self.tensorboard) else {
            return Ok(());
        };
        let (name, files) = curve.names();
        for (rank, metrics) in point.ranks.iter().chain([&point.mean]).enumerate() {
            let Some(Metrics { loss, accuracy }) = *metrics else { continue };
            for ((file, tag), value) in files.iter().zip(["loss", "accuracy"]).zip([loss, accuracy]) {
                tensorboard.point(rank, &format!("{name}/{tag}"), point.step, value)?;
                if rank < point.ranks.len() {
                    let path = dir.path().join(format!("rank{rank}")).join(file);
                    append(&path, &format!("{} {value}\n", point.step))?;
                }
            }
        }
        tensorboard.flush()
    }
}

fn append(path: &Path, text: &str) -> Result<(), RecordError> {
    let write = || OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes());
    write().map_err(|e| RecordError::write(path, e))
}

/// Keeps the lines of a curve up to `step`; creates the file if it is missing.
fn cut_back(path: &PathBuf, step: usize) -> Result<(), RecordError> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let kept: String = text
        // An incomplete line was being written when the run was killed.
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .filter(|line| line.split(' ').next().and_then(|s| s.parse().ok()).is_some_and(|s: usize| s <= step))
        .collect();
    fs::write(path, kept).map_err(|e| RecordError::write(path, e))
}

fn write_epochs<R: Serialize + Default>(path: &Path, rows: &[R]) -> Result<(), RecordError> {
    // The csv crate writes a header only with a row; only the header of the default row is kept.
    let header = csv_text(true, &R::default()).map_err(|e| RecordError::write(path, e))?;
    let header = header.lines().next().unwrap_or_default();
    fs::write(path, format!("{header}\n")).map_err(|e| RecordError::write(path, e))?;
    rows.iter().try_for_each(|row| append_epoch(path, row))
}

fn append_epoch(path: &Path, row: &impl Serialize) -> Result<(), RecordError> {
    append(path, &csv_text(false, row).map_err(|e| RecordError::write(path, e))?)
}

/// One line of CSV, preceded by a header with the field names if requested.
fn csv_text(header: bool, row: &impl Serialize) -> io::Result<String> {
    let mut writer = csv::WriterBuilder::new().has_headers(header).from_writer(Vec::new());
    writer.serialize(row).map_err(io::Error::other)?;
    let bytes = writer.into_inner().map_err(|e| io::Error::other(e.to_string()))?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_curve_has_no_step_twice() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("train.loss");
        fs::write(&path, "100 0.5\n200 0.25\n300 0.12\n30").unwrap();
        cut_back(&path, 200).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "100 0.5\n200 0.25\n");
    }

    #[derive(Default, Serialize)]
    struct Row {
        epoch: usize,
        train_loss: f64,
    }

    #[test]
    fn epochs_have_a_header_of_field_names_even_before_the_first() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("epochs.csv");
        write_epochs::<Row>(&path, &[]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "epoch,train_loss\n");
        write_epochs(&path, &[Row { epoch: 1, train_loss: 0.5 }]).unwrap();
        append_epoch(&path, &Row { epoch: 2, train_loss: 1.0 }).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "epoch,train_loss\n1,0.5\n2,1.0\n");
    }
}
