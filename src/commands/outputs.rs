//! Checks the output files that the user names on the command line, so that a command does not overwrite a
//! run, a data set or its own input.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::on_root;
use crate::options::ConfigError;
use burn_mpi::World;
use data::is_data_file;
use run_record::files::same_file;
use run_report::{check_writable, write_file};

/// An option and the file it names, if the option is given.
pub type Named<'a> = (&'static str, Option<&'a PathBuf>);

/// Checks the output files before the work that fills them, so that a long job does not fail at its end.
/// Leaves no file behind.
///
/// A new file may have any name, and an earlier output is replaced. Files of runs, sweeps, checkpoints and
/// data sets are never replaced, nor are files in `read`, which the command reads. Two options must not name
/// the same file.
///
/// # Errors
/// If an output is a folder, must not be replaced, cannot be written, or is named by two options.
pub fn check(outputs: &[Named<'_>], read: &[Option<&PathBuf>]) -> anyhow::Result<()> {
    check_names(outputs, read)?;
    Ok(outputs.iter().filter_map(|(_, path)| *path).try_for_each(|path| check_writable(path))?)
}

/// Does the checks of [`check`], except whether the files can be written.
///
/// # Errors
/// If an output is a folder, must not be replaced, or is named by two options.
pub fn check_names(outputs: &[Named<'_>], read: &[Option<&PathBuf>]) -> anyhow::Result<()> {
    let mut named: Vec<(&str, &Path)> = Vec::new();
    for &(option, path) in outputs {
        let Some(path) = path else { continue };
        if path.is_dir() {
            let problem = "is a folder: name a file in it";
            return Err(ConfigError::new(option, path.display(), problem).into());
        }
        check_kept(option, path, read)?;
        for (other, named) in &named {
            if same_file(named, path)? {
                let problem = format!("is also the file of --{other}: choose another file");
                return Err(ConfigError::new(option, path.display(), problem).into());
            }
        }
        named.push((option, path));
    }
    Ok(())
}

/// Rejects `path` if writing it would overwrite a file in `read`, or a file of a run, sweep, checkpoint or
/// data set. The error names `option`.
///
/// # Errors
/// If the file must not be replaced; the error gives the reason.
pub fn check_kept(option: &'static str, path: &Path, read: &[Option<&PathBuf>]) -> anyhow::Result<()> {
    if is_data_file(path) {
        let problem = "is a file of a data set and must not be overwritten: choose another name";
        return Err(ConfigError::new(option, path.display(), problem).into());
    }
    Ok(run_report::page::check_kept(option, path, read.iter().flatten().copied())?)
}

/// Does [`check`] on rank 0, which writes the files. Other ranks may have other file systems.
///
/// # Errors
/// Every rank returns rank 0's error.
pub fn check_on_root(world: &World, outputs: &[Named<'_>], read: &[Option<&PathBuf>]) -> anyhow::Result<()> {
    on_root(world, || check(outputs, read)).map(drop)
}

/// Writes `value` as JSON to `path`, and replaces an existing file. Does nothing if `path` is `None`.
///
/// # Errors
/// If the file cannot be written.
pub fn write_json<T: Serialize>(path: Option<&Path>, value: &T) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(value)?;
    Ok(write_file(path, (text + "\n").as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::options::tests::tells;

    #[test]
    fn new_names_and_earlier_outputs_are_written_and_inputs_and_products_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for name in [
            "run/run.json",
            "run/checkpoints/step-00000001/state.json",
            "run/rank0/train.loss",
            "run/profile.json",
            "copy/manifest.json",
            "copy/state.json",
            "copy/notes.json",
            "sweep/sweep.json",
            "data/train-images-idx3-ubyte",
            "data/data_batch_1.bin",
            "data/test_data/test_x.npy",
            "data/scores.npy",
            "weights.safetensors",
        ] {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), "kept").unwrap();
        }
        let found = |name: &str| {
            let read = path("weights.safetensors");
            check(&[("csv", Some(&path(name)))], &[Some(&read)]).map_err(|error| error.to_string())
        };
        for name in ["run/profile.json", "copy/notes.json", "data/scores.npy"] {
            assert_eq!(found(name), Ok(()), "an earlier output: {name}");
        }
        let new = ["new.csv", "run/ranking.csv", "run/checkpoints/step-00000001/a.csv", "run/rank0/a.csv"];
        for name in new.into_iter().chain(["data/a.csv", "sweep/a.csv", "data/test_data/a.npy"]) {
            assert_eq!(found(name), Ok(()), "a new name: {name}");
            assert!(!path(name).exists(), "{name}");
        }
        for (name, reason) in [
            ("run/run.json", "a file of a run or a sweep"),
            ("run/epochs.csv", "a file of a run or a sweep"),
            ("run/rank7", "a file of a run or a sweep"),
            ("run/checkpoints/step-00000001/state.json", "a file of a run or a sweep"),
            ("run/checkpoints/../rank0/train.loss", "a file of a run or a sweep"),
            ("copy/manifest.json", "a file of a run or a sweep"),
            ("sweep/sweep.json", "a file of a run or a sweep"),
            ("data/train-images-idx3-ubyte", "a file of a data set"),
            ("data/data_batch_1.bin", "a file of a data set"),
            ("data/test_data/test_x.npy", "a file of a data set"),
            ("data/test_data/../test_data/test_x.npy", "a file of a data set"),
            ("weights.safetensors", "a file that this command reads"),
        ] {
            let error = found(name).unwrap_err();
            assert!(tells(&error, &format!("--csv … {name}: … {reason}")), "{name}: {error}");
        }
        let error = found("run/checkpoints").unwrap_err();
        assert!(tells(&error, "--csv … /run/checkpoints: … folder"), "{error}");
        let (one, same) = (path("new.csv"), path("run/../new.csv"));
        let error = check(&[("csv", Some(&one)), ("json", Some(&same))], &[]).unwrap_err().to_string();
        assert!(tells(&error, "--json … --csv"), "{error}");
    }
}
