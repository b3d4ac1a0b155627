//! MNIST's four files, and data sets in their layout.

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use run_record::files::open_regular;

use super::error::OTHER_SAMPLES;
use super::{DataError, DataFormat, Description, Element, SampleSource, Split};

/// A folder in MNIST's layout. Opening it reads headers only.
#[derive(Debug)]
pub struct Mnist {
    description: Description,
    files: [(IdxFile, IdxFile); 2],
}

/// Images and labels of each split.
const NAMES: [(&str, &str); 2] = [
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
];

/// Mean and standard deviation of MNIST's pixels, scaled to [0, 1].
const MEAN: f32 = 0.1307;
const STD: f32 = 0.3081;
const CLASSES: usize = 10;
/// Rows and columns of an image.
const SIDES: [u32; 2] = [28, 28];

/// The names of the files of such a data set.
pub(super) fn file_names() -> impl Iterator<Item = String> {
    let names = NAMES.into_iter().flat_map(|(images, labels)| [images, labels]);
    names.flat_map(spellings)
}

/// The names that the file `name` has, unpacked and packed; some archives have a dot before `idx`.
fn spellings(name: &str) -> [String; 4] {
    let dotted = name.replace("-idx", ".idx");
    [name.to_owned(), dotted.clone(), format!("{name}.gz"), format!("{dotted}.gz")]
}

/// The name of a file of such a data set in `root`, if there is one.
pub(super) fn any_file(root: &Path) -> Option<String> {
    file_names().find(|name| root.join(name).exists())
}

impl Mnist {
    /// Opens the four files in `root` and checks that they match.
    ///
    /// # Errors
    /// When a file is missing or does not have the expected format, or when the numbers
    /// of images and labels differ.
    pub fn open(root: &Path) -> Result<Self, DataError> {
        let pair = |(images, labels): (&str, &str)| -> Result<_, DataError> {
            let images = IdxFile::open(root, images, &SIDES)?;
            let labels = IdxFile::open(root, labels, &[])?;
            let invalid =
                |what| DataError::Invalid { path: images.path.clone(), what, kind: DataFormat::Idx };
            if images.count != labels.count {
                return Err(invalid(format!(
                    "{} images, but {} labels in {}",
                    images.count,
                    labels.count,
                    labels.path.display()
                )));
            }
            if images.count == 0 {
                return Err(invalid("it contains no image".into()));
            }
            Ok((images, labels))
        };
        Ok(Self {
            files: [pair(NAMES[0])?, pair(NAMES[1])?],
            description: Description {
                kind: DataFormat::Idx,
                shape: [1, 28, 28],
                element: Element::U8,
                classes: CLASSES,
                class_names: (0..CLASSES).map(|class| class.to_string()).collect(),
                mean: vec![MEAN],
                std: vec![STD],
            },
        })
    }
}

impl SampleSource for Mnist {
    fn description(&self) -> &Description {
        &self.description
    }

    fn description_mut(&mut self) -> &mut Description {
        &mut self.description
    }

    fn len(&self, split: Split) -> usize {
        self.files[split as usize].0.count
    }

    fn for_each_image(
        &self,
        split: Split,
        limit: usize,
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), DataError> {
        self.files[split as usize].0.for_each(limit, visit)
    }

    fn labels(&self, split: Split, limit: usize) -> Result<Vec<u16>, DataError> {
        let file = &self.files[split as usize].1;
        // Not the declared number at once: a small gzipped file can declare four billion.
        let mut labels = Vec::with_capacity(limit.min(file.count).min(1 << 19));
        file.for_each(limit, |_, label| labels.push(u16::from(label[0])))?;
        match labels.iter().position(|&label| usize::from(label) >= CLASSES) {
            None => Ok(labels),
            Some(at) => {
                let sample = format!("sample {at}");
                Err(DataError::label(&file.path, labels[at], &sample, CLASSES))
            }
        }
    }
}

/// Magic numbers of files of bytes, which have the number of dimensions at their end.
const IMAGES: u32 = 0x0803;
const LABELS: u32 = 0x0801;
const IN_HEADER: &str = "ends inside its header";

/// An IDX file of images or labels with a valid header.
#[derive(Debug, Clone)]
pub struct IdxFile {
    /// Its path.
    pub path: PathBuf,
    gzipped: bool,
    /// Rows and columns of an image; empty for labels.
    shape: &'static [u32],
    /// Number of items: images or labels.
    pub count: usize,
}

impl IdxFile {
    /// Opens `name` in `root` by any of its spellings: images of `shape`, or labels without one.
    ///
    /// # Errors
    /// When neither exists, when the header is not that of such items, or when an
    /// uncompressed file is shorter or longer than its header says.
    pub fn open(root: &Path, name: &str, shape: &'static [u32]) -> Result<Self, DataError> {
        let Some(path) = spellings(name).iter().map(|name| root.join(name)).find(|path| path.exists()) else {
            let also = format!(", and so is {name}.gz");
            return Err(DataError::Missing { path: root.join(name), also, kind: DataFormat::Idx });
        };
        let gzipped = path.extension().is_some_and(|ending| ending == "gz");
        let mut file = Self { path, gzipped, shape, count: 0 };
        let mut reader = file.reader()?;
        let mut number = || {
            let mut bytes = [0; 4];
            let read = reader.read_exact(&mut bytes).map_err(|e| file.broken(e, IN_HEADER));
            read.map(|()| u32::from_be_bytes(bytes))
        };
        let (magic, expected) = (number()?, LABELS + shape.len() as u32);
        if magic != expected {
            let of = |magic| match magic {
                IMAGES => "a file of images",
                LABELS => "a file of labels",
                _ => "not an IDX file of bytes",
            };
            return Err(file.invalid(format!(
                "its magic number is {magic:#010x}, {}; {} has {expected:#010x}",
                of(magic),
                of(expected)
            )));
        }
        let count = number()? as usize;
        let found = shape.iter().map(|_| number()).collect::<Result<Vec<_>, _>>()?;
        if found != shape {
            let what = format!("images of {found:?}, expected {shape:?}; {OTHER_SAMPLES}");
            return Err(DataError::Unsuitable { path: file.path, what });
        }
        file.count = count;
        if !gzipped {
            file.check_length()?;
        }
        Ok(file)
    }

    fn header_bytes(&self) -> usize {
        8 + 4 * self.shape.len()
    }

    fn item_bytes(&self) -> usize {
        self.shape.iter().product::<u32>() as usize
    }

    /// Calls `visit` with the index and the bytes of each of the first
    /// `limit` items, in file order.
    ///
    /// # Errors
    /// When the file cannot be read, or is shorter or longer than its header says.
    pub fn for_each(&self, limit: usize, mut visit: impl FnMut(usize, &[u8])) -> Result<(), DataError> {
        let limit = limit.min(self.count);
        let mut reader = self.reader()?;
        let mut header = vec![0u8; self.header_bytes()];
        reader.read_exact(&mut header).map_err(|e| self.broken(e, IN_HEADER))?;
        let mut item = vec![0u8; self.item_bytes()];
        for number in 0..limit {
            reader
                .read_exact(&mut item)
                .map_err(|e| self.broken(e, &format!("ends after {number} of {} items", self.count)))?;
            visit(number, &item);
        }
        // The length of a gzipped file is known only after decompressing it, which takes
        // time: it is checked only if the whole file is read anyway.
        if self.gzipped && limit == self.count {
            match reader.read(&mut [0u8]) {
                Ok(0) => {}
                Ok(_) => {
                    return Err(self.invalid(format!("has data after its {} items", self.count)));
                }
                Err(error) => return Err(self.broken(error, "has a damaged end")),
            }
        }
        Ok(())
    }

    fn reader(&self) -> Result<Box<dyn Read>, DataError> {
        let file = open_regular(&self.path).map_err(DataError::read(&self.path))?;
        let file = BufReader::with_capacity(1 << 18, file);
        Ok(match self.gzipped {
            true => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))),
            false => Box::new(file),
        })
    }

    fn check_length(&self) -> Result<(), DataError> {
        let found = std::fs::metadata(&self.path).map_err(DataError::read(&self.path))?.len();
        let item = self.item_bytes();
        let expected = self.header_bytes() as u64 + self.count as u64 * item as u64;
        if found != expected {
            let how = if found < expected { "truncated" } else { "too long" };
            return Err(self.invalid(format!(
                "{how}: {found} bytes, but its header's {} items of {item} bytes are {expected}",
                self.count
            )));
        }
        Ok(())
    }

    fn broken(&self, error: io::Error, what: &str) -> DataError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.invalid(format!("truncated: {what}")),
            _ => self.invalid(format!("{what}: {error}")),
        }
    }

    fn invalid(&self, what: String) -> DataError {
        DataError::Invalid { path: self.path.clone(), what, kind: DataFormat::Idx }
    }
}

#[cfg(test)]
mod idx_tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;

    fn idx(magic: u32, sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
        let mut file = magic.to_be_bytes().to_vec();
        sizes.iter().for_each(|n| file.extend(n.to_be_bytes()));
        file.extend(bytes);
        file
    }

    fn open(bytes: &[u8], shape: &'static [u32]) -> Result<IdxFile, DataError> {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("f"), bytes).unwrap();
        IdxFile::open(root.path(), "f", shape)
    }

    fn message(bytes: &[u8]) -> String {
        open(bytes, &[1, 3]).unwrap_err().to_string()
    }

    #[test]
    fn items_are_read_in_order_plain_or_gzipped() {
        let root = tempfile::tempdir().unwrap();
        let bytes = idx(0x803, &[2, 1, 3], &[1, 2, 3, 4, 5, 6]);
        std::fs::write(root.path().join("plain"), &bytes).unwrap();
        // Of two members, as concatenated files are.
        let mut zipped = File::create(root.path().join("zip.idx3.gz")).unwrap();
        for part in bytes.chunks(20) {
            let mut encoder = flate2::write::GzEncoder::new(&mut zipped, flate2::Compression::fast());
            encoder.write_all(part).unwrap();
            encoder.finish().unwrap();
        }
        for name in ["plain", "zip-idx3"] {
            let file = IdxFile::open(root.path(), name, &[1, 3]).unwrap();
            let mut seen = Vec::new();
            file.for_each(9, |n, item| seen.push((n, item.to_vec()))).unwrap();
            assert_eq!(seen, [(0, vec![1, 2, 3]), (1, vec![4, 5, 6])]);
        }
    }

    #[test]
    fn invalid_files_are_rejected_with_name_and_reason() {
        let label = message(&idx(0x801, &[6], &[0; 6]));
        assert!(label.contains("a file of labels"), "{label}");
        let short = message(&idx(0x803, &[2, 1, 3], &[0; 5]));
        assert!(short.contains("truncated: 21 bytes"), "{short}");
        let long = message(&idx(0x803, &[2, 1, 3], &[0; 7]));
        assert!(long.contains("too long"), "{long}");
        assert!(message(&[0, 0]).contains("inside its header"));
        assert!(message(b"GIF89a").contains("not an IDX file"));
        assert!(message(&idx(0x803, &[1, 0, 3], &[])).contains("images of [0, 3], expected [1, 3]"));
    }

    #[test]
    fn a_missing_file_is_named_with_the_command_to_generate_it() {
        let error = IdxFile::open(Path::new("/nowhere"), "x", &[]).unwrap_err();
        assert!(error.to_string().contains("/nowhere/x") && error.to_string().contains("mpiburn data"));
    }
}
