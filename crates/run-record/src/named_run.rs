//! Finds the run that a path on the command line names, or says what the path is instead.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::RecordError;
use super::checkpoint::STATE;
use super::folders::run_around;
use super::run_dir::RUN_JSON;

/// A run, as a command line names it: by its folder, its `run.json`, or one of its checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRun {
    /// The run directory.
    pub folder: PathBuf,
    /// The checkpoint that the command line names; `None` if it names only the run.
    pub checkpoint: Option<PathBuf>,
}

impl NamedRun {
    /// Finds the run that `path` names. Any path other than a checkpoint or a `run.json` is taken as the run
    /// directory, which need not exist.
    ///
    /// # Errors
    /// If it cannot be determined whether `path` is a checkpoint.
    pub fn at(path: &Path) -> Result<Self, RecordError> {
        let state = path.join(STATE);
        let is_checkpoint = match state.try_exists() {
            // If `path` is a file, reading it as a run directory reports the error.
            Err(error) if error.kind() == ErrorKind::NotADirectory => false,
            // The error names `path`, which the user gave, and not `state`, which need not exist.
            found => found.map_err(|error| RecordError::read(path, error))?,
        };
        let around = |path: &Path| path.parent().map(Path::to_owned);
        let folder = if is_checkpoint {
            // Go up by the names in the path: the checkpoint may be a link to another place.
            match path.parent().filter(|folder| folder.ends_with("checkpoints")) {
                Some(checkpoints) => around(checkpoints),
                None => Some(path.join("../..")),
            }
        } else if path.ends_with(RUN_JSON) && !path.is_dir() {
            around(path)
        } else {
            Some(path.to_owned())
        };
        let folder = folder.filter(|folder| folder != Path::new("")).unwrap_or_else(|| ".".into());
        Ok(Self { folder, checkpoint: is_checkpoint.then(|| path.to_owned()) })
    }
}

impl NamedRun {
    /// Makes the error of a command that finds no run at `path`. The error says what is at `path`, and which
    /// path to give.
    pub fn none_at(path: &Path) -> RecordError {
        let shown = path.display();
        let is_sweep = path.ends_with(SWEEP_JSON) || path.join(SWEEP_JSON).is_file();
        let is_data_set = path.ends_with(DATA_SET) || path.join(DATA_SET).is_file();
        let example =
            first_run(if path.ends_with(SWEEP_JSON) { path.parent().unwrap_or(path) } else { path });
        let example = example.map_or_else(String::new, |run| format!(", such as {}", run.display()));
        let is_there = path.exists();
        let what = if !is_there {
            format!("there is no run {shown}: name a run directory, its run.json, or one of its checkpoints")
        } else if is_sweep {
            format!("{shown} is a sweep: name one of its runs{example}")
        } else if is_data_set {
            format!("{shown} is a data set: name a run that was trained on it")
        } else if !example.is_empty() {
            format!("{shown} is a folder of runs: name one of them{example}")
        } else {
            match product_at(path) {
                Some(product) => format!("{shown} is {product}: name a run directory"),
                None => {
                    format!(
                        "{shown} is not a run directory, a run.json or a checkpoint: name a run \
                         directory, its run.json, or one of its checkpoints"
                    )
                }
            }
        };
        RecordError::NotARun { what, is_there }
    }
}

/// Says what this program wrote at `path`; `None` if it wrote nothing or a data set there.
pub fn product_at(path: &Path) -> Option<&'static str> {
    let folder =
        if path.is_file() { path.parent().filter(|folder| *folder != Path::new("")) } else { Some(path) };
    let folder = folder.unwrap_or(Path::new("."));
    let has = |name: &str| folder.join(name).is_file();
    let kinds = [
        (path.extension().is_some_and(|ending| ending == "onnx"), "an exported network"),
        (run_around(path).is_some(), "a run or a part of a run"),
        (has(SWEEP_JSON), "a sweep"),
        (has("report.html"), "a report"),
    ];
    kinds.into_iter().find_map(|(is_so, what)| is_so.then_some(what))
}

const SWEEP_JSON: &str = "sweep.json";

/// Name of the file that describes an imported data set. It is in the data set's folder.
const DATA_SET: &str = "dataset.json";

/// Returns the first run in `folder`, by name.
fn first_run(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries.filter(|path| path.join(RUN_JSON).is_file()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_program_writes_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for file in [
            "run/run.json",
            "run/rank0/test.acc",
            "sweep/sweep.json",
            "report/report.html",
            "a/x.onnx",
            "a/b.csv",
        ] {
            std::fs::create_dir_all(path(file).parent().unwrap()).unwrap();
            std::fs::write(path(file), "").unwrap();
        }
        for (name, expected) in [
            ("run", Some("a run or a part of a run")),
            ("run/rank0", Some("a run or a part of a run")),
            ("sweep", Some("a sweep")),
            ("sweep/sweep.json", Some("a sweep")),
            ("report", Some("a report")),
            ("a/x.onnx", Some("an exported network")),
            ("a", None),
            ("a/b.csv", None),
            ("nothing", None),
        ] {
            assert_eq!(product_at(&path(name)), expected, "{name}");
        }
    }

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
        let found = [&run, &run.join(RUN_JSON), &checkpoint].map(|path| NamedRun::at(path).unwrap());
        assert_eq!(found, [named(None), named(None), named(Some(&checkpoint))]);
        let copy = root.path().join("copy/of/it");
        std::fs::create_dir_all(&copy).unwrap();
        std::fs::write(copy.join(STATE), "").unwrap();
        assert_eq!(NamedRun::at(&copy).unwrap().folder, copy.join("../.."));
        let none = |path: &Path| NamedRun::none_at(path).to_string();
        let sweep = root.path().join("sweep");
        for name in ["b", "a"] {
            std::fs::create_dir_all(sweep.join(name)).unwrap();
            std::fs::write(sweep.join(name).join(RUN_JSON), "").unwrap();
        }
        let example = format!("name one of them, such as {}", sweep.join("a").display());
        assert!(none(&sweep).ends_with(&example), "{}", none(&sweep));
        std::fs::write(sweep.join(SWEEP_JSON), "").unwrap();
        for path in [sweep.clone(), sweep.join(SWEEP_JSON)] {
            let expected = format!("is a sweep: name one of its runs, such as {}", sweep.join("a").display());
            assert!(none(&path).ends_with(&expected), "{}", none(&path));
        }
        let set = root.path().join("set");
        std::fs::create_dir(&set).unwrap();
        assert!(none(&set).contains("is not a run directory"), "{}", none(&set));
        std::fs::write(set.join(DATA_SET), "").unwrap();
        assert!(none(&set).contains("is a data set"), "{}", none(&set));
        assert!(none(&set.join("nothing")).starts_with("there is no run "));
        let looped = root.path().join("loop");
        std::os::unix::fs::symlink("loop", &looped).unwrap();
        let error = NamedRun::at(&looped).unwrap_err();
        assert!(matches!(&error, RecordError::Read { path, .. } if *path == looped), "{error}");
        let here = NamedRun::at(Path::new(RUN_JSON)).unwrap();
        assert_eq!(here, NamedRun { folder: ".".into(), checkpoint: None });
    }
}
