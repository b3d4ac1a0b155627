//! `manifest.json`: digests of a checkpoint's files and of the curves up to its step, and the
//! configuration that the run had.
//!
//! It is the last file that is written. Its own digest covers each of its bytes, with zeros in
//! place of the digest's digits.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::RecordError;
use crate::files::{self, NO_DIGEST};

/// Name of the file in a checkpoint's folder.
pub const MANIFEST: &str = "manifest.json";
const VERSION: u32 = 1;

/// Digests of the curves, by their paths in the run directory.
pub type Curves = BTreeMap<String, CurveDigest>;

/// The content of a curve up to a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurveDigest {
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of these bytes.
    pub sha256: String,
}

/// Digests of the samples that a run uses, each with what makes them inputs and targets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataDigests {
    /// Of the training samples.
    pub train: String,
    /// Of the test samples.
    pub test: String,
}

/// What a run is when it writes a checkpoint.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Origin {
    /// `config` of `run.json`.
    pub config: Value,
    /// Its samples.
    pub data: DataDigests,
    /// Index of the attempt in `history` of `run.json`.
    pub attempt: usize,
}

/// `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    // First, so that its digits are the first of that value in the text.
    sha256: String,
    version: u32,
    /// Index in `history` of `run.json` of the attempt that wrote the checkpoint.
    pub attempt: usize,
    /// SHA-256 of each file beside this one; the int8 model, which another one may replace, has
    /// its digest inside.
    pub files: BTreeMap<String, String>,
    /// The curves up to the checkpoint's step.
    pub curves: Curves,
    /// The run's samples.
    pub data: DataDigests,
    /// `config` of `run.json` when the checkpoint was written.
    pub config: Value,
}

impl Manifest {
    /// The manifest of these files and curves.
    pub fn new(files: BTreeMap<String, String>, curves: Curves, origin: &Origin) -> Self {
        let Origin { config, data, attempt } = origin.clone();
        Self { sha256: NO_DIGEST.into(), version: VERSION, attempt, files, curves, data, config }
    }

    /// The bytes of `manifest.json`.
    pub(super) fn encode(&self, file: &Path) -> Result<Vec<u8>, RecordError> {
        let blank = Self { sha256: NO_DIGEST.into(), ..self.clone() };
        let text = serde_json::to_string_pretty(&blank).map_err(|e| RecordError::write(file, e.into()))?;
        let digest = files::sha256(text.as_bytes());
        Ok(text.replacen(NO_DIGEST, &digest, 1).into_bytes())
    }

    /// Reads the manifest `file`.
    ///
    /// # Errors
    /// If it is missing, damaged, or of a newer version.
    pub fn read(file: &Path) -> Result<Self, RecordError> {
        let damaged = |what: &str| RecordError::damaged(file, what.into());
        let bytes = files::read_regular(file).map_err(|e| RecordError::read(file, e))?;
        let text = std::str::from_utf8(&bytes).map_err(|_| damaged("damaged: it is not UTF-8"))?;
        let manifest: Self = serde_json::from_str(text).map_err(|e| damaged(&format!("damaged: {e}")))?;
        let digest = &manifest.sha256;
        let blank = text.replacen(digest.as_str(), NO_DIGEST, usize::from(digest.len() == NO_DIGEST.len()));
        if files::sha256(blank.as_bytes()) != *digest {
            return Err(damaged("cut short or changed: its digest is not its own"));
        }
        match manifest.version {
            VERSION => Ok(manifest),
            version => Err(RecordError::Newer { path: file.to_owned(), version, known: VERSION }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_byte_is_found() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(MANIFEST);
        let data = DataDigests { train: files::sha256(b"a"), test: files::sha256(b"b") };
        let origin = Origin { config: serde_json::json!({"lr": 0.1, "name": "a"}), data, attempt: 3 };
        let curve = CurveDigest { bytes: 7, sha256: files::sha256(b"1 0.5\n2") };
        let curves = BTreeMap::from([("rank0/train.loss".to_owned(), curve)]);
        let digests = BTreeMap::from([("state.json".to_owned(), files::sha256(b"x"))]);
        let manifest = Manifest::new(digests, curves, &origin);
        let bytes = manifest.encode(&file).unwrap();
        std::fs::write(&file, &bytes).unwrap();
        let found = Manifest::read(&file).unwrap();
        assert_eq!((found.attempt, &found.config, &found.files), (3, &origin.config, &manifest.files));
        for at in 0..bytes.len() {
            for bit in [0, 5] {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                std::fs::write(&file, &changed).unwrap();
                assert!(Manifest::read(&file).is_err(), "byte {at}, bit {bit}");
            }
            std::fs::write(&file, &bytes[..at]).unwrap();
            assert!(Manifest::read(&file).is_err(), "{at} bytes");
        }
    }
}
