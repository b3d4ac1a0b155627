//! Reads IDX files, the file format of MNIST, plain or compressed with gzip.
//!
//! The format is described at <https://yann.lecun.com/exdb/mnist/>.

use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use run_record::count;
use run_record::files::{FileKind, foreign_file};

use crate::DataError;
use crate::error::{DAMAGED, damage};

/// An IDX file of bytes with a valid header, plain or compressed.
#[derive(Debug)]
pub struct IdxFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Whether the file is compressed with gzip. The length of compressed contents is known only after they
    /// are decompressed.
    is_packed: bool,
    /// Sizes of the dimensions. The first is the number of items (images or labels). In a file of images, the
    /// numbers of rows and columns of an image follow.
    pub shape: Vec<usize>,
}

impl IdxFile {
    /// Opens the file `path` and reads its header.
    ///
    /// # Errors
    /// When the file cannot be read, when its header does not declare images or labels, or when its length is
    /// not the one that the header declares. The length of a compressed file is not checked.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let is_packed = path.extension().is_some_and(|ending| ending == "gz");
        let mut file = Self { path: path.to_owned(), is_packed, shape: Vec::new() };
        let mut reader = file.reader()?;
        let mut number = || {
            let mut bytes = [0; 4];
            reader.read_exact(&mut bytes).map_err(|error| match damage(&error) {
                None => DataError::read(path)(error),
                Some(DAMAGED) => file.other("is not compressed with gzip, or is damaged".into()),
                Some(_) => file.other("ends inside its header".into()),
            })?;
            Ok::<_, DataError>(u32::from_be_bytes(bytes))
        };
        // The magic number consists of two zero bytes, a byte for the type of the numbers, and the number of
        // dimensions.
        let dimensions = match number()? {
            magic @ (0x0801 | 0x0803) => magic & 0xff,
            magic => {
                return Err(file.other(format!(
                    "has the magic number {magic:#010x}, but 0x00000803 (images) or 0x00000801 (labels) is required"
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
    /// When the file cannot be read, is damaged or ends before the last item, or when `visit` returns an
    /// error. If all items of a compressed file are read, data after the last item is an error too.
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
                Some(what) => self.damaged(format!("{what} after {number} of {count} items")),
            })?;
            visit(number, &item)?;
        }
        // The length of compressed contents is known only after decompressing them, which takes time. Check
        // the length only if all items are read anyway.
        if self.is_packed && limit >= count {
            match contents.read(&mut [0u8]) {
                Ok(0) => {}
                Ok(_) => return Err(self.damaged(format!("has data after its {count} items"))),
                Err(error) => {
                    return Err(match damage(&error) {
                        None => DataError::read(&self.path)(error),
                        Some(_) => self.damaged(format!("is damaged after its {count} items")),
                    });
                }
            }
        }
        Ok(())
    }

    /// Checks that this file has images, that `labels` has labels, and that there is one label for each
    /// image.
    ///
    /// # Errors
    /// When the two files do not match, or there is no image.
    pub(crate) fn check_labels(&self, labels: &Self) -> Result<(), DataError> {
        if self.shape.len() == 1 {
            return Err(self.damaged("contains labels instead of images".into()));
        }
        if labels.shape.len() > 1 {
            return Err(labels.damaged("contains images instead of labels".into()));
        }
        let [of_images, of_labels] = [self, labels].map(|file| file.shape[0]);
        if of_images != of_labels {
            let labels = labels.path.display();
            let [images, found] = [count(of_images, "image"), count(of_labels, "label")];
            return Err(self.damaged(format!("contains {images}, but {labels} contains {found}")));
        }
        if self.shape.contains(&0) {
            return Err(self.damaged("contains no images".into()));
        }
        Ok(())
    }

    /// Writes the bytes of all items to `target`.
    ///
    /// # Errors
    /// When the file cannot be read, when its length is not the one that the header declares, or when
    /// `target` cannot be written.
    pub fn copy(&self, target: &mut impl Write) -> Result<(), DataError> {
        let copied = io::copy(&mut self.contents()?, target).map_err(DataError::unpack(&self.path))?;
        self.check_length(copied)
    }

    /// Returns a reader of the contents after the header.
    fn contents(&self) -> Result<Box<dyn Read>, DataError> {
        let mut reader = self.reader()?;
        io::copy(&mut reader.by_ref().take(self.header()), &mut io::sink())
            .map_err(DataError::unpack(&self.path))?;
        Ok(reader)
    }

    /// Returns the error for a damaged file.
    fn damaged(&self, what: String) -> DataError {
        DataError::damaged(&self.path, what)
    }

    /// Returns the error for a file without a valid header. If the first bytes are those of another known
    /// format, the error names the format. Otherwise the error describes the file as damaged, with the reason
    /// `what`.
    fn other(&self, what: String) -> DataError {
        let is_expected = |kind: &FileKind| self.is_packed && kind.name.contains("gzip");
        match foreign_file(&self.path).filter(|kind| !is_expected(kind)) {
            Some(kind) => DataError::source(&self.path, format!("is {kind}")),
            None => self.damaged(what),
        }
    }

    /// Returns the size of the header in bytes.
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
        let how = if found < expected { "is truncated" } else { "is too long" };
        Err(self.damaged(format!(
            "{how}: {found} bytes after its header, which declares the shape {:?}",
            self.shape
        )))
    }
}
