//! Checkpoints: everything that a run needs to resume bit-identically.
//!
//! A checkpoint is a folder `step-00000123` with the weights (`model.safetensors`, with PyTorch's tensor
//! names and order of dimensions), the optimizer's moments (`optimizer.safetensors`), the position in the
//! training (`state.json`), the tensors that differ between ranks, if there are any (`ranks.safetensors`),
//! and digests of these files (`manifest.json`). The folder is written under a temporary name, synced and
//! renamed. A folder with the final name is therefore complete, unless it was damaged later, which the
//! digests detect.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use super::folders::{folder_name, list};
use super::moments_file::{FinishedMomentsFile, OPTIMIZER};
use super::rank_file::{FinishedRankFile, RANKS};
use super::tensor_file::{check_values, decode_weights, encode};
use super::{INT8_FILE, Layout, RecordError, folders, json_problem};
use crate::files;
use crate::files::NO_DIGEST;

/// File of the float weights in a checkpoint.
pub const MODEL: &str = "model.safetensors";
pub(super) const STATE: &str = "state.json";
/// The files of a checkpoint.
pub(super) const FILES: [&str; 6] = [MODEL, OPTIMIZER, STATE, MANIFEST, INT8_FILE, RANKS];

/// Additional content of a checkpoint, and which older checkpoints to keep.
#[derive(Debug, Clone, Default)]
pub struct SaveOptions<'a> {
    /// The bytes of the int8 model made from these weights; `None` if the run makes no int8 model.
    pub int8: Option<&'a [u8]>,
    /// The optimizer's moments; `None` if the optimizer has none.
    pub moments: Option<&'a FinishedMomentsFile>,
    /// The tensors that differ between ranks; `None` if no tensor does.
    pub ranks: Option<&'a FinishedRankFile>,
    /// What the manifest records about the run.
    pub origin: Origin,
    /// Digests of the curves (loss and accuracy by step) up to `step`.
    pub curves: Curves,
    /// Number of steps that the run has done. The checkpoint's folder is named after it.
    pub step: usize,
    /// How many of the newest checkpoints to keep; three if `None`.
    pub keep: Option<usize>,
    /// Steps of older checkpoints to keep, whatever their age.
    pub kept: Vec<usize>,
}

/// A checkpoint in memory, without the optimizer's moments. All weights together form one flat buffer of
/// values, in Burn's order. `state.json` contains every field except the weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint<P> {
    /// Name of the network.
    pub model: String,
    /// Number of ranks of the run.
    pub world_size: usize,
    /// Updates that the optimizer has made.
    pub updates: u64,
    /// Names of the optimizer's moments. [`MomentsFile`](crate::MomentsFile) reads their values: a moment has
    /// one value for each value in `params`.
    pub moments: Vec<String>,
    /// Position of the run in its training, such as epoch and step.
    pub position: P,
    /// Weights, in the order of the tensors in [`Layout`].
    #[serde(skip)]
    pub params: Vec<f32>,
}

impl<P: Serialize + DeserializeOwned> Checkpoint<P> {
    /// Writes the checkpoint into `folder` (`…/checkpoints`), with the additional content of `options`. Then
    /// removes the older checkpoints that `options` does not keep. Returns the checkpoint's folder.
    ///
    /// # Errors
    /// If a file cannot be written; or if `folder`, the checkpoint's folder or its temporary folder is a
    /// symbolic link, a pipe or a device. Checkpoints of other steps are then untouched.
    pub fn save(
        &self,
        folder: &Path,
        layout: &Layout,
        options: &SaveOptions<'_>,
    ) -> Result<PathBuf, RecordError> {
        let path = folder.join(folder_name(options.step));
        let temporary = folders::hidden(&path, "tmp");
        for place in [folder, &path, &temporary] {
            files::refuse_link(place).map_err(|e| RecordError::write(place, e))?;
        }
        let _ = fs::remove_dir_all(&temporary);
        fs::create_dir_all(&temporary).map_err(|e| RecordError::write(&temporary, e))?;
        let saved =
            self.write(&temporary, &path, layout, options).and_then(|()| folders::publish(&temporary, &path));
        if let Err(error) = saved {
            // On a full disk, the next checkpoint needs this space.
            let _ = fs::remove_dir_all(&temporary);
            return Err(error);
        }
        // The new checkpoint is complete. An old one that cannot be removed only takes space.
        if let Err(error) = folders::prune(folder, &path, options.keep, &options.kept) {
            log::warn!("an older checkpoint was not removed: {error}");
        }
        Ok(path)
    }

    /// Writes all files into the folder `temporary`, the manifest last. The folder is renamed to `path`
    /// later, so errors name files in `path`.
    fn write(
        &self,
        temporary: &Path,
        path: &Path,
        layout: &Layout,
        options: &SaveOptions<'_>,
    ) -> Result<(), RecordError> {
        let write = |name: &str, bytes: &[u8]| {
            let written = files::write_synced(&temporary.join(name), bytes);
            written.map_err(|e| RecordError::write(&path.join(name), e))
        };
        let mut sha256 = BTreeMap::new();
        let weights = [(String::new(), &self.params)];
        let bytes = encode(&path.join(MODEL), layout, &weights, Some(self.updates))?;
        write(MODEL, &bytes)?;
        sha256.insert(MODEL.to_owned(), files::sha256(&bytes));
        drop(bytes);
        if let Some(moments) = options.moments {
            moments.move_to(temporary).map_err(|e| RecordError::write(&path.join(OPTIMIZER), e))?;
            sha256.insert(OPTIMIZER.to_owned(), moments.sha256.clone());
        } else {
            let bytes = encode(&path.join(OPTIMIZER), layout, &[], None)?;
            write(OPTIMIZER, &bytes)?;
            sha256.insert(OPTIMIZER.to_owned(), files::sha256(&bytes));
        }
        if let Some(int8) = options.int8 {
            // The manifest has no digest of the int8 model, because another int8 model may replace it later.
            // The int8 file contains its own digest.
            write(INT8_FILE, int8)?;
        }
        if let Some(ranks) = options.ranks {
            ranks.move_to(temporary).map_err(|e| RecordError::write(&path.join(RANKS), e))?;
            sha256.insert(RANKS.to_owned(), ranks.sha256.clone());
        }
        let state =
            serde_json::to_vec_pretty(self).map_err(|e| RecordError::write(&path.join(STATE), e.into()))?;
        write(STATE, &state)?;
        sha256.insert(STATE.to_owned(), files::sha256(&state));
        let manifest = Manifest::new(sha256, options.curves.clone(), &options.origin);
        write(MANIFEST, &manifest.encode(&path.join(MANIFEST))?)
    }

    /// Reads the checkpoint in the folder `path`, except the values of its moments, which are only checked
    /// against their digest.
    ///
    /// # Errors
    /// If a file is missing, damaged or unreadable; if the name of the folder and `state.json` have different
    /// steps; if the manifest has a newer version; or if the weights belong to a different network.
    pub fn load(path: &Path, layout: &Layout) -> Result<Self, RecordError> {
        let (manifest, [state, model]) = read_verified(path)?;
        let damaged = |e: serde_json::Error| RecordError::damaged(&path.join(STATE), json_problem(&e));
        let mut checkpoint: Self = serde_json::from_slice(&state).map_err(damaged)?;
        checkpoint.params = decode_weights(&path.join(MODEL), &model, layout)?;
        if !manifest.has_moments() {
            // `reduce` removed the moments.
            checkpoint.moments.clear();
        }
        Ok(checkpoint)
    }
}

/// Removes from the checkpoints in `folder` what a completed run no longer needs.
///
/// The last checkpoint stays. With early stopping, the checkpoint of the best epoch stays too. The
/// optimizer's moments and the tensors that differ between ranks are removed from the checkpoints that stay.
///
/// Repeats of a run end with identical weights, which need not be stored twice. If a checkpoint in one of the
/// folders `others` has the same weights as a checkpoint in `folder`, the weights file in `folder` becomes a
/// hard link to the other file.
///
/// # Errors
/// If the folder or a manifest cannot be read, a manifest is damaged, or a checkpoint cannot be written or
/// removed.
pub fn reduce(folder: &Path, others: &[PathBuf]) -> Result<(), RecordError> {
    let Some(last) = list(folder)?.pop() else { return Ok(()) };
    let state: Value = serde_json::from_slice(&files::read_regular(&last.join(STATE)).unwrap_or_default())
        .unwrap_or_default();
    let best = state["position"]["best_step"].as_u64().map(|step| step as usize);
    folders::prune(folder, &last, Some(1), best.as_slice())?;
    let weights = |path: &Path| Manifest::read(&path.join(MANIFEST)).ok()?.files.remove(MODEL);
    for path in list(folder)? {
        let file = path.join(MANIFEST);
        let mut manifest = Manifest::read(&file)?;
        let written = |e| RecordError::write(&path, e);
        if manifest.files.remove(OPTIMIZER).is_none() {
            // This checkpoint was reduced before.
            continue;
        }
        let has_ranks = manifest.files.remove(RANKS).is_some();
        // Write the manifest before removing the file. If the process is killed between the two steps, the
        // checkpoint still matches its manifest.
        files::replace_file(&file, &manifest.encode(&file)?).map_err(written)?;
        fs::remove_file(path.join(OPTIMIZER)).map_err(written)?;
        if has_ranks {
            fs::remove_file(path.join(RANKS)).map_err(written)?;
        }
        let all = others.iter().flat_map(|other| list(other).unwrap_or_default());
        if let Some(same) = all.into_iter().find(|other| weights(other).as_ref() == manifest.files.get(MODEL))
        {
            let link = folders::hidden(&path.join(MODEL), "link");
            let linked = fs::hard_link(same.join(MODEL), &link);
            // If the file system has no hard links, the weights only take more space.
            if linked.and_then(|()| fs::rename(&link, path.join(MODEL))).is_err() {
                let _ = fs::remove_file(&link);
            }
        }
    }
    Ok(())
}

/// Reads weights that PyTorch (or this program) saved.
///
/// # Errors
/// If the file cannot be read or contains an int8 model; if the tensors differ from `layout` in name, shape
/// or type; if a weight is NaN or infinite; or if a variance of a batch norm is negative.
pub fn load_weights(file: &Path, layout: &Layout) -> Result<Vec<f32>, RecordError> {
    let bytes = files::read_regular(file).map_err(|e| RecordError::read(file, e))?;
    let weights = decode_weights(file, &bytes, layout)?;
    check_values(layout, &weights).map(|()| weights).map_err(|what| RecordError::damaged(file, what))
}

/// Returns the bytes of a weights file, with PyTorch's tensor names and order of dimensions.
///
/// # Errors
/// If a tensor's shape in `layout` does not match its range.
pub fn weights_file(layout: &Layout, weights: &[f32]) -> Result<Vec<u8>, RecordError> {
    encode(Path::new(MODEL), layout, &[(String::new(), &weights.to_vec())], Some(0))
}

/// Reads the checkpoint `path` and checks its files against the digests in its manifest. Returns the
/// manifest, and the bytes of state and model.
fn read_verified(path: &Path) -> Result<(Manifest, [Vec<u8>; 2]), RecordError> {
    let manifest = Manifest::read(&path.join(MANIFEST))?;
    let compare = |name: &str, found: &str| match manifest.files.get(name) {
        Some(expected) if expected == found => Ok(()),
        _ => Err(RecordError::damaged(
            &path.join(name),
            format!("is truncated or changed: its SHA-256 differs from the one in {MANIFEST}"),
        )),
    };
    let read = |name: &str| {
        let file = path.join(name);
        let bytes = files::read_regular(&file).map_err(|e| RecordError::read(&file, e))?;
        compare(name, &files::sha256(&bytes)).map(|()| bytes)
    };
    let state = read(STATE)?;
    folders::check_name(path, &state)?;
    for name in [OPTIMIZER, RANKS].into_iter().filter(|name| manifest.files.contains_key(*name)) {
        // The files may have more values than fit into the memory of one rank.
        let file = path.join(name);
        let digest = files::open_regular(&file).and_then(|open| files::sha256_with(&[], open));
        compare(name, &digest.map_err(|e| RecordError::read(&file, e))?)?;
    }
    let files = [state, read(MODEL)?];
    Ok((manifest, files))
}

/// Checks the files of the checkpoint `path` and returns its manifest. The int8 model is not checked: it is
/// derived from the other files.
///
/// # Errors
/// If a file is missing, damaged or unreadable; if the name of the folder and `state.json` have different
/// steps; or if the manifest has a newer version.
pub fn verify(path: &Path) -> Result<Manifest, RecordError> {
    Ok(read_verified(path)?.0)
}

/// Name of the manifest in a checkpoint's folder.
pub const MANIFEST: &str = "manifest.json";
const VERSION: u32 = 1;

/// Digests of the curves. The keys are the curves' paths in the run directory.
pub type Curves = BTreeMap<String, CurveDigest>;

/// Length and digest of a curve's file at the time of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurveDigest {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of these bytes.
    pub sha256: String,
}

/// Digests of the samples that a run uses. Each digest also covers what turns the samples into inputs and
/// targets: shape, element type, normalisation and class names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataDigests {
    /// Training samples.
    pub train: String,
    /// Test samples.
    pub test: String,
}

/// What a checkpoint's manifest records about the run that wrote it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Origin {
    /// `config` of `run.json`.
    pub config: Value,
    /// Digests of the run's samples.
    pub data: DataDigests,
    /// The process that writes the checkpoint: an index into `history` of `run.json`, which lists the
    /// processes that began or resumed the run.
    pub attempt: usize,
}

/// Content of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    // Digest of the manifest. It must be the first field: `encode` and `read` replace the first occurrence of
    // the digest in the text, and a later field may contain the same digits.
    sha256: String,
    version: u32,
    /// The process that wrote the checkpoint, as an index into `history` of `run.json`.
    pub attempt: usize,
    /// SHA-256 of the checkpoint's other files, by file name. The int8 model is not listed: another int8
    /// model may replace it later, so the int8 file contains its own digest.
    pub files: BTreeMap<String, String>,
    /// Digests of the curves up to the checkpoint's step.
    pub curves: Curves,
    /// Digests of the run's samples.
    pub data: DataDigests,
    /// `config` of `run.json` when the checkpoint was written.
    pub config: Value,
}

impl Manifest {
    /// Makes the manifest of a checkpoint. `files` has the digests of the checkpoint's files, by file name.
    pub fn new(files: BTreeMap<String, String>, curves: Curves, origin: &Origin) -> Self {
        let Origin { config, data, attempt } = origin.clone();
        Self { sha256: NO_DIGEST.into(), version: VERSION, attempt, files, curves, data, config }
    }

    /// Whether the checkpoint has the optimizer's moments, which [`reduce`] removes.
    pub fn has_moments(&self) -> bool {
        self.files.contains_key(OPTIMIZER)
    }

    /// Returns the bytes of `manifest.json`. Its field `sha256` is the digest of the text with [`NO_DIGEST`]
    /// in this field. Errors name `file`.
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
        let text = std::str::from_utf8(&bytes).map_err(|_| damaged("is damaged: not UTF-8 text"))?;
        let manifest: Self =
            serde_json::from_str(text).map_err(|e| damaged(&format!("is damaged: {}", json_problem(&e))))?;
        let digest = &manifest.sha256;
        let blank = text.replacen(digest.as_str(), NO_DIGEST, usize::from(digest.len() == NO_DIGEST.len()));
        if files::sha256(blank.as_bytes()) != *digest {
            return Err(damaged(
                "is truncated or changed: its SHA-256 differs from the one in its field sha256",
            ));
        }
        match manifest.version {
            VERSION => Ok(manifest),
            version => Err(RecordError::Newer { path: file.to_owned(), version, known: VERSION }),
        }
    }
}

#[cfg(test)]
mod manifest_tests {
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
