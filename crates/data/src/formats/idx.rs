//! IDX files as MNIST has them.
//!
//! <https://yann.lecun.com/exdb/mnist/> describes them.

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use run_record::files::{FileKind, foreign_file};

use crate::import::ImportError;

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

    pub(crate) fn check_length(&self, found: u64) -> Result<(), ImportError> {
        let expected = self.shape.iter().fold(1u64, |all, &size| all.saturating_mul(size as u64));
        if found == expected {
            return Ok(());
        }
        let how = if found < expected { "truncated" } else { "too long" };
        Err(self.damaged(format!("{how}: {found} bytes behind its header of {:?}", self.shape)))
    }
}
