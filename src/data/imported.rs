//! Data sets that `mpiburn data import` wrote: `.npy` files, and `dataset.json` that describes them.

use std::path::Path;
use std::sync::Arc;

use data_import::{DataSet, FILE, ImportError, NpyFile, Numbers};

use super::npy_pairs::for_each_sample;
use super::{DataError, DataFormat, Description, Element, SampleSource, Split};

/// An imported data set. Samples are read on request.
#[derive(Debug)]
pub struct Imported {
    set: DataSet,
    description: Description,
    samples: [Arc<NpyFile>; 2],
    labels: [Vec<u16>; 2],
}

/// The file of such a data set in `root`, if there is one.
pub(super) fn any_file(root: &Path) -> Option<String> {
    root.join(FILE).exists().then(|| FILE.to_owned())
}

impl Imported {
    /// Opens the samples and reads the labels of both splits.
    ///
    /// # Errors
    /// When a file is missing, or is not as `dataset.json` describes it.
    pub fn open(root: &Path) -> Result<Self, DataError> {
        let set = DataSet::read(root).map_err(|error| DataError::Import(error.to_string()))?;
        let split = |split: Split| {
            let record = match split {
                Split::Train => &set.train,
                Split::Test => &set.test,
            };
            let path = |what| root.join(DataSet::file_name(split.name(), what));
            let [channels, height, width] = set.shape;
            let (dtype, shape) = match set.numbers {
                Numbers::U8 => ("|u1", vec![record.samples, channels, height, width]),
                Numbers::F32 => ("<f4", vec![record.samples, channels * height * width]),
            };
            let open = |what, dtype| {
                NpyFile::open(&path(what), &[dtype]).map_err(|error| match error {
                    ImportError::Damaged { path, what } => {
                        DataError::Unsuitable { path, what: format!("{what}: import the data set again") }
                    }
                    other => other.into(),
                })
            };
            let (samples, labels) = (open("images", dtype)?, open("labels", "<u2")?);
            let unsuitable = |file: &NpyFile, what: String| DataError::Unsuitable {
                path: file.file.path.clone(),
                what: format!("{what}: import the data set again"),
            };
            for (file, shape) in [(&samples, shape), (&labels, vec![record.samples])] {
                if file.shape != shape || record.samples == 0 {
                    let what = format!("its shape is {:?}, and {FILE} says {shape:?}", file.shape);
                    return Err(unsuitable(file, what));
                }
            }
            let mut classes = Vec::with_capacity(labels.rows);
            labels.for_each_row(labels.rows, |sample, bytes| {
                let label = u16::from_le_bytes([bytes[0], bytes[1]]);
                if usize::from(label) >= set.classes.len() {
                    let what =
                        format!("label {label} of sample {sample} is none of {} classes", set.classes.len());
                    return Err(unsuitable(&labels, what));
                }
                classes.push(label);
                Ok(())
            })?;
            Ok((samples, classes))
        };
        let (train, test) = (split(Split::Train)?, split(Split::Test)?);
        Ok(Self {
            samples: [train.0, test.0].map(Arc::new),
            labels: [train.1, test.1],
            description: Description {
                kind: DataFormat::Imported,
                shape: set.shape,
                element: match set.numbers {
                    Numbers::U8 => Element::U8,
                    Numbers::F32 => Element::F32,
                },
                classes: set.classes.len(),
                class_names: set.classes.clone(),
                mean: set.mean.clone(),
                std: set.std.clone(),
            },
            set,
        })
    }
}

impl SampleSource for Imported {
    fn description(&self) -> &Description {
        &self.description
    }

    fn imported(&self) -> Option<&DataSet> {
        Some(&self.set)
    }

    fn rows(&self, split: Split) -> Option<Arc<NpyFile>> {
        Some(self.samples[split as usize].clone())
    }

    fn len(&self, split: Split) -> usize {
        self.labels[split as usize].len()
    }

    fn for_each_image(
        &self,
        split: Split,
        limit: usize,
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), DataError> {
        for_each_sample(&self.samples[split as usize], self.description.element, limit, visit)
    }

    fn labels(&self, split: Split, limit: usize) -> Result<Vec<u16>, DataError> {
        let labels = &self.labels[split as usize];
        Ok(labels[..limit.min(labels.len())].to_vec())
    }
}
