//! Samples in the rows of `.npy` files.

use std::sync::Arc;

use data_import::{DataSet, NpyFile};

use super::{DataError, Description, Element, SampleSource, Split};

/// A data set whose samples are rows of files, which are read on request.
#[derive(Debug)]
pub struct Rows {
    pub(super) description: Description,
    /// How it was imported, if it was.
    pub(super) imported: Option<DataSet>,
    pub(super) samples: [Arc<NpyFile>; 2],
    /// Classes of all samples of each split.
    pub(super) labels: [Vec<u16>; 2],
}

impl SampleSource for Rows {
    fn description(&self) -> &Description {
        &self.description
    }

    fn description_mut(&mut self) -> &mut Description {
        &mut self.description
    }

    fn imported(&self) -> Option<&DataSet> {
        self.imported.as_ref()
    }

    fn rows(&self, split: Split) -> Option<Arc<NpyFile>> {
        self.imported.as_ref().map(|_| self.samples[split as usize].clone())
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
        let (file, element) = (&self.samples[split as usize], self.description.element);
        let mut values = Vec::new();
        file.for_each_row(limit, |sample, bytes| {
            values.clear();
            if element != Element::U8 {
                element.cast(bytes, &mut values);
            }
            if let Some(feature) = values.iter().position(|value| !value.is_finite()) {
                let value = values[feature];
                return Err(unsuitable(
                    file,
                    format!(
                        "feature {feature} of sample {sample} is {value} as f32; clean or scale the features"
                    ),
                ));
            }
            visit(sample, bytes);
            Ok(())
        })
    }

    fn labels(&self, split: Split, limit: usize) -> Result<Vec<u16>, DataError> {
        let labels = &self.labels[split as usize];
        Ok(labels[..limit.min(labels.len())].to_vec())
    }
}

/// That a file cannot be used as it is.
pub(super) fn unsuitable(file: &NpyFile, what: String) -> DataError {
    DataError::Unsuitable { path: file.file.path.clone(), what }
}
