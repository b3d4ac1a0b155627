//! Detects the format of the data set in a folder from the names of the folder's files.

use std::ffi::OsStr;
use std::fmt;
use std::io::ErrorKind;
use std::path::Path;

use run_record::files::place;

use super::{cifar10, imported, mnist, npy_pairs};
use crate::DataError;

/// The format of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataFormat {
    /// MNIST's four IDX files.
    Idx,
    /// CIFAR-10's binary batches.
    Cifar10,
    /// Pairs of `.npy` files: features and labels.
    Npy,
    /// The files that `mpiburn data import` writes.
    Imported,
    /// Random samples that are generated in memory. There are no files of this format.
    Noise,
}

impl DataFormat {
    /// Detects the format of the data set in `root`.
    ///
    /// # Errors
    /// When the folder cannot be read, or contains no data set or more than one.
    pub fn of_folder(root: &Path) -> Result<Self, DataError> {
        // If this user may not search a folder, all its files seem to be missing. Report the missing
        // permission, not missing files.
        for folder in [root, &root.join("train_data"), &root.join("test_data")] {
            if let Err(error) = folder.join(".").try_exists()
                && error.kind() == ErrorKind::PermissionDenied
            {
                return Err(DataError::read(folder)(error).in_set(Self::Npy));
            }
        }
        let files = [
            (Self::Idx, mnist::any_file(root)),
            (Self::Cifar10, cifar10::any_file(root).map_err(|error| error.in_set(Self::Cifar10))?),
            (Self::Npy, npy_pairs::any_file(root)),
            (Self::Imported, imported::any_file(root)),
        ];
        let found: Vec<_> = files.into_iter().filter_map(|(kind, file)| Some((kind, file?))).collect();
        match &found[..] {
            [(kind, _)] => Ok(*kind),
            [] => Err(DataError::NoneHere { root: root.to_owned() }),
            [(_, first), (_, second), ..] => Err(DataError::several(root, [first, second])),
        }
    }

    /// Returns the subcommand of `mpiburn data` that makes a data set of this format. Returns `digits` for
    /// [`Self::Noise`], which no subcommand makes.
    pub fn generator(self) -> &'static str {
        match self {
            Self::Idx | Self::Noise => "digits",
            Self::Cifar10 => "objects",
            Self::Npy => "features",
            Self::Imported => "import",
        }
    }
}

/// Returns whether a file of this name may belong to a data set that a training can read. Such names are
/// `dataset.json`, `train_data/train_x.npy` and so on.
pub fn is_data_file(path: &Path) -> bool {
    let Ok(path) = place(path) else { return false };
    let Some(name) = path.file_name() else { return false };
    mnist::file_names().any(|file| name == OsStr::new(&file))
        || cifar10::is_file_name(name)
        || npy_pairs::files(Path::new("")).any(|file| path.ends_with(file))
        || super::DataSet::file_names().iter().any(|file| name == OsStr::new(file))
}

impl fmt::Display for DataFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Idx => "IDX files (MNIST's layout)",
            Self::Cifar10 => "CIFAR-10 binary batches",
            Self::Npy => ".npy pairs",
            Self::Imported => "imported samples",
            Self::Noise => "noise",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::names_all;

    #[test]
    fn any_file_of_a_data_set_determines_its_kind() {
        let root = tempfile::tempdir().unwrap();
        let none = DataFormat::of_folder(root.path()).unwrap_err().to_string();
        assert!(
            names_all(
                &none,
                "no data set | dataset.json | train_data/train_x.npy | mpiburn data digits --out"
            ),
            "{none}"
        );
        let named = DataFormat::of_folder(Path::new("nowhere/features")).unwrap_err().to_string();
        assert!(
            names_all(&named, "no folder nowhere/features: | `mpiburn data features --out nowhere/features`"),
            "{named}"
        );
        let spaced = DataFormat::of_folder(Path::new("nowhere/no such")).unwrap_err().to_string();
        assert!(names_all(&spaced, "no folder 'nowhere/no such': "), "{spaced}");
        let missing = DataFormat::of_folder(&root.path().join("nowhere")).unwrap_err().to_string();
        assert!(names_all(&missing, "no folder | /nowhere: | mpiburn data digits"), "{missing}");
        // `data info` has no --data-root.
        assert!([&none, &named, &missing].iter().all(|text| !text.contains("--data-root")), "{missing}");
        std::fs::write(root.path().join("iris.csv"), "x,class\n1,a\n").unwrap();
        std::fs::create_dir(root.path().join("folder")).unwrap();
        for (name, out) in [("folder/..", " --out DIR`"), ("folder/../", " --out DIR`"), (".", "-set`")] {
            let message = DataError::NoneHere { root: root.path().join(name) }.to_string();
            assert!(message.contains("tables") && message.ends_with(out), "{message}");
        }
        std::fs::remove_file(root.path().join("iris.csv")).unwrap();
        std::fs::write(root.path().join("run.json"), "{}").unwrap();
        std::fs::write(root.path().join("epochs.csv"), "epoch,loss\n1,2\n").unwrap();
        let run = DataFormat::of_folder(root.path()).unwrap_err().to_string();
        assert!(names_all(&run, "no data set | of a run;"), "{run}");
        for (name, kind) in [
            ("train-labels-idx1-ubyte", DataFormat::Idx),
            ("t10k-images-idx3-ubyte.gz", DataFormat::Idx),
            ("data_batch_4.bin", DataFormat::Cifar10),
            ("test_batch.bin", DataFormat::Cifar10),
            ("train_data/train_y.npy", DataFormat::Npy),
            ("test_data/test_x.npy", DataFormat::Npy),
        ] {
            let root = tempfile::tempdir().unwrap();
            for other in ["data_batch_x.bin", "train_x.npy", "notes.txt"] {
                std::fs::write(root.path().join(other), "").unwrap();
            }
            std::fs::create_dir_all(root.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(root.path().join(name), "").unwrap();
            assert_eq!(DataFormat::of_folder(root.path()).unwrap(), kind, "{name}");
        }
    }

    #[test]
    fn two_data_sets_in_a_folder_are_rejected_and_named() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("test_batch.bin"), "").unwrap();
        std::fs::write(root.path().join("train-images-idx3-ubyte"), "").unwrap();
        let message = DataFormat::of_folder(root.path()).unwrap_err().to_string();
        assert!(names_all(&message, "two data sets | train-images-idx3-ubyte | test_batch.bin"), "{message}");
        assert_eq!(message.lines().count(), 1);
    }
}
