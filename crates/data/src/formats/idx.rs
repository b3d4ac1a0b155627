//! IDX files as MNIST has them.
//!
//! <https://yann.lecun.com/exdb/mnist/> describes them.

use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use run_record::files::{FileKind, foreign_file};

use crate::DataError;
use crate::error::{DAMAGED, damage};

/// An IDX file of bytes with a valid header, packed or not.
#[derive(Debug)]
pub struct IdxFile {
    /// Its path.
    pub path: PathBuf,
    /// Whether it is packed by gzip. Its unpacked length is then known only at its end.
    is_packed: bool,
    /// The number of items, and of an image rows and columns.
    pub shape: Vec<usize>,
}

impl IdxFile {
    /// Opens a file.
    ///
    /// # Errors
    /// When it cannot be read, its header is not that of pictures or labels, or its length is not what that says.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let is_packed = path.extension().is_some_and(|ending| ending == "gz");
        let mut file = Self { path: path.to_owned(), is_packed, shape: Vec::new() };
        let mut reader = file.reader()?;
        let mut number = || {
            let mut bytes = [0; 4];
            reader.read_exact(&mut bytes).map_err(|error| match damage(&error) {
                None => DataError::read(path)(error),
                Some(DAMAGED) => file.other("is not packed by gzip, or is damaged".into()),
                Some(_) => file.other("ends inside its header".into()),
            })?;
            Ok::<_, DataError>(u32::from_be_bytes(bytes))
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
        file.shape = (0..dimensions).map(|_| Ok(number()? as usize)).collect::<Result<_, DataError>>()?;
        if !is_packed {
            let length = std::fs::metadata(path).map_err(DataError::read(path))?.len();
            file.check_length(length.saturating_sub(file.header()))?;
        }
        Ok(file)
    }

    /// Calls `visit` with the index and the bytes of each of the first `limit` items, in file order.
    ///
    /// # Errors
    /// When the file ends before or cannot be read, and those of `visit`.
    pub fn for_each_item(
        &self,
        limit: usize,
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let count = self.shape[0];
        let mut contents = self.contents()?;
        let mut item = vec![0u8; self.shape[1..].iter().product()];
        for number in 0..limit.min(count) {
            contents.read_exact(&mut item).map_err(|error| match damage(&error) {
                None => DataError::read(&self.path)(error),
                Some(_) => self.damaged(format!("ends after {number} of {count} items: {error}")),
            })?;
            visit(number, &item)?;
        }
        // The length of a gzipped file is known only after decompressing it, which takes
        // time: it is checked only if the whole file is read anyway.
        if self.is_packed && limit >= count {
            match contents.read(&mut [0u8]) {
                Ok(0) => {}
                Ok(_) => return Err(self.damaged(format!("has data after its {count} items"))),
                Err(error) => return Err(self.damaged(format!("has a damaged end: {error}"))),
            }
        }
        Ok(())
    }

    /// Checks that `labels` has one label for each of these images, and that there are images.
    ///
    /// # Errors
    /// When the two files do not match.
    pub(crate) fn check_labels(&self, labels: &Self) -> Result<(), DataError> {
        if self.shape.len() == 1 {
            return Err(self.damaged("holds labels, expected images".into()));
        }
        if labels.shape.len() > 1 {
            return Err(labels.damaged("holds images, expected labels".into()));
        }
        let [count, of_labels] = [self, labels].map(|file| file.shape[0]);
        if count != of_labels {
            let labels = labels.path.display();
            return Err(self.damaged(format!("{count} images, but {of_labels} labels in {labels}")));
        }
        if self.shape.contains(&0) {
            return Err(self.damaged("it contains no image".into()));
        }
        Ok(())
    }

    /// Copies all items to `target`.
    ///
    /// # Errors
    /// When the file cannot be read, its length is not what the header says, or `target` cannot be written.
    pub fn copy(&self, target: &mut impl Write) -> Result<(), DataError> {
        let copied = io::copy(&mut self.contents()?, target).map_err(DataError::unpack(&self.path))?;
        self.check_length(copied)
    }

    /// A reader that begins behind the header.
    fn contents(&self) -> Result<Box<dyn Read>, DataError> {
        let mut reader = self.reader()?;
        io::copy(&mut reader.by_ref().take(self.header()), &mut io::sink())
            .map_err(DataError::unpack(&self.path))?;
        Ok(reader)
    }

    /// The error that the file is damaged.
    fn damaged(&self, what: String) -> DataError {
        DataError::damaged(&self.path, what)
    }

    /// The error that the file is of another kind, if its first bytes are of a known one, or else damaged.
    fn other(&self, what: String) -> DataError {
        let is_expected = |kind: &FileKind| self.is_packed && kind.name.contains("gzip");
        match foreign_file(&self.path).filter(|kind| !is_expected(kind)) {
            Some(kind) => DataError::source(&self.path, format!("is {kind}")),
            None => self.damaged(what),
        }
    }

    /// Bytes of the header.
    fn header(&self) -> u64 {
        4 + 4 * self.shape.len() as u64
    }

    fn reader(&self) -> Result<Box<dyn Read>, DataError> {
        let file = run_record::files::open_regular(&self.path).map_err(DataError::read(&self.path))?;
        let file = BufReader::with_capacity(1 << 18, file);
        if self.is_packed {
            Ok(Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))))
        } else {
            Ok(Box::new(file))
        }
    }

    fn check_length(&self, found: u64) -> Result<(), DataError> {
        let expected = self.shape.iter().fold(1u64, |all, &size| all.saturating_mul(size as u64));
        if found == expected {
            return Ok(());
        }
        let how = if found < expected { "truncated" } else { "too long" };
        Err(self.damaged(format!("{how}: {found} bytes behind its header of {:?}", self.shape)))
    }
}
