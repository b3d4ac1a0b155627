//! Reads data sets that `mpiburn data import` wrote: `.npy` files, described by `dataset.json`.

use std::path::Path;
use std::sync::Arc;

use super::npy::NpyRows;
use super::{DataSet, FILE, NpyFile};
use crate::{DataError, DataFormat, Description, SampleSource, Split};

/// Returns the name `dataset.json` if `root` contains this file, which only imported data sets have.
pub(super) fn any_file(root: &Path) -> Option<String> {
    root.join(FILE).exists().then(|| FILE.to_owned())
}

/// Opens the samples and reads the labels of both splits.
///
/// # Errors
/// When a file is missing, cannot be read, or does not match `dataset.json`.
pub(super) fn open(root: &Path) -> Result<SampleSource, DataError> {
    let set = DataSet::read(root).map_err(|error| DataError::Files(error.to_string()))?;
    let split = |split: Split| {
        let record = set.split(split);
        let path = |what| root.join(DataSet::file_name(split.name(), what));
        let (dtype, shape) = DataSet::array(record.samples, set.shape, set.numbers);
        let open = |what, dtype| NpyFile::open(&path(what), &[dtype]);
        let (samples, labels) = (open("images", dtype)?, open("labels", "<u2")?);
        for (file, shape) in [(&samples, shape), (&labels, vec![record.samples])] {
            if file.shape != shape || record.samples == 0 {
                bail!(
                    &file.file.path,
                    "has the shape {:?}, but {FILE} says {shape:?}: import the data set again",
                    file.shape
                );
            }
        }
        let mut classes = Vec::with_capacity(labels.rows);
        labels.for_each_row(labels.rows, |sample, bytes| {
            let label = u16::from_le_bytes([bytes[0], bytes[1]]);
            let all = set.classes.len();
            if usize::from(label) >= all {
                bail!(
                    &labels.file.path,
                    "label {label} of sample {sample} is not below {all}, the number of classes: import the data \
                     set again"
                );
            }
            classes.push(label);
            Ok(())
        })?;
        Ok(NpyRows { file: Arc::new(samples), labels: classes, element: set.numbers })
    };
    let splits = [split(Split::Train)?, split(Split::Test)?];
    let description = Description {
        kind: DataFormat::Imported,
        shape: set.shape,
        element: set.numbers,
        classes: set.classes.len(),
        class_names: set.classes.clone(),
        mean: set.mean.clone(),
        std: set.std.clone(),
    };
    let mut source = SampleSource::from_splits(description, splits);
    source.imported = Some(set);
    Ok(source)
}
