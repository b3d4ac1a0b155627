//! Reads CIFAR-10's binary files, and other data sets with the same file names and the same file format.
//!
//! The format is described at <https://www.cs.toronto.edu/~kriz/cifar.html>. A file is a sequence of records.
//! A record is a label of one byte, then the red, the green and the blue plane of a 32x32 image.

use std::ffi::OsStr;
use std::path::Path;

use run_record::files;

use crate::formats::DataFile;
use crate::source::SplitReader;
use crate::{DataError, DataFormat, Description, SampleSource};

/// Channels, height and width of an image.
pub(crate) const SHAPE: [usize; 3] = [3, 32, 32];
/// Bytes of an image.
pub(crate) const IMAGE: usize = SHAPE[0] * SHAPE[1] * SHAPE[2];
/// Bytes of a record: a label and an image.
const RECORD: usize = 1 + IMAGE;
const CLASSES: usize = 10;
/// Mean and standard deviation for the normalisation of every channel: normalised pixels are from -1 to 1.
/// These numbers are not the mean and the standard deviation of CIFAR-10's pixels.
const MEAN: f32 = 0.5;
const STD: f32 = 0.5;
const TEST: &str = "test_batch.bin";
/// File with the names of the classes, one in each line.
const META: &str = "batches.meta.txt";

/// The files of one split. Images are read on request.
struct Records(Vec<DataFile>);

/// Returns the name of a file in `root` that belongs to a data set of this format, if there is one.
///
/// # Errors
/// When the folder cannot be read.
pub(super) fn any_file(root: &Path) -> Result<Option<String>, DataError> {
    let test = root.join(TEST).exists().then(|| TEST.to_owned());
    Ok(batches(root)?.first().map(|&number| batch(number)).or(test))
}

fn batch(number: u32) -> String {
    format!("data_batch_{number}.bin")
}

/// Returns the number of the training batch that has this file name, or `None` for another file.
fn number_of(name: &OsStr) -> Option<u32> {
    let number = name.to_str()?.strip_prefix("data_batch_")?.strip_suffix(".bin")?.parse().ok()?;
    // `data_batch_01.bin` is not the file of batch 1.
    (name == OsStr::new(&batch(number))).then_some(number)
}

/// Returns whether a data set of this format may contain a file of this name.
pub(crate) fn is_file_name(name: &OsStr) -> bool {
    name == TEST || name == META || number_of(name).is_some()
}

/// Returns the numbers of the training batches in `root`, sorted.
fn batches(root: &Path) -> Result<Vec<u32>, DataError> {
    let mut numbers = Vec::new();
    if !root.exists() {
        return Ok(numbers);
    }
    for entry in std::fs::read_dir(root).map_err(DataError::read(root))? {
        numbers.extend(number_of(&entry.map_err(DataError::read(root))?.file_name()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Opens the files `data_batch_1.bin`, `data_batch_2.bin` and so on, and `test_batch.bin`.
///
/// # Errors
/// When a file is missing, cannot be read, is empty, or does not consist of whole records.
pub(super) fn open(root: &Path) -> Result<SampleSource, DataError> {
    let missing = |name: &str, also: &str| DataError::missing(&root.join(name), also, DataFormat::Cifar10);
    let numbers = batches(root)?;
    let last = numbers.last().copied().unwrap_or(0).max(1);
    if let Some(gap) = (1..=last).find(|number| !numbers.contains(number)) {
        let also = format!(", although {} exists", batch(last));
        return Err(missing(&batch(gap), if last > gap { &also } else { "" }));
    }
    if !root.join(TEST).exists() {
        return Err(missing(TEST, ""));
    }
    let train =
        numbers.iter().map(|&number| open_file(&root.join(batch(number)))).collect::<Result<_, _>>()?;
    let description = Description::pictures(DataFormat::Cifar10, SHAPE, class_names(root), [MEAN, STD]);
    let test = vec![open_file(&root.join(TEST))?];
    Ok(SampleSource::from_splits(description, [train, test].map(Records)))
}

impl Records {
    /// Calls `visit` for each of the first `limit` records of the split. The arguments of `visit` are the
    /// file of the record, the record's index in this file and its index in the split, and the record's
    /// bytes.
    fn for_each_record(
        &self,
        limit: usize,
        mut visit: impl FnMut(&DataFile, [usize; 2], &[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut before = 0;
        for file in &self.0 {
            let count = (file.len / RECORD).min(limit - before);
            file.for_each_record(0, [count, RECORD], |at, record| visit(file, [at, before + at], record))?;
            before += count;
        }
        Ok(())
    }
}

fn open_file(path: &Path) -> Result<DataFile, DataError> {
    let file = DataFile::open(path)?;
    let what = match (file.len, file.len % RECORD) {
        (0, _) => "contains no images".to_owned(),
        (_, 0) => return Ok(file),
        (found, rest) => {
            // Look for another format only if the length is wrong. A valid file begins with a label and
            // pixels. Dark pixels are small numbers, so these bytes may also be the first bytes of another
            // format.
            if let Some(kind) = files::foreign_file(path) {
                bail!(path, "is {kind}");
            }
            let records = found / RECORD;
            format!(
                "is truncated or too long: {found} bytes are {records} records of {RECORD} bytes and {rest} more"
            )
        }
    };
    Err(DataError::damaged(path, what))
}

/// Returns the names in `batches.meta.txt`, or the numbers of the classes if the file does not have 10 names.
fn class_names(root: &Path) -> Vec<String> {
    let text = files::read_text(&root.join(META)).unwrap_or_default();
    let names: Vec<String> = text.lines().map(str::trim).filter(|n| !n.is_empty()).map(Into::into).collect();
    match names.len() {
        CLASSES => names,
        _ => (0..CLASSES).map(|class| class.to_string()).collect(),
    }
}

impl SplitReader for Records {
    fn len(&self) -> usize {
        self.0.iter().map(|file| file.len / RECORD).sum()
    }

    fn for_each(&self, limit: usize, visit: &mut dyn FnMut(usize, &[u8])) -> Result<(), DataError> {
        self.for_each_record(limit, |_, [_, sample], record| {
            visit(sample, &record[1..]);
            Ok(())
        })
    }

    fn labels(&self, limit: usize) -> Result<Vec<u16>, DataError> {
        let mut labels = Vec::with_capacity(limit.min(self.len()));
        self.for_each_record(limit, |file, [at, _], record| match usize::from(record[0]) {
            0..CLASSES => {
                labels.push(u16::from(record[0]));
                Ok(())
            }
            _ => {
                let at = format!("record {at}");
                Err(DataError::label(&file.path, record[0].into(), &at, CLASSES))
            }
        })?;
        Ok(labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::names_all;
    use crate::generate::objects;
    use crate::{self as data, Split};

    fn made() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        objects::write(root.path(), 12, 3, 5, &|_| Ok(())).unwrap();
        root
    }

    fn message(root: &Path) -> String {
        let opened = data::open(root).and_then(|source| source.labels(Split::Train, 100));
        opened.expect_err("a bad data set").to_string()
    }

    #[test]
    fn batches_are_read_one_after_the_other() {
        let root = made();
        // The generator writes 12 samples as four batches of 3.
        assert_eq!(batches(root.path()).unwrap(), [1, 2, 3, 4]);
        let source = data::open(root.path()).unwrap();
        assert_eq!((source.len(Split::Train), source.len(Split::Test)), (12, 3));
        for split in Split::ALL {
            let labels = source.labels(split, 5).unwrap();
            let mut seen = 0;
            let check = &mut |sample: usize, bytes: &[u8]| {
                let (image, label) = objects::draw(5, split, sample as u64);
                assert_eq!((bytes, labels[sample]), (&image[..], u16::from(label)), "{sample}");
                seen += 1;
            };
            source.for_each_sample(split, 5, check).unwrap();
            assert_eq!((seen, labels.len()), (5.min(source.len(split)), seen));
        }
        let description = source.description();
        assert_eq!((description.kind, description.shape), (DataFormat::Cifar10, [3, 32, 32]));
        assert_eq!((&description.class_names[3][..], description.classes), ("flower", 10));
        assert_eq!((&description.mean[..], &description.std[..]), (&[0.5; 3][..], &[0.5; 3][..]));
    }

    #[test]
    fn invalid_files_are_named_with_the_reason() {
        let root = made();
        let path = |name: &str| root.path().join(name);
        let edit = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let whole = std::fs::read(path(name)).unwrap();
            let mut bytes = whole.clone();
            change(&mut bytes);
            std::fs::write(path(name), bytes).unwrap();
            let message = message(root.path());
            std::fs::write(path(name), whole).unwrap();
            assert_eq!(message.lines().count(), 1, "{message}");
            message
        };
        let cut = edit("data_batch_2.bin", &|bytes| bytes.truncate(3072));
        assert!(
            names_all(&cut, "data_batch_2.bin: | truncated | 3072 bytes | 0 records of 3073 | 3072 more"),
            "{cut}"
        );
        let long = edit("test_batch.bin", &|bytes| bytes.push(0));
        assert!(names_all(&long, "test_batch.bin: | too long | 3 records of 3073 | 1 more"), "{long}");
        let empty = edit("data_batch_1.bin", &|bytes| bytes.clear());
        assert!(names_all(&empty, "data_batch_1.bin: | no images"), "{empty}");
        let page = edit("data_batch_1.bin", &|bytes| *bytes = b"<!DOCTYPE html>".to_vec());
        assert!(names_all(&page, "data_batch_1.bin: | HTML"), "{page}");
        let label = edit("data_batch_3.bin", &|bytes| bytes[3073] = 10);
        assert!(
            names_all(&label, "data_batch_3.bin: | label 10 | record 1 | 0 to 9 | mpiburn data import"),
            "{label}"
        );
    }

    #[test]
    fn missing_files_are_named() {
        let root = made();
        std::fs::remove_file(root.path().join("data_batch_2.bin")).unwrap();
        let gap = message(root.path());
        assert!(names_all(&gap, "data_batch_2.bin | missing | data_batch_4.bin"), "{gap}");
        let root = made();
        std::fs::remove_file(root.path().join(TEST)).unwrap();
        assert!(
            names_all(&message(root.path()), "test_batch.bin is missing | mpiburn data objects"),
            "{}",
            message(root.path())
        );
        let root = made();
        (1..=4).for_each(|n| std::fs::remove_file(root.path().join(batch(n))).unwrap());
        assert!(
            names_all(&message(root.path()), "data_batch_1.bin is missing | mpiburn data objects"),
            "{}",
            message(root.path())
        );
    }
}
