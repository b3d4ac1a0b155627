//! Data sets that `mpiburn data import` wrote: `.npy` files, and `dataset.json` that describes them.

use std::path::Path;
use std::sync::Arc;

use super::{DataSet, FILE, NpyFile, Numbers};

use super::rows::{Rows, unsuitable};
use crate::{DataError, DataFormat, Description, Element, SampleSource, Split};

/// The file of such a data set in `root`, if there is one.
pub(super) fn any_file(root: &Path) -> Option<String> {
    root.join(FILE).exists().then(|| FILE.to_owned())
}

/// Opens the samples and reads the labels of both splits.
///
/// # Errors
/// When a file is missing, or is not as `dataset.json` describes it.
pub(super) fn open(root: &Path) -> Result<SampleSource, DataError> {
    let set = DataSet::read(root).map_err(|error| DataError::Files(error.to_string()))?;
    let split = |split: Split| {
        let record = match split {
            Split::Train => &set.train,
            Split::Test => &set.test,
        };
        let path = |what| root.join(DataSet::file_name(split.name(), what));
        let [channels, height, width] = set.shape;
        let (element, dtype, shape) = match set.numbers {
            Numbers::U8 => (Element::U8, "|u1", vec![record.samples, channels, height, width]),
            Numbers::F32 => (Element::F32, "<f4", vec![record.samples, channels * height * width]),
        };
        let open = |what, dtype| NpyFile::open(&path(what), &[dtype]);
        let (samples, labels) = (open("images", dtype)?, open("labels", "<u2")?);
        let unsuitable = |file, what| unsuitable(file, format!("{what}: import the data set again"));
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
        Ok(Rows { file: Arc::new(samples), labels: classes, element })
    };
    let splits = [split(Split::Train)?, split(Split::Test)?];
    let description = Description {
        kind: DataFormat::Imported,
        shape: set.shape,
        element: splits[0].element,
        classes: set.classes.len(),
        class_names: set.classes.clone(),
        mean: set.mean.clone(),
        std: set.std.clone(),
    };
    let mut source = SampleSource::of(description, splits);
    source.imported = Some(set);
    Ok(source)
}
