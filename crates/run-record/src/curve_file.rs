//! Curves: files with the loss or accuracy of one rank. Each line has a step and the value at this step. A
//! checkpoint stores the length and digest of each curve, so a resumed run can check the curve and continue
//! it.
//!
//! This module also defines the lines of `epochs.csv`, and detects overfitting from them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::RecordError;
use super::checkpoint::{CurveDigest, Curves};
use crate::files;

/// A curve that is appended to, with the digest of its content so far.
pub(super) struct CurveFile {
    path: PathBuf,
    bytes: u64,
    digest: Sha256,
}

impl CurveFile {
    /// Opens the curve, and creates the file if it is missing. `known` is the length and digest of the curve
    /// at the checkpoint that the run resumes from. Everything after this length is cut off, because the run
    /// writes it again. If `known` is `None`, the file is emptied.
    pub fn open(path: PathBuf, known: Option<&CurveDigest>) -> Result<Self, RecordError> {
        let kept = files::if_there(files::read_regular(&path));
        let mut kept = kept.map_err(|e| RecordError::read(&path, e))?.unwrap_or_default();
        kept.truncate(known.map_or(0, |known| known.bytes as usize));
        files::write_here(&path, &kept).map_err(|e| RecordError::write(&path, e))?;
        Ok(Self { path, bytes: kept.len() as u64, digest: Sha256::new_with_prefix(&kept) })
    }

    /// Appends `line`, which must end with a newline.
    pub fn append(&mut self, line: &str) -> Result<(), RecordError> {
        let (folder, name) = (self.path.parent(), self.path.file_name().and_then(OsStr::to_str));
        let (folder, name) = (folder.unwrap_or(&self.path), name.unwrap_or_default());
        let written = files::append_in(folder, name, line.as_bytes());
        written.map_err(|e| RecordError::write(&self.path, e))?;
        self.bytes += line.len() as u64;
        self.digest.update(line);
        Ok(())
    }

    /// Returns length and digest of the curve so far.
    pub fn digest(&self) -> CurveDigest {
        CurveDigest { bytes: self.bytes, sha256: files::hex(self.digest.clone().finalize()) }
    }
}

/// Checks that the curves in the run directory `run` still begin with the content that they had when the
/// checkpoint `of` was written. If the file of a curve is missing, only a warning is logged.
///
/// # Errors
/// If a curve is too short or changed, or cannot be read. The error names the first such curve.
pub fn check_curves(run: &Path, curves: &Curves, of: &Path) -> Result<(), RecordError> {
    for (name, CurveDigest { bytes, sha256 }) in curves {
        let path = run.join(name);
        let found = files::if_there(files::read_regular(&path));
        let Some(found) = found.map_err(|e| RecordError::read(&path, e))? else {
            log::warn!("{} is missing: the curve continues without its earlier points", path.display());
            continue;
        };
        let begin = usize::try_from(*bytes).ok().and_then(|bytes| found.get(..bytes));
        if begin.is_none_or(|begin| files::sha256(begin) != *sha256) {
            let what = format!(
                "is truncated or changed since the checkpoint {} was written: restore the file, or remove it to continue without \
                 its points",
                of.display()
            );
            return Err(RecordError::damaged(&path, what));
        }
    }
    Ok(())
}

/// A finished epoch: one line of `epochs.csv`. Accuracies are in percent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRow {
    /// Number of the epoch, from 1.
    pub epoch: usize,
    /// Loss, mean over all ranks' training samples.
    pub train_loss: f64,
    /// Accuracy over all ranks' training samples.
    pub train_accuracy: f64,
    /// Loss, mean over the whole test set.
    pub test_loss: f64,
    /// Accuracy over the whole test set.
    pub test_accuracy: f64,
    /// Wall time of the epoch's training loop, in seconds.
    pub seconds: f64,
    /// Learning rate of the epoch's last step.
    pub learning_rate: f64,
    /// Accuracy of the int8 model over the whole test set; `None` if there is no int8 model.
    pub int8_test_accuracy: Option<f64>,
    /// Loss of the int8 model, mean over the whole test set; `None` if there is no int8 model.
    pub int8_test_loss: Option<f64>,
}

/// Minimum number of epochs after the lowest test loss for a run to count as overfitting.
const LATER: usize = 2;
/// A run counts as overfitting only if the test loss rises from its minimum to the last epoch by at least
/// this share of the minimum. A loss that has converged moves by less.
pub const LEAST_RISE: f64 = 0.01;

/// Returns the epoch after which a run overfits: the epoch of lowest test loss. `None` if the run does not
/// overfit.
///
/// A run overfits if three conditions hold: at least two epochs follow the epoch of lowest test loss; the
/// last epoch has a test loss that is higher by [`LEAST_RISE`] or more; and the last epoch has a lower
/// training loss than the epoch of lowest test loss. A run is therefore not reported while it still improves
/// or has just had its best epoch. A run that diverges is not reported because its training loss rises too.
pub fn overfits_after(epochs: &[EpochRow]) -> Option<usize> {
    // If several epochs have the lowest loss, take the last of them: all later losses are then higher.
    let lowest = epochs.iter().rev().min_by(|a, b| a.test_loss.total_cmp(&b.test_loss))?;
    let later = epochs.iter().filter(|row| row.epoch > lowest.epoch);
    let falls = epochs.last()?.train_loss < lowest.train_loss;
    let rises = epochs.last()?.test_loss >= lowest.test_loss * (1.0 + LEAST_RISE);
    (later.count() >= LATER && falls && rises).then_some(lowest.epoch)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn curve(text: &str, known: Option<&CurveDigest>) -> (String, CurveDigest) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("train.loss");
        fs::write(&path, text).unwrap();
        let file = CurveFile::open(path.clone(), known).unwrap();
        (fs::read_to_string(&path).unwrap(), file.digest())
    }

    #[test]
    fn a_resumed_curve_has_no_step_twice() {
        let text = "100 0.5\n200 0.25\n";
        let known = CurveDigest { bytes: text.len() as u64, sha256: files::sha256(text.as_bytes()) };
        // A killed run wrote more after its checkpoint.
        let (kept, digest) = curve("100 0.5\n200 0.25\n150 0.12\n30", Some(&known));
        assert_eq!((kept.as_str(), &digest), (text, &known));
        assert_eq!(curve(text, None).0, "", "a new run empties the file");
    }

    #[test]
    fn a_changed_or_shorter_curve_is_named_and_a_longer_or_missing_one_is_none() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("train.loss");
        let mut file = CurveFile::open(path.clone(), None).unwrap();
        file.append("1 0.5\n").unwrap();
        let curves = Curves::from([("train.loss".into(), file.digest())]);
        let check = || check_curves(root.path(), &curves, Path::new("step-1")).map_err(|e| e.to_string());
        assert_eq!(check(), Ok(()));
        file.append("2 0.25\n").unwrap();
        assert_eq!(check(), Ok(()));
        for text in ["1 0.6\n2 0.25\n", "1 0.5", ""] {
            fs::write(&path, text).unwrap();
            let error = check().unwrap_err();
            assert!(error.contains("train.loss: ") && error.contains("step-1 "), "{error}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(check(), Ok(()));
    }
}

#[cfg(test)]
mod epochs_tests {
    use super::*;

    fn after(losses: &[(f64, f64)]) -> Option<usize> {
        let row = |(i, &(train_loss, test_loss)): (usize, &(f64, f64))| EpochRow {
            epoch: i + 1,
            train_loss,
            train_accuracy: 50.0,
            test_loss,
            test_accuracy: 50.0,
            seconds: 1.0,
            ..EpochRow::default()
        };
        overfits_after(&losses.iter().enumerate().map(row).collect::<Vec<_>>())
    }

    #[test]
    fn test_loss_that_turns_up_while_training_loss_falls_is_overfitting() {
        assert_eq!(after(&[(2.0, 2.1), (1.5, 1.6), (1.0, 1.7), (0.6, 2.0)]), Some(2));
        assert_eq!(
            after(&[(2.0, 2.1), (1.5, 1.6), (1.2, 1.6), (1.0, 1.7), (0.6, 2.0)]),
            Some(3),
            "the last of equal losses"
        );
        assert_eq!(after(&[(2.0, 1.6), (1.0, 1.7), (0.6, 2.0)]), Some(1));
        // Fluctuation during the rise still counts.
        assert_eq!(after(&[(2.0, 1.6), (1.0, 2.7), (0.9, 2.0), (0.6, 2.2)]), Some(1));
    }

    #[test]
    fn a_run_that_gets_better_or_falls_apart_does_not_overfit() {
        assert_eq!(after(&[(2.0, 2.1), (1.5, 1.6), (1.0, 1.5), (0.6, 1.4)]), None, "better to the end");
        assert_eq!(after(&[(2.0, 2.1), (1.5, 1.6), (1.0, 1.7)]), None, "one epoch is chance");
        assert_eq!(after(&[(2.0, 2.1), (1.5, 1.6), (1.8, 1.7), (1.9, 2.0)]), None, "training loss rises too");
        assert_eq!(after(&[(2.0, 1.6), (1.0, 1.60003), (0.6, 1.60006)]), None, "converged");
        assert_eq!(after(&[]), None);
    }
}
