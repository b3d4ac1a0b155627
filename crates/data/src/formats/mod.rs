//! Reads and writes the file formats of data sets. Training and imports use the same readers.

pub(crate) mod cifar10;
pub(crate) mod data_file;
pub(crate) mod data_set;
pub(crate) mod idx;
mod imported;
mod kind;
mod mnist;
pub(crate) mod npy;
mod npy_pairs;

use std::path::Path;

pub use data_file::DataFile;
pub use data_set::{DataSet, FILE};
pub use idx::IdxFile;
pub use kind::{DataFormat, is_data_file};
pub use npy::{NpyFile, write_npy};

use crate::{DataError, SampleSource};

/// Folders in which torchvision and the archives of MNIST and CIFAR-10 put their files. The paths are
/// relative to the folder that the user names.
const INNER: [&str; 5] = ["MNIST/raw", "FashionMNIST/raw", "KMNIST/raw", "cifar-10-batches-bin", "raw"];

/// Detects the format of the data set in `root`, and opens the data set. If `root` contains no data set,
/// looks in the inner folders that torchvision and the archives of MNIST and CIFAR-10 make, such as
/// `MNIST/raw`.
///
/// # Errors
/// When there is no data set or more than one, or a file cannot be read or does not have the expected format.
pub fn open(root: &Path) -> Result<SampleSource, DataError> {
    if root.is_file() {
        return Err(DataError::NoneHere { root: root.to_owned() });
    }
    let inner = INNER.map(|inner| root.join(inner));
    let (root, format) = match DataFormat::of_folder(root) {
        Err(none @ DataError::NoneHere { .. }) => {
            let found: Vec<_> = inner
                .iter()
                .filter_map(|inner| Some((&**inner, DataFormat::of_folder(inner).ok()?)))
                .collect();
            match found[..] {
                [] => return Err(none),
                [only] => only,
                [(first, _), (second, _), ..] => {
                    return Err(DataError::several(root, [first.display(), second.display()]));
                }
            }
        }
        format => (root, format?),
    };
    let opened = match format {
        DataFormat::Idx => mnist::open(root),
        DataFormat::Cifar10 => cifar10::open(root),
        DataFormat::Npy => npy_pairs::open(root),
        DataFormat::Imported => imported::open(root),
        DataFormat::Noise => Err(DataError::NoneHere { root: root.to_owned() }),
    };
    opened.map_err(|error| error.in_set(format))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::names_all;
    use crate::{Split, generate};

    #[test]
    fn torchvisions_folders_are_found_below_the_one_that_is_named() {
        let root = tempfile::tempdir().unwrap();
        let raw = |name: &str| {
            let folder = root.path().join(name).join("raw");
            std::fs::create_dir_all(&folder).unwrap();
            generate::digits::write(&folder, 20, 10, 1, &|_| Ok(())).unwrap();
        };
        raw("MNIST");
        assert_eq!(open(root.path()).unwrap().len(Split::Train), 20);
        let file = root.path().join("iris.csv");
        std::fs::write(&file, "1,a").unwrap();
        let message = open(&file).err().unwrap().to_string();
        assert!(names_all(&message, "iris.csv: | a file | `mpiburn data import"), "{message}");
        let file = root.path().join("MNIST/raw/train-images-idx3-ubyte");
        let message = open(&file).err().unwrap().to_string();
        assert!(names_all(&message, "idx3-ubyte: | IDX | /MNIST/raw"), "{message}");
        assert!(!message.contains("data import"), "{message}");
        raw("FashionMNIST");
        let message = open(root.path()).err().unwrap().to_string();
        assert!(names_all(&message, "two data sets | /MNIST/raw | FashionMNIST/raw"), "{message}");
    }
}
