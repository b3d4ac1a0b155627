//! Samples in the rows of `.npy` files.

use std::sync::Arc;

use crate::formats::NpyFile;
use crate::source::SplitReader;
use crate::{DataError, Element};

/// A split whose samples are rows of a file, which are read on request.
pub(super) struct Rows {
    pub(super) file: Arc<NpyFile>,
    /// Classes of all samples.
    pub(super) labels: Vec<u16>,
    pub(super) element: Element,
}

impl SplitReader for Rows {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn for_each(&self, limit: usize, visit: &mut dyn FnMut(usize, &[u8])) -> Result<(), DataError> {
        let mut values = Vec::new();
        self.file.for_each_row(limit, |sample, bytes| {
            values.clear();
            if self.element != Element::U8 {
                self.element.cast(bytes, &mut values);
            }
            if let Some(feature) = values.iter().position(|value| !value.is_finite()) {
                bail!(
                    &self.file.file.path,
                    "feature {feature} of sample {sample} is {} as f32; clean or scale the features",
                    values[feature]
                );
            }
            visit(sample, bytes);
            Ok(())
        })
    }

    fn labels(&self, limit: usize) -> Result<Vec<u16>, DataError> {
        Ok(self.labels[..limit.min(self.len())].to_vec())
    }

    fn rows(&self) -> Option<Arc<NpyFile>> {
        Some(self.file.clone())
    }
}
