//! Checkpoints: everything that a run needs to resume bit-identically.
//!
//! A checkpoint is a folder `step-000123` with the weights (`model.safetensors`,
//! in PyTorch's names and layouts), the optimizer's moments
//! (`optimizer.safetensors`) and the position (`state.json`, with digests of
//! both). It is written under a temporary name, synced and renamed: a folder
//! with the final name is complete, unless it was damaged later, which the
//! digests detect.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::tensor_file::{decode, encode};
use super::{INT8_FILE, Int8File, RecordError};
use crate::files;
use burn_mpi::ParamLayout;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
/// Number of checkpoints kept; older ones are removed when a new one is
/// complete.
const KEEP: usize = 3;

/// The position of a run, as needed by the writer of its checkpoints.
pub trait Resumable: Serialize + DeserializeOwned {
    /// Steps done of the run; the checkpoint's folder is named after it.
    fn step(&self) -> usize;

    /// The step of an older checkpoint that is kept independent of its age.
    fn best_step(&self) -> Option<usize>;
}

/// `state.json`.
#[derive(Debug, Serialize, Deserialize)]
struct State<P> {
    model: String,
    world_size: usize,
    updates: u64,
    /// Names of the optimizer's moments.
    #[serde(default = "adams_moments")]
    moments: Vec<String>,
    position: P,
    /// SHA-256 of each file beside this one.
    sha256: BTreeMap<String, String>,
}

/// Older checkpoints have no names: the only optimizer was Adam.
fn adams_moments() -> Vec<String> {
    vec!["first".into(), "second".into()]
}

/// A checkpoint in memory; flat buffers in Burn's layouts.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint<P> {
    /// Name of the network.
    pub model: String,
    /// Number of ranks that wrote it.
    pub world_size: usize,
    /// Weights.
    pub params: Vec<f32>,
    /// The optimizer's moments: names, with values as long as the weights.
    pub moments: Vec<(String, Vec<f32>)>,
    /// Updates that the optimizer has made.
    pub updates: u64,
    /// The position of the run.
    pub position: P,
}

impl<P: Resumable> Checkpoint<P> {
    /// Writes the checkpoint into `folder` (`…/checkpoints`), with the int8 model of its
    /// weights if there is one, and removes the oldest checkpoints.
    ///
    /// # Errors
    /// If a file cannot be written; older checkpoints are then untouched.
    pub fn save(
        &self,
        folder: &Path,
        layout: &ParamLayout,
        int8: Option<&Int8File>,
    ) -> Result<PathBuf, RecordError> {
        let name = folder_name(self.position.step());
        let path = folder.join(&name);
        let temporary = folder.join(format!(".{name}.tmp"));
        let failed = |e| RecordError::write(&temporary, e);
        if temporary.exists() {
            fs::remove_dir_all(&temporary).map_err(failed)?;
        }
        fs::create_dir_all(&temporary).map_err(failed)?;
        let moments: Vec<_> = self.moments.iter().map(|(name, values)| (name.as_str(), values)).collect();
        let mut sha256 = BTreeMap::new();
        for (file, bytes) in [
            (MODEL, encode(&path.join(MODEL), layout, &[("", &self.params)], Some(self.updates))?),
            (OPTIMIZER, encode(&path.join(OPTIMIZER), layout, &moments, None)?),
        ] {
            write_synced(&temporary.join(file), &bytes)?;
            sha256.insert(file.to_owned(), files::sha256(&bytes));
        }
        if let Some(int8) = int8 {
            // It has its own digest: another one may replace it later.
            write_synced(&temporary.join(INT8_FILE), &int8.encode(&path.join(INT8_FILE))?)?;
        }
        let state = State {
            model: self.model.clone(),
            world_size: self.world_size,
            updates: self.updates,
            moments: self.moments.iter().map(|(name, _)| name.clone()).collect(),
            position: &self.position,
            sha256,
        };
        let text = serde_json::to_vec_pretty(&state).map_err(|e| RecordError::write(&path, e.into()))?;
        write_synced(&temporary.join(STATE), &text)?;
        if path.exists() {
            fs::remove_dir_all(&path).map_err(failed)?;
        }
        fs::rename(&temporary, &path).map_err(failed)?;
        files::sync_folder(folder).map_err(failed)?;
        let best = self.position.best_step().map(|step| folder.join(folder_name(step)));
        for old in list(folder).iter().rev().skip(KEEP).filter(|&path| Some(path) != best.as_ref()) {
            fs::remove_dir_all(old).map_err(|e| RecordError::write(old, e))?;
        }
        Ok(path)
    }

    /// Reads the checkpoint in the folder `path`.
    ///
    /// # Errors
    /// If a file is missing or damaged, or the weights are those of a different
    /// network.
    pub fn load(path: &Path, layout: &ParamLayout) -> Result<Self, RecordError> {
        let read = |name: &str| {
            let file = path.join(name);
            fs::read(&file).map_err(|e| RecordError::read(&file, e))
        };
        let state: State<P> = serde_json::from_slice(&read(STATE)?)
            .map_err(|e| RecordError::damaged(&path.join(STATE), e.to_string()))?;
        let checked = |name: &str| {
            let bytes = read(name)?;
            match state.sha256.get(name) {
                Some(expected) if *expected == files::sha256(&bytes) => Ok(bytes),
                _ => Err(RecordError::damaged(
                    &path.join(name),
                    "cut short or changed: its digest is not the one in state.json".into(),
                )),
            }
        };
        let model = checked(MODEL)?;
        let optimizer = checked(OPTIMIZER)?;
        let moment = |name: String| {
            decode(&path.join(OPTIMIZER), &optimizer, layout, &name).map(|values| (name, values))
        };
        Ok(Self {
            params: decode(&path.join(MODEL), &model, layout, "")?,
            moments: state.moments.into_iter().map(moment).collect::<Result<_, _>>()?,
            model: state.model,
            world_size: state.world_size,
            updates: state.updates,
            position: state.position,
        })
    }

    /// Reads the last complete checkpoint of `folder`, and skips damaged ones
    /// with a warning.
    ///
    /// # Errors
    /// If there is none, or none is complete.
    pub fn load_last(folder: &Path, layout: &ParamLayout) -> Result<Self, RecordError> {
        let mut last_error = None;
        for path in list(folder).iter().rev() {
            match Self::load(path, layout) {
                Ok(checkpoint) => {
                    if last_error.is_some() {
                        log::warn!("taking the checkpoint before it, {}", path.display());
                    }
                    return Ok(checkpoint);
                }
                Err(error) => {
                    log::warn!("{error}");
                    last_error = Some(error);
                }
            }
        }
        Err(last_error.unwrap_or_else(|| RecordError::NoCheckpoint(folder.to_owned())))
    }

    /// The best epoch's checkpoint that was kept when this one, in the same
    /// `folder`, was written; this one itself without early stopping.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn load_best(self, folder: &Path, layout: &ParamLayout) -> Result<Self, RecordError> {
        match self.position.best_step() {
            Some(step) if step != self.position.step() => Self::load(&folder.join(folder_name(step)), layout),
            _ => Ok(self),
        }
    }
}

/// Reads weights that PyTorch (or this program) saved.
///
/// # Errors
/// If the file cannot be read, or its names or shapes are not the layout's.
pub fn load_weights(file: &Path, layout: &ParamLayout) -> Result<Vec<f32>, RecordError> {
    let bytes = fs::read(file).map_err(|e| RecordError::read(file, e))?;
    decode(file, &bytes, layout, "")
}

/// The bytes of a file of weights, in PyTorch's names and layouts.
///
/// # Errors
/// If two tensors have the same name.
pub fn weights_file(layout: &ParamLayout, weights: &[f32]) -> Result<Vec<u8>, RecordError> {
    encode(Path::new(MODEL), layout, &[("", &weights.to_vec())], Some(0))
}

/// Name of the folder of the checkpoint after `step` steps.
pub fn folder_name(step: usize) -> String {
    format!("step-{step:08}")
}

/// Folders of complete checkpoints in the order of their steps.
pub fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        name.starts_with("step-")
    });
    paths.sort();
    paths
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|e| RecordError::write(path, e))
}
