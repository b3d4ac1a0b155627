//! MNIST's four files, and data sets in their layout.

use std::path::Path;

use super::idx::IdxFile;
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
    names.flat_map(|name| [name.to_owned(), format!("{name}.gz")])
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

    fn labels(&self, split: Split, limit: usize) -> Result<Vec<u8>, DataError> {
        let file = &self.files[split as usize].1;
        // Not the declared number at once: a small gzipped file can declare four billion.
        let mut labels = Vec::with_capacity(limit.min(file.count).min(1 << 20));
        file.for_each(limit, |_, label| labels.push(label[0]))?;
        match labels.iter().position(|&label| usize::from(label) >= CLASSES) {
            None => Ok(labels),
            Some(at) => {
                let sample = format!("sample {at}");
                Err(DataError::label(&file.path, DataFormat::Idx, labels[at], &sample, CLASSES))
            }
        }
    }
}
