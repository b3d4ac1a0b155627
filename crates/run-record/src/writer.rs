//! Writes what a run adds to its directory during training: curves (loss and accuracy by step), epochs and
//! checkpoints.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::checkpoint::{Curves, Origin};
use super::curve_file::CurveFile;
use super::tensorboard::TensorBoard;
use super::{
    Checkpoint, EpochRow, FailedCheckpoint, FinishedMomentsFile, FinishedRankFile, Layout, NewMomentsFile,
    NewRankFile, RankTensors, RecordError, RunDir, SaveOptions, files, folders,
};

/// Loss and accuracy at one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metrics {
    /// Loss, mean over samples.
    pub loss: f64,
    /// Accuracy in percent.
    pub accuracy: f64,
}

/// The points of one step on the curves of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct CurvePoint {
    /// Number of steps of the run so far.
    pub step: usize,
    /// Metrics of each rank; `None` for a rank without samples.
    pub ranks: Vec<Option<Metrics>>,
    /// Metrics over the samples of all ranks.
    pub mean: Option<Metrics>,
}

/// A kind of curves. For each kind, every rank has a curve of the loss and a curve of the accuracy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Curve {
    /// `train.loss` and `train.acc`.
    Train,
    /// `test.loss` and `test.acc`.
    Test,
    /// `test.int8.loss` and `test.int8.acc`, of the int8 model.
    Int8,
}

impl Curve {
    /// All kinds of curves.
    pub const ALL: [Self; 3] = [Self::Train, Self::Test, Self::Int8];

    /// Returns the names of the files for loss and accuracy in a rank's folder.
    pub fn files(self) -> [&'static str; 2] {
        match self {
            Self::Train => ["train.loss", "train.acc"],
            Self::Test => ["test.loss", "test.acc"],
            Self::Int8 => ["test.int8.loss", "test.int8.acc"],
        }
    }

    /// Returns TensorBoard's tags for loss and accuracy.
    fn tags(self) -> [&'static str; 2] {
        match self {
            Self::Train => ["train/loss", "train/accuracy"],
            Self::Test => ["test/loss", "test/accuracy"],
            Self::Int8 => ["test/int8_loss", "test/int8_accuracy"],
        }
    }
}

/// Writes a run's curves, epochs and checkpoints. Only rank 0 has a writer.
pub struct RunWriter {
    dir: RunDir,
    ranks: usize,
    /// Name and file of each curve. The name is the path in the run directory, such as `rank0/train.loss`.
    curves: Vec<(String, CurveFile)>,
    tensorboard: TensorBoard,
    origin: Origin,
    keep: Option<usize>,
    failed: Option<FailedCheckpoint>,
}

/// What a writer starts from: a new run, or the checkpoint that a run resumes from.
#[derive(Debug, Clone, Default)]
pub struct Start<'a> {
    /// Number of steps of the run so far.
    pub step: usize,
    /// The epochs finished so far.
    pub history: &'a [EpochRow],
    /// Lengths and digests of the curves at that step; empty for a new run.
    pub curves: Curves,
    /// What checkpoints' manifests record about the run.
    pub origin: Origin,
    /// Value of `--keep`: how many of the newest checkpoints to keep, in addition to the most accurate one.
    /// If `None`, the three newest are kept.
    pub keep: Option<usize>,
    /// Whether the run has an int8 model, and curves of it.
    pub has_int8: bool,
}

impl RunWriter {
    /// Opens the curves of `ranks` ranks in `dir`. The curves are truncated to the step of `start`, and
    /// `epochs.csv` is rewritten with the epochs of `start`: a resumed run writes the later values again.
    ///
    /// If the run had more ranks at that step, the curves of the other ranks are truncated too. They get no
    /// points, but each checkpoint still has their digests, so that such a rank can continue its curves if
    /// the run has it again.
    ///
    /// # Errors
    /// If a file cannot be written, or is a symbolic link.
    pub fn open(dir: RunDir, ranks: usize, start: Start<'_>) -> Result<Self, RecordError> {
        let Start { step, history, curves: known, origin, keep, has_int8 } = start;
        let mut curves = Vec::new();
        folders::remove_leftovers(&dir.checkpoints());
        for rank in 0..ranks {
            let folder = dir.path().join(format!("rank{rank}"));
            let here = files::refuse_link(&folder).and_then(|()| fs::create_dir_all(&folder));
            here.map_err(|e| RecordError::write(&folder, e))?;
            let written = Curve::ALL.into_iter().filter(|curve| has_int8 || *curve != Curve::Int8);
            for file in written.flat_map(Curve::files) {
                let name = format!("rank{rank}/{file}");
                let file = CurveFile::open(folder.join(file), known.get(&name))?;
                curves.push((name, file));
            }
        }
        let former = known.iter().filter(|(name, _)| curve_rank(name).is_some_and(|rank| rank >= ranks));
        for (name, digest) in former.filter(|(name, _)| dir.path().join(name).exists()) {
            curves.push((name.clone(), CurveFile::open(dir.path().join(name), Some(digest))?));
        }
        let mut names: Vec<String> = (0..ranks).map(|rank| format!("rank{rank}")).collect();
        names.push("mean".into());
        let tensorboard = TensorBoard::create(&dir.path().join("tensorboard"), &names, step)?;
        write_epochs(&dir.path().join("epochs.csv"), history)?;
        Ok(Self { dir, ranks, curves, tensorboard, origin, keep, failed: None })
    }

    /// Returns the run directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Adds points to the curves.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn points(&mut self, curve: Curve, points: &[CurvePoint]) -> Result<(), RecordError> {
        points.iter().try_for_each(|point| self.write_point(curve, point))
    }

    /// Begins the file of the `tensors` that differ between ranks, in rank order. The checkpoint after `step`
    /// steps of the run takes it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn rank_file(&self, step: usize, tensors: &[RankTensors]) -> Result<NewRankFile, RecordError> {
        NewRankFile::create(&self.dir.checkpoints().join(folders::folder_name(step)), tensors)
    }

    /// Begins the file of the optimizer's `moments`, by name, each with the tensors of `layout`. The
    /// checkpoint after `step` steps of the run takes it.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn moments_file(
        &self,
        step: usize,
        layout: &Layout,
        moments: &[String],
    ) -> Result<NewMomentsFile, RecordError> {
        NewMomentsFile::create(&self.dir.checkpoints().join(folders::folder_name(step)), layout, moments)
    }

    /// Writes a checkpoint after `step` steps of the run. `int8` is the content of the int8 model's file,
    /// made from the same weights. `moments` are the optimizer's moments, and `ranks` the tensors that differ
    /// between ranks.
    ///
    /// Then removes older checkpoints, except the newest ones, the checkpoint of the step `best` (lowest test
    /// loss, for early stopping) and, with `--keep`, the checkpoint of the step `most_accurate`.
    ///
    /// # Errors
    /// If the checkpoint cannot be written.
    pub fn checkpoint<P: Serialize + DeserializeOwned>(
        &self,
        layout: &Layout,
        (int8, moments, ranks): (Option<&[u8]>, Option<&FinishedMomentsFile>, Option<&FinishedRankFile>),
        checkpoint: &Checkpoint<P>,
        step: usize,
        [best, most_accurate]: [Option<usize>; 2],
    ) -> Result<(), RecordError> {
        let curves = self.curves.iter().map(|(name, curve)| (name.clone(), curve.digest())).collect();
        let kept = best.into_iter().chain(self.keep.and(most_accurate)).collect();
        let (origin, keep) = (self.origin.clone(), self.keep);
        let options = SaveOptions { int8, moments, ranks, origin, curves, step, keep, kept };
        let path = checkpoint.save(&self.dir.checkpoints(), layout, &options)?;
        log::debug!("checkpoint {}", path.display());
        Ok(())
    }

    /// Returns how many checkpoints this process could not write, with the step and the error of the last.
    pub fn failed_checkpoint(&self) -> Option<&FailedCheckpoint> {
        self.failed.as_ref()
    }

    /// Records that the checkpoint of `step` could not be written: logs a warning, and counts the failure in
    /// `run.json`.
    pub fn note_failed(&mut self, step: usize, error: String) {
        log::warn!(
            "NO CHECKPOINT of step {step}: {error}. Training continues; {}",
            newest(&self.dir.checkpoints())
        );
        let count = self.failed.as_ref().map_or(0, |failed| failed.count) + 1;
        let failed = FailedCheckpoint { count, step, error };
        if let Err(error) = self.dir.note("failed_checkpoints", &failed) {
            log::debug!("{error}");
        }
        self.failed = Some(failed);
    }

    /// Appends the line of a finished epoch to `epochs.csv`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn epoch(&self, row: &EpochRow) -> Result<(), RecordError> {
        append_epoch(&self.path().join("epochs.csv"), row)
    }

    /// Adds a point to the curve `tag` of means over ranks. Only TensorBoard has this curve.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn mean(&mut self, tag: &str, step: usize, value: f64) -> Result<(), RecordError> {
        self.tensorboard.point(self.ranks, tag, step, value)?;
        self.tensorboard.flush()
    }

    /// Adds a point to the loss and accuracy curves of each rank and of the means.
    fn write_point(&mut self, curve: Curve, point: &CurvePoint) -> Result<(), RecordError> {
        for (rank, metrics) in point.ranks.iter().chain([&point.mean]).enumerate() {
            let Some(Metrics { loss, accuracy }) = *metrics else { continue };
            for ((file, tag), value) in curve.files().iter().zip(curve.tags()).zip([loss, accuracy]) {
                self.tensorboard.point(rank, tag, point.step, value)?;
                let name = format!("rank{rank}/{file}");
                // The mean comes after the last rank. Its number may be that of an earlier rank's curves.
                let is_rank = rank < self.ranks;
                let found = self.curves.iter_mut().find(|(other, _)| is_rank && *other == name);
                if let Some((_, curve)) = found {
                    curve.append(&format!("{} {value}\n", point.step))?;
                }
            }
        }
        self.tensorboard.flush()
    }
}

/// Returns the rank of a curve from its name, such as `rank0/train.loss`; `None` for any other name.
pub(super) fn curve_rank(name: &str) -> Option<usize> {
    let (rank, file) = name.strip_prefix("rank")?.split_once('/')?;
    let is_curve = Curve::ALL.into_iter().flat_map(Curve::files).any(|curve| curve == file);
    rank.parse().ok().filter(|_| is_curve)
}

/// Names the newest checkpoint in `folder`. If the run ends now, a resume continues from this checkpoint.
fn newest(folder: &Path) -> String {
    let found = folders::list(folder).unwrap_or_default().pop();
    found.map_or_else(
        || "the run has no checkpoint yet".into(),
        |path| format!("the newest checkpoint is {}", path.display()),
    )
}

fn write_epochs(path: &Path, rows: &[EpochRow]) -> Result<(), RecordError> {
    let failed = |e| RecordError::write(path, e);
    let text = csv_lines(rows).map_err(failed)?.concat();
    let found = files::if_there(files::read_regular(path)).map_err(|e| RecordError::read(path, e))?;
    warn_of_other_epochs(path, &found.unwrap_or_default(), &text);
    files::write_here(path, text.as_bytes()).map_err(failed)
}

/// Warns if `epochs.csv` differs from the checkpoint's epochs, which replace it. Only complete lines are
/// compared, up to the end of the shorter text.
fn warn_of_other_epochs(path: &Path, found: &[u8], expected: &str) {
    let found = String::from_utf8_lossy(found);
    let finished = found.rfind('\n').map_or("", |end| &found[..end]);
    let other = finished.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    if let Some(line) = other {
        log::warn!(
            "{}: line {} differs from the checkpoint; the file is rewritten from the checkpoint",
            path.display(),
            line + 1
        );
    }
}

fn append_epoch(path: &Path, row: &EpochRow) -> Result<(), RecordError> {
    let failed = |e| RecordError::write(path, e);
    let [_, line] = csv_lines(std::slice::from_ref(row)).map_err(failed)?;
    files::append_here(path, line.as_bytes()).map_err(failed)
}

/// Returns two texts: the header with the field names, and the lines of the rows.
fn csv_lines(rows: &[EpochRow]) -> io::Result<[String; 2]> {
    // The csv crate writes a header only together with a row. So an empty row is written first and dropped.
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in [&EpochRow::default()].into_iter().chain(rows) {
        writer.serialize(row).map_err(io::Error::other)?;
    }
    let bytes = writer.into_inner().map_err(|e| io::Error::other(e.to_string()))?;
    let text = String::from_utf8(bytes).map_err(io::Error::other)?;
    let mut lines = text.split_inclusive('\n');
    let header = lines.next().unwrap_or_default().to_owned();
    Ok([header, lines.skip(1).collect()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_checkpoint_is_named_if_there_is_one() {
        let root = tempfile::tempdir().unwrap();
        assert!(newest(root.path()).contains("no checkpoint"));
        for step in [3, 20] {
            fs::create_dir(root.path().join(folders::folder_name(step))).unwrap();
        }
        assert!(newest(root.path()).ends_with("step-00000020"));
    }

    #[test]
    fn epochs_have_a_header_of_field_names_even_before_the_first() {
        const HEADER: &str = "epoch,train_loss,train_accuracy,test_loss,test_accuracy,seconds,learning_rate,\
                              int8_test_accuracy,int8_test_loss\n";
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("epochs.csv");
        write_epochs(&path, &[]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), HEADER);
        let row = |epoch, train_loss| EpochRow { epoch, train_loss, ..EpochRow::default() };
        write_epochs(&path, &[row(1, 0.5)]).unwrap();
        append_epoch(&path, &row(2, 1.0)).unwrap();
        let lines = "1,0.5,0.0,0.0,0.0,0.0,0.0,,\n2,1.0,0.0,0.0,0.0,0.0,0.0,,\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{HEADER}{lines}"));
    }
}
