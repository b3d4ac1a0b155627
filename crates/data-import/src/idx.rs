//! IDX files as MNIST has them, of pictures of any size and any classes, such as EMNIST's: they become arrays.
//!
//! <https://yann.lecun.com/exdb/mnist/> describes them.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use run_record::files::{FileKind, foreign_file};

use crate::arrays::{self, Arrays};
use crate::job::Job;
use crate::writer::npy_header;
use crate::{ImportError, folder};

/// Whether a file has the name of one: `train-images-idx3-ubyte`, `emnist-letters-test-labels-idx1-ubyte.gz`.
pub(crate) fn is_idx(path: &Path) -> bool {
    let name = folder::name(path).to_ascii_lowercase();
    ["idx1-ubyte", "idx3-ubyte"].iter().any(|end| name.trim_end_matches(".gz").ends_with(end))
}

/// The arrays of the files in `source`; none if there is no such file.
pub(crate) fn find(source: &Path, job: &Job<'_>) -> Result<Option<Arrays>, ImportError> {
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
                bail!(source, "has {} and {}: move one data set to a folder of its own", names[0], names[1]);
            }
        }
    };
    let pair = |split: &[&str], name: &str| match [find(split, "images")?, find(split, "labels")?] {
        [Some(images), Some(labels)] => {
            as_npy(images, &folder.join(format!("{name}-images.npy")))?;
            as_npy(labels, &folder.join(format!("{name}-labels.npy")))?;
            Ok(vec![(0, folder::name(images))])
        }
        [None, None] => Ok(Vec::new()),
        [images, _] => {
            let missing = if images.is_some() { "labels" } else { "images" };
            bail!(source, "has no IDX file of {missing} for {}", split[0]);
        }
    };
    let files = [pair(&["train"], "train")?, pair(&["t10k", "test"], "test")?];
    if files[0].is_empty() {
        bail!(source, "has no IDX files for training, such as train-images-idx3-ubyte");
    }
    Ok(Some(Arrays::made(&folder, files, None)))
}

/// Writes the bytes of an IDX file as an array.
fn as_npy(path: &Path, array: &Path) -> Result<(), ImportError> {
    let source = IdxFile::open(path)?;
    let failed = |error| ImportError::write(array)(error);
    let mut file = File::create(array).map_err(failed)?;
    file.write_all(&npy_header("|u1", &source.shape)).map_err(failed)?;
    let copied = io::copy(&mut source.contents()?, &mut file).map_err(ImportError::unpack(path))?;
    source.check_length(copied)
}

/// An IDX file of bytes with a valid header, packed or not.
#[derive(Debug)]
pub struct IdxFile {
    /// Its path.
    pub path: PathBuf,
    /// Whether its length is known at its end alone.
    pub is_packed: bool,
    /// The number of items, and of an image rows and columns.
    pub shape: Vec<usize>,
}

impl IdxFile {
    /// Opens a file.
    ///
    /// # Errors
    /// When it cannot be read, its header is not that of pictures or labels, or its length is not what that says.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let is_packed = path.extension().is_some_and(|ending| ending == "gz");
        let mut file = Self { path: path.to_owned(), is_packed, shape: Vec::new() };
        let mut reader = file.reader()?;
        let mut number = || {
            let mut bytes = [0; 4];
            let read = reader.read_exact(&mut bytes);
            read.map_err(|_| file.other("ends inside its header".into()))?;
            Ok::<_, ImportError>(u32::from_be_bytes(bytes))
        };
        // Two zeros, the type of the numbers, and the number of dimensions.
        let dimensions = match number()? {
            magic @ (0x0801 | 0x0803) => magic & 0xff,
            magic => {
                return Err(file.other(format!(
                    "its magic number is {magic:#010x}: bytes of pictures (0x00000803) or of labels (0x00000801) are \
                     expected"
                )));
            }
        };
        file.shape = (0..dimensions).map(|_| Ok(number()? as usize)).collect::<Result<_, ImportError>>()?;
        if !is_packed {
            let length = std::fs::metadata(path).map_err(ImportError::read(path))?.len();
            file.check_length(length.saturating_sub(file.header()))?;
        }
        Ok(file)
    }

    /// What is behind the header.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn contents(&self) -> Result<Box<dyn Read>, ImportError> {
        let mut reader = self.reader()?;
        io::copy(&mut reader.by_ref().take(self.header()), &mut io::sink())
            .map_err(ImportError::unpack(&self.path))?;
        Ok(reader)
    }

    /// That it is not whole.
    pub fn damaged(&self, what: String) -> ImportError {
        ImportError::Damaged { path: self.path.clone(), what }
    }

    /// That it is another kind of file, or else not whole.
    fn other(&self, what: String) -> ImportError {
        let is_expected = |kind: &FileKind| self.is_packed && kind.name.contains("gzip");
        match foreign_file(&self.path).filter(|kind| !is_expected(kind)) {
            Some(kind) => ImportError::source(&self.path, format!("is {kind}")),
            None => self.damaged(what),
        }
    }

    fn header(&self) -> u64 {
        4 + 4 * self.shape.len() as u64
    }

    fn reader(&self) -> Result<Box<dyn Read>, ImportError> {
        let file = run_record::files::open_regular(&self.path).map_err(ImportError::read(&self.path))?;
        let file = BufReader::with_capacity(1 << 18, file);
        Ok(match self.is_packed {
            true => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))),
            false => Box::new(file),
        })
    }

    fn check_length(&self, found: u64) -> Result<(), ImportError> {
        let expected = self.shape.iter().fold(1u64, |all, &size| all.saturating_mul(size as u64));
        if found == expected {
            return Ok(());
        }
        let how = if found < expected { "truncated" } else { "too long" };
        Err(self.damaged(format!("{how}: {found} bytes behind its header of {:?}", self.shape)))
    }
}
