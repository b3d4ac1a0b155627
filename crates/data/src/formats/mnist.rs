//! Reads MNIST's four IDX files, and other data sets with the same file names, image size and number of
//! classes.

use std::path::Path;

use super::IdxFile;
use crate::error::OTHER_SAMPLES;
use crate::source::SplitReader;
use crate::{DataError, DataFormat, Description, SampleSource};

/// The two files of a split. When they are opened, only their headers are read.
struct Idx {
    images: IdxFile,
    labels: IdxFile,
}

/// File names of images and labels, for each split.
const NAMES: [(&str, &str); 2] = [
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
];

/// Mean and standard deviation of MNIST's pixels, scaled to [0, 1].
const MEAN: f32 = 0.1307;
const STD: f32 = 0.3081;
const CLASSES: usize = 10;
/// Rows and columns of an image.
const SIDES: [usize; 2] = [28, 28];

/// Returns the names of all files of this format, in all spellings.
pub(super) fn file_names() -> impl Iterator<Item = String> {
    let names = NAMES.into_iter().flat_map(|(images, labels)| [images, labels]);
    names.flat_map(spellings)
}

/// Returns the four spellings of a file name: with a dash or a dot before `idx`, and with or without `.gz`.
/// Some archives have names with a dot.
fn spellings(name: &str) -> [String; 4] {
    let dotted = name.replace("-idx", ".idx");
    [name.to_owned(), dotted.clone(), format!("{name}.gz"), format!("{dotted}.gz")]
}

/// Returns the name of a file in `root` that belongs to a data set of this format, if there is one.
pub(super) fn any_file(root: &Path) -> Option<String> {
    file_names().find(|name| root.join(name).exists())
}

/// Opens the four files in `root` and checks that they match.
///
/// # Errors
/// When a file is missing, cannot be read or does not have the expected format, or when the number of labels
/// differs from the number of images.
pub(super) fn open(root: &Path) -> Result<SampleSource, DataError> {
    let pair = |(images, labels): (&str, &str)| -> Result<_, DataError> {
        let (images, labels) = (open_file(root, images, &SIDES)?, open_file(root, labels, &[])?);
        images.check_labels(&labels)?;
        Ok(Idx { images, labels })
    };
    let names = (0..CLASSES).map(|class| class.to_string()).collect();
    let shape = [1, SIDES[0], SIDES[1]];
    let description = Description::pictures(DataFormat::Idx, shape, names, [MEAN, STD]);
    Ok(SampleSource::from_splits(description, [pair(NAMES[0])?, pair(NAMES[1])?]))
}

impl SplitReader for Idx {
    fn len(&self) -> usize {
        self.images.shape[0]
    }

    fn for_each(&self, limit: usize, visit: &mut dyn FnMut(usize, &[u8])) -> Result<(), DataError> {
        self.images.for_each_item(limit, |sample, image| {
            visit(sample, image);
            Ok(())
        })
    }

    fn labels(&self, limit: usize) -> Result<Vec<u16>, DataError> {
        // Do not reserve memory for the declared number of labels: a small compressed file can declare four
        // billion.
        let mut labels = Vec::with_capacity(limit.min(self.len()).min(1 << 19));
        self.labels.for_each_item(limit, |_, label| {
            labels.push(u16::from(label[0]));
            Ok(())
        })?;
        match labels.iter().position(|&label| usize::from(label) >= CLASSES) {
            None => Ok(labels),
            Some(at) => {
                let sample = format!("sample {at}");
                Err(DataError::label(&self.labels.path, labels[at], &sample, CLASSES))
            }
        }
    }
}

/// Opens the file `name` in `root`, in any of its spellings. `shape` is the expected shape of an image, or
/// empty for labels.
fn open_file(root: &Path, name: &str, shape: &[usize]) -> Result<IdxFile, DataError> {
    let Some(path) = spellings(name).iter().map(|name| root.join(name)).find(|path| path.exists()) else {
        let also = format!(", and so is {name}.gz");
        return Err(DataError::missing(&root.join(name), &also, DataFormat::Idx));
    };
    let file = IdxFile::open(&path)?;
    let items = |shape: &[usize]| match shape {
        [] => "labels".to_owned(),
        shape => format!("images of {shape:?}"),
    };
    if file.shape[1..] != *shape {
        bail!(
            &path,
            "contains {}, but {} are required; {OTHER_SAMPLES}",
            items(&file.shape[1..]),
            items(shape)
        );
    }
    Ok(file)
}

#[cfg(test)]
mod idx_tests {
    use super::*;
    use crate::error::names_all;
    use std::fs::File;
    use std::io::Write;

    fn idx(magic: u32, sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
        let mut file = magic.to_be_bytes().to_vec();
        sizes.iter().for_each(|n| file.extend(n.to_be_bytes()));
        file.extend(bytes);
        file
    }

    fn message(bytes: &[u8]) -> String {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("f"), bytes).unwrap();
        open_file(root.path(), "f", &[1, 3]).unwrap_err().to_string()
    }

    #[test]
    fn items_are_read_in_order_plain_or_gzipped() {
        let root = tempfile::tempdir().unwrap();
        let bytes = idx(0x803, &[2, 1, 3], &[1, 2, 3, 4, 5, 6]);
        std::fs::write(root.path().join("plain"), &bytes).unwrap();
        // Two gzip members, as in concatenated files.
        let mut zipped = File::create(root.path().join("zip.idx3.gz")).unwrap();
        for part in bytes.chunks(20) {
            let mut encoder = flate2::write::GzEncoder::new(&mut zipped, flate2::Compression::fast());
            encoder.write_all(part).unwrap();
            encoder.finish().unwrap();
        }
        for name in ["plain", "zip-idx3"] {
            let file = open_file(root.path(), name, &[1, 3]).unwrap();
            let mut seen = Vec::new();
            let see = |n, item: &[u8]| {
                seen.push((n, item.to_vec()));
                Ok(())
            };
            file.for_each_item(9, see).unwrap();
            assert_eq!(seen, [(0, vec![1, 2, 3]), (1, vec![4, 5, 6])]);
        }
    }

    #[test]
    fn invalid_files_are_rejected_with_name_and_reason() {
        let label = message(&idx(0x801, &[6], &[0; 6]));
        assert!(names_all(&label, "f: | labels | images of [1, 3]"), "{label}");
        let short = message(&idx(0x803, &[2, 1, 3], &[0; 5]));
        assert!(names_all(&short, "f: | truncated | 5 bytes | [2, 1, 3]"), "{short}");
        let long = message(&idx(0x803, &[2, 1, 3], &[0; 7]));
        assert!(names_all(&long, "f: | too long | 7 bytes | [2, 1, 3]"), "{long}");
        assert!(names_all(&message(&[0, 0]), "f: | header"));
        assert!(names_all(&message(b"GIF89a"), "f: | picture (GIF)"));
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("folder")).unwrap();
        std::fs::write(root.path().join("plain.gz"), idx(0x803, &[1, 1, 3], &[0; 3])).unwrap();
        for (name, expected) in [("folder", "cannot read "), ("plain", "plain.gz: | gzip | damaged")] {
            let message = open_file(root.path(), name, &[1, 3]).unwrap_err().to_string();
            assert!(names_all(&message, expected), "{message}");
        }
        assert!(names_all(&message(&idx(0x803, &[1, 0, 3], &[])), "images of [0, 3] | images of [1, 3]"));
    }

    #[test]
    fn a_missing_file_is_named_with_the_command_to_generate_it() {
        let error = open_file(Path::new("/nowhere"), "x", &[]).unwrap_err();
        assert!(error.to_string().contains("/nowhere/x") && error.to_string().contains("mpiburn data"));
    }
}
