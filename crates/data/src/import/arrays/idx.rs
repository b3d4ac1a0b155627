//! Converts IDX files to arrays. Their pictures may have any size and any classes, for example the letters of
//! EMNIST.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::formats::IdxFile;
use crate::formats::npy::npy_header;
use crate::import::arrays::{self, Arrays};
use crate::import::job::Job;
use crate::import::pictures::folder;

/// Returns whether a file has the name of an IDX file, such as `train-images-idx3-ubyte` or
/// `emnist-letters-test-labels-idx1-ubyte.gz`.
pub(crate) fn is_idx(path: &Path) -> bool {
    let name = folder::name(path).to_ascii_lowercase();
    ["idx1-ubyte", "idx3-ubyte"].iter().any(|end| name.trim_end_matches(".gz").ends_with(end))
}

/// Converts the IDX files in `source` to arrays. Returns `None` if there is no IDX file.
pub(crate) fn find(source: &Path, job: &Job<'_>) -> Result<Option<Arrays>, DataError> {
    let (_, files) = folder::inside(source)?;
    let files: Vec<PathBuf> = files.into_iter().filter(|path| is_idx(path)).collect();
    if files.is_empty() {
        return Ok(None);
    }
    let folder = job.folder(arrays::FOLDER)?;
    let find = |split: &[&str], what: &str| {
        let is_wanted = |path: &&PathBuf| {
            let name = folder::name(path).to_ascii_lowercase();
            name.contains(what) && split.iter().any(|split| name.contains(split))
        };
        match files.iter().filter(is_wanted).collect::<Vec<_>>()[..] {
            [] => Ok(None),
            [path] => Ok(Some(path)),
            [first, second, ..] => {
                let names = [first, second].map(|path| folder::name(path));
                bail!(source, "contains {} and {}: move one data set to another folder", names[0], names[1]);
            }
        }
    };
    let pair = |split: &[&str], name: &str| match [find(split, "images")?, find(split, "labels")?] {
        [Some(images), Some(labels)] => {
            let [image_file, label_file] = [IdxFile::open(images)?, IdxFile::open(labels)?];
            image_file.check_labels(&label_file)?;
            as_npy(&image_file, &folder.join(format!("{name}-images.npy")))?;
            as_npy(&label_file, &folder.join(format!("{name}-labels.npy")))?;
            Ok([images, labels].map(|path| vec![(0, folder::name(path))]))
        }
        [None, None] => Ok([Vec::new(), Vec::new()]),
        [images, _] => {
            let missing = if images.is_some() { "labels" } else { "images" };
            bail!(source, "contains no IDX file of {missing} for the split {}", split[0]);
        }
    };
    let files = [pair(&["train"], "train")?, pair(&["t10k", "test"], "test")?];
    if files[0][0].is_empty() {
        bail!(source, "contains no IDX files of the training split, such as train-images-idx3-ubyte");
    }
    Ok(Some(Arrays::made(&folder, source, files, None)))
}

/// Converts an IDX file to an array of bytes.
fn as_npy(source: &IdxFile, array: &Path) -> Result<(), DataError> {
    let mut file = File::create(array).map_err(DataError::write(array))?;
    file.write_all(&npy_header("|u1", &source.shape)).map_err(DataError::write(array))?;
    source.copy(&mut file)
}
