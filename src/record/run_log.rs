//! The curves of a run: gathered from all ranks, written by rank 0.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::tensorboard::TensorBoard;
use super::{Checkpoint, RecordError, RunDir, Tally};
use burn_mpi::{ParamLayout, World};

/// One line of `epochs.csv`. Accuracies in percent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochRow {
    /// From 1.
    pub epoch: usize,
    /// Mean over all ranks' training samples.
    pub train_loss: f64,
    /// Over all ranks' training samples.
    pub train_accuracy: f64,
    /// Mean over the whole test set.
    pub test_loss: f64,
    /// Over the whole test set.
    pub test_accuracy: f64,
    /// Wall time of the epoch's training loop.
    pub seconds: f64,
}

/// Training metrics at one step of one rank.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Point {
    step: usize,
    tally: Tally,
}

/// Collects a run's curves and checkpoints. Every rank has one and calls the
/// same methods; only rank 0's touches files.
pub struct Recorder<'w> {
    world: &'w World,
    dir: Option<RunDir>,
    tensorboard: Option<TensorBoard>,
    pending: Vec<Point>,
}

/// The files of a rank's folder, in the order in which they are written.
const CURVES: [&str; 4] = ["train.loss", "train.acc", "test.loss", "test.acc"];

impl<'w> Recorder<'w> {
    /// Opens the curves in `dir` (given on rank 0 alone), cut back to `step`
    /// and to the epochs in `history`: what a run wrote after the checkpoint
    /// that it goes on from will be written again.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn open(
        world: &'w World,
        dir: Option<RunDir>,
        step: usize,
        history: &[EpochRow],
    ) -> Result<Self, RecordError> {
        let mut tensorboard = None;
        if let Some(dir) = &dir {
            for rank in 0..world.size() {
                let folder = dir.path().join(format!("rank{rank}"));
                fs::create_dir_all(&folder).map_err(|e| RecordError::write(&folder, e))?;
                CURVES.iter().try_for_each(|curve| cut_back(&folder.join(curve), step))?;
            }
            let mut names: Vec<String> = (0..world.size()).map(|rank| format!("rank{rank}")).collect();
            names.push("mean".into());
            tensorboard = Some(TensorBoard::create(&dir.path().join("tensorboard"), &names)?);
            write_epochs(&dir.path().join("epochs.csv"), history)?;
        }
        Ok(Self { world, dir, tensorboard, pending: Vec::new() })
    }

    /// The run directory, on rank 0.
    pub fn path(&self) -> Option<&Path> {
        self.dir.as_ref().map(RunDir::path)
    }

    /// Notes this rank's training metrics of the steps up to `step`.
    pub fn train_point(&mut self, step: usize, tally: Tally) {
        self.pending.push(Point { step, tally });
    }

    /// Gathers what all ranks have noted and writes it.
    ///
    /// # Errors
    /// When the transport fails or a file cannot be written.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        let pending = std::mem::take(&mut self.pending);
        let ranks: Vec<Vec<Point>> = self.world.gather(&pending)?;
        let written = self.write_points(&ranks);
        Ok(self.world.agree(written)?)
    }

    /// Writes every rank's test metrics at `step`.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn test_points(&mut self, step: usize, tallies: &[Tally]) -> Result<(), RecordError> {
        let written = self.write_curves(&CURVES[2..], "test", step, tallies);
        Ok(self.world.agree(written)?)
    }

    /// Writes a checkpoint; no rank goes on before it is whole. `checkpoint`
    /// is called on rank 0 alone.
    ///
    /// # Errors
    /// When the transport fails or a file cannot be written.
    pub fn checkpoint(
        &mut self,
        layout: &ParamLayout,
        checkpoint: impl FnOnce() -> Checkpoint,
    ) -> Result<(), RecordError> {
        let saved = match &self.dir {
            Some(dir) => checkpoint().save(&dir.checkpoints(), layout).map(Some),
            None => Ok(None),
        };
        // The agreement is the barrier: a rank has its answer only when rank 0
        // has written and all others are here.
        if let Some(path) = self.world.agree(saved)? {
            log::debug!("checkpoint {}", path.display());
        }
        Ok(())
    }

    /// Adds the line of a finished epoch to `epochs.csv`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn epoch(&mut self, row: &EpochRow) -> Result<(), RecordError> {
        let written = match &self.dir {
            Some(dir) => append_epoch(&dir.path().join("epochs.csv"), row),
            None => Ok(()),
        };
        Ok(self.world.agree(written)?)
    }

    fn write_points(&mut self, ranks: &[Vec<Point>]) -> Result<(), RecordError> {
        if self.dir.is_none() {
            return Ok(());
        }
        for at in 0..ranks[0].len() {
            let tallies: Vec<Tally> = ranks.iter().map(|points| points[at].tally).collect();
            self.write_curves(&CURVES[..2], "train", ranks[0][at].step, &tallies)?;
        }
        Ok(())
    }

    /// Adds one point to each rank's loss and accuracy curves and to the means.
    fn write_curves(
        &mut self,
        files: &[&str],
        name: &str,
        step: usize,
        tallies: &[Tally],
    ) -> Result<(), RecordError> {
        let (Some(dir), Some(tensorboard)) = (&self.dir, &mut self.tensorboard) else {
            return Ok(());
        };
        let tags = [format!("{name}/loss"), format!("{name}/accuracy")];
        let mut all = tallies.to_vec();
        all.push(Tally::total(tallies));
        for (rank, tally) in all.iter().enumerate() {
            // A rank whose shard had no sample in these steps has no point.
            if tally.samples == 0.0 {
                continue;
            }
            let values = [tally.mean_loss(), tally.accuracy()];
            for ((file, tag), value) in files.iter().zip(&tags).zip(values) {
                tensorboard.point(rank, tag, step, value)?;
                if rank < tallies.len() {
                    let path = dir.path().join(format!("rank{rank}")).join(file);
                    append(&path, &format!("{step} {value}\n"))?;
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

/// Keeps the lines of a curve up to `step`; makes the file if it is missing.
fn cut_back(path: &PathBuf, step: usize) -> Result<(), RecordError> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let kept: String = text
        // A line without its end was being written when the run was killed.
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .filter(|line| line.split(' ').next().and_then(|s| s.parse().ok()).is_some_and(|s: usize| s <= step))
        .collect();
    fs::write(path, kept).map_err(|e| RecordError::write(path, e))
}

fn write_epochs(path: &Path, rows: &[EpochRow]) -> Result<(), RecordError> {
    let header = "epoch,train_loss,train_accuracy,test_loss,test_accuracy,seconds\n";
    fs::write(path, header).map_err(|e| RecordError::write(path, e))?;
    rows.iter().try_for_each(|row| append_epoch(path, row))
}

fn append_epoch(path: &Path, row: &EpochRow) -> Result<(), RecordError> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    let text = writer
        .serialize(row)
        .map_err(std::io::Error::other)
        .and_then(|()| writer.into_inner().map_err(|e| std::io::Error::other(e.to_string())))
        .map_err(|e| RecordError::write(path, e))?;
    append(path, &String::from_utf8_lossy(&text))
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

    #[test]
    fn an_epochs_line_starts_with_its_number() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("epochs.csv");
        let row = EpochRow {
            epoch: 2,
            train_loss: 0.5,
            train_accuracy: 90.0,
            test_loss: 0.25,
            test_accuracy: 95.5,
            seconds: 1.5,
        };
        write_epochs(&path, &[row]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().nth(1), Some("2,0.5,90.0,0.25,95.5,1.5"));
    }
}
