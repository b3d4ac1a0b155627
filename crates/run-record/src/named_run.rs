//! The run that a path names.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::RecordError;
use super::checkpoint::STATE;
use super::run_dir::RUN_JSON;

/// A run by one of its names: its folder, its `run.json`, or one of its checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRun {
    /// Its folder.
    pub folder: PathBuf,
    /// The checkpoint, if one is named.
    pub checkpoint: Option<PathBuf>,
}

impl NamedRun {
    /// The run that `path` names. What is neither a checkpoint nor a `run.json` is taken for the folder, which need not
    /// exist.
    ///
    /// # Errors
    /// If it cannot be determined whether it is a checkpoint.
    pub fn of(path: &Path) -> Result<Self, RecordError> {
        let state = path.join(STATE);
        let is_checkpoint = match state.try_exists() {
            // A file: whoever reads the run directory says so.
            Err(error) if error.kind() == ErrorKind::NotADirectory => false,
            found => found.map_err(|error| RecordError::read(&state, error))?,
        };
        let around = |path: &Path| path.parent().map(Path::to_owned);
        let folder = match () {
            // By its name: the checkpoint may be a link to another place.
            () if is_checkpoint => match path.parent().filter(|folder| folder.ends_with("checkpoints")) {
                Some(checkpoints) => around(checkpoints),
                None => Some(path.join("../..")),
            },
            () if path.ends_with(RUN_JSON) && !path.is_dir() => around(path),
            () => Some(path.to_owned()),
        };
        let folder = folder.filter(|folder| folder != Path::new("")).unwrap_or_else(|| ".".into());
        Ok(Self { folder, checkpoint: is_checkpoint.then(|| path.to_owned()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_its_folder_its_run_json_or_one_of_its_checkpoints() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("run");
        let checkpoint = run.join("checkpoints/step-00000001");
        std::fs::create_dir_all(&checkpoint).unwrap();
        std::fs::write(checkpoint.join(STATE), "").unwrap();
        let named = |checkpoint: Option<&Path>| NamedRun {
            folder: run.clone(),
            checkpoint: checkpoint.map(Path::to_owned),
        };
        let found = [&run, &run.join(RUN_JSON), &checkpoint].map(|path| NamedRun::of(path).unwrap());
        assert_eq!(found, [named(None), named(None), named(Some(&checkpoint))]);
        let copy = root.path().join("copy/of/it");
        std::fs::create_dir_all(&copy).unwrap();
        std::fs::write(copy.join(STATE), "").unwrap();
        assert_eq!(NamedRun::of(&copy).unwrap().folder, copy.join("../.."));
        let here = NamedRun::of(Path::new(RUN_JSON)).unwrap();
        assert_eq!(here, NamedRun { folder: ".".into(), checkpoint: None });
    }
}
