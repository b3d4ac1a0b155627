//! `optimizer.safetensors`: the optimizer's moments in a checkpoint.
//!
//! Ranks may have a share of the moments each. So rank 0 writes the file one parameter after the other, in
//! any order, before the rest of the checkpoint, and reads it in the same way. It never needs memory for a
//! whole moment.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use tempfile::TempDir;

use super::tensor_file::read_header;
use super::{Layout, RecordError, files, folders};

/// Name of the file in a checkpoint's folder.
pub const OPTIMIZER: &str = "optimizer.safetensors";

/// Offset in the file of each moment's values of each tensor of the layout.
type Offsets = Vec<Vec<u64>>;

/// A file of moments that is being written, in a temporary folder beside the checkpoints. The folder is
/// removed if no checkpoint takes the file.
#[derive(Debug)]
pub struct NewMomentsFile {
    /// Path of the file in the checkpoint's folder, for errors.
    path: PathBuf,
    file: File,
    layout: Layout,
    offsets: Offsets,
    folder: TempDir,
}

/// A complete file of moments, which the next checkpoint takes.
#[derive(Debug)]
pub struct FinishedMomentsFile {
    folder: TempDir,
    /// SHA-256 of the file.
    pub(super) sha256: String,
}

impl NewMomentsFile {
    /// Creates the file of the checkpoint in the folder `checkpoint`, for moments with the names `moments`,
    /// of which each has the tensors of `layout`. All values are 0.
    ///
    /// # Errors
    /// If the file cannot be written, or the folder of checkpoints is a symbolic link.
    pub fn create(checkpoint: &Path, layout: &Layout, moments: &[String]) -> Result<Self, RecordError> {
        let path = checkpoint.join(OPTIMIZER);
        let failed = |e| RecordError::write(&path, e);
        let (header, offsets, end) = header(layout, moments).map_err(failed)?;
        let (folder, file) = folders::file_before(checkpoint, OPTIMIZER).map_err(failed)?;
        file.write_all_at(&header, 0).and_then(|()| file.set_len(end)).map_err(failed)?;
        Ok(Self { path, file, layout: layout.clone(), offsets, folder })
    }

    /// Writes the values of tensor `tensor` of the layout of moment `moment`, both by index.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, moment: usize, tensor: usize, values: &[f32]) -> Result<(), RecordError> {
        let spec = &self.layout.0[tensor];
        let mut bytes = Vec::with_capacity(size_of_val(values));
        spec.for_each(values, &spec.shape, |value| bytes.extend(value.to_le_bytes()));
        let written = self.file.write_all_at(&bytes, self.offsets[moment][tensor]);
        written.map_err(|e| RecordError::write(&self.path, e))
    }

    /// Ends the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(self) -> Result<FinishedMomentsFile, RecordError> {
        let Self { path, file, folder, .. } = self;
        let written = folder.path().join(OPTIMIZER);
        let digest = file.sync_all().and_then(|()| files::sha256_with(&[], File::open(written)?));
        let sha256 = digest.map_err(|e| RecordError::write(&path, e))?;
        Ok(FinishedMomentsFile { folder, sha256 })
    }
}

impl FinishedMomentsFile {
    /// Moves the file into the folder `to`.
    pub(super) fn move_to(&self, to: &Path) -> io::Result<()> {
        fs::rename(self.folder.path().join(OPTIMIZER), to.join(OPTIMIZER))
    }
}

/// Name of a tensor of a moment.
fn tensor_name(moment: &str, tensor: &str) -> String {
    format!("{moment}.{tensor}")
}

/// Returns the beginning of the file (the length of the header, and the header as JSON), the offsets of the
/// tensors, and the length of the file. The tensors are sorted by name, as safetensors sorts tensors of one
/// type.
fn header(layout: &Layout, moments: &[String]) -> io::Result<(Vec<u8>, Offsets, u64)> {
    let mut names: Vec<(String, usize, usize)> = Vec::new();
    for (moment, name) in moments.iter().enumerate() {
        let tensors = layout.0.iter().enumerate();
        names.extend(tensors.map(|(tensor, spec)| (tensor_name(name, &spec.name), moment, tensor)));
    }
    names.sort();
    let mut offsets = vec![vec![0; layout.0.len()]; moments.len()];
    let (mut infos, mut end) = (Vec::new(), 0);
    for (name, moment, tensor) in names {
        let spec = &layout.0[tensor];
        let begin = end;
        end += spec.range.len() * size_of::<f32>();
        offsets[moment][tensor] = begin as u64;
        let (dtype, shape, data_offsets) = (Dtype::F32, spec.file_shape(), (begin, end));
        infos.push((name, TensorInfo { dtype, shape, data_offsets }));
    }
    let metadata = Metadata::new(None, infos).map_err(io::Error::other)?;
    let mut text = serde_json::to_vec(&metadata)?;
    // The values begin at a multiple of 8 bytes.
    text.resize(text.len().next_multiple_of(size_of::<u64>()), b' ');
    let bytes = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
    let start = bytes.len() as u64;
    offsets.iter_mut().flatten().for_each(|offset| *offset += start);
    Ok((bytes, offsets, start + end as u64))
}

/// The moments of a checkpoint, open for reading.
#[derive(Debug)]
pub struct MomentsFile {
    path: PathBuf,
    file: File,
    layout: Layout,
    offsets: Offsets,
}

impl MomentsFile {
    /// Opens the moments with the names `moments` of the checkpoint in the folder `checkpoint`. Each has the
    /// tensors of `layout`.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or has no such tensors.
    pub fn open(checkpoint: &Path, layout: &Layout, moments: &[String]) -> Result<Self, RecordError> {
        let path = checkpoint.join(OPTIMIZER);
        let damaged = |what: String| RecordError::damaged(&path, what);
        let mut file = files::open_regular(&path).map_err(|e| RecordError::read(&path, e))?;
        let (metadata, start) = read_header(&path, &mut file)?;
        let mut offsets = vec![Vec::new(); moments.len()];
        for (moment, offsets) in moments.iter().zip(&mut offsets) {
            for spec in &layout.0 {
                let name = tensor_name(moment, &spec.name);
                let Some(info) = metadata.info(&name) else {
                    let what = "these are weights of another network";
                    return Err(damaged(format!("does not contain the tensor {name}: {what}")));
                };
                if info.shape != spec.file_shape() || info.dtype != Dtype::F32 {
                    return Err(damaged(format!(
                        "{name} is {:?} with shape {:?}, but this network needs F32 with shape {:?}",
                        info.dtype,
                        info.shape,
                        spec.file_shape()
                    )));
                }
                offsets.push(start + info.data_offsets.0 as u64);
            }
        }
        Ok(Self { path, file, layout: layout.clone(), offsets })
    }

    /// Reads the values of tensor `tensor` of the layout of moment `moment`, both by index, into `values`.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(&self, moment: usize, tensor: usize, values: &mut [f32]) -> Result<(), RecordError> {
        let spec = &self.layout.0[tensor];
        let mut bytes = vec![0; size_of_val(values)];
        let read = self.file.read_exact_at(&mut bytes, self.offsets[moment][tensor]);
        read.map_err(|e| RecordError::read(&self.path, e))?;
        let stored: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let mut slots = values.iter_mut();
        spec.for_each(&stored, &spec.file_shape(), |value| {
            slots.next().into_iter().for_each(|slot| *slot = value);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TensorSpec;
    use crate::tensor_file::encode;

    fn layout() -> Layout {
        let tensors = [("z.weight", vec![2, 3], true), ("a.bias", vec![3], false), ("m", vec![0], false)];
        let mut end = 0;
        let spec = |(name, shape, transposed): (&str, Vec<usize>, bool)| {
            let range = end..end + shape.iter().product::<usize>();
            end = range.end;
            TensorSpec { name: name.to_owned(), shape, range, transposed }
        };
        Layout(tensors.into_iter().map(spec).collect())
    }

    #[test]
    fn a_streamed_file_has_the_bytes_of_safetensors_and_comes_back() {
        let (root, layout) = (tempfile::tempdir().unwrap(), layout());
        let moments = ["second", "first"].map(str::to_owned);
        let values =
            [1.0, 2.0].map(|first: f32| (0..9).map(|at| first + at as f32 / 8.0).collect::<Vec<_>>());
        let mut new =
            NewMomentsFile::create(&root.path().join("a/step-00000001"), &layout, &moments).unwrap();
        // The last tensor of the first moment is never written: it has zeros.
        for (moment, tensor) in [(1, 2), (0, 0), (1, 0), (1, 1)] {
            new.write(moment, tensor, &values[moment][layout.0[tensor].range.clone()]).unwrap();
        }
        let finished = new.finish().unwrap();
        let checkpoint = root.path().join("step-00000001");
        fs::create_dir(&checkpoint).unwrap();
        finished.move_to(&checkpoint).unwrap();
        let [mut second, first] = values;
        second[6..].fill(0.0);
        let expected = [("second.".to_owned(), &second), ("first.".to_owned(), &first)];
        let bytes = fs::read(checkpoint.join(OPTIMIZER)).unwrap();
        assert_eq!(bytes, encode(Path::new("file"), &layout, &expected, None).unwrap());
        assert_eq!(files::sha256(&bytes), finished.sha256);
        let file = MomentsFile::open(&checkpoint, &layout, &moments).unwrap();
        for (moment, values) in [second, first].iter().enumerate() {
            for (tensor, spec) in layout.0.iter().enumerate() {
                let mut found = vec![9.0; spec.range.len()];
                file.read(moment, tensor, &mut found).unwrap();
                assert_eq!(found, values[spec.range.clone()]);
            }
        }
        let error = MomentsFile::open(&checkpoint, &layout, &["third".into()]).unwrap_err().to_string();
        assert!(error.contains("does not contain the tensor third.z.weight"), "{error}");
        let mut other = layout.clone();
        other.0[1].shape = vec![3, 1];
        let error = MomentsFile::open(&checkpoint, &other, &moments).unwrap_err().to_string();
        assert!(error.contains("second.a.bias is F32 with shape [3]"), "{error}");
        fs::write(checkpoint.join(OPTIMIZER), &bytes[..20]).unwrap();
        assert!(MomentsFile::open(&checkpoint, &layout, &moments).is_err());
    }
}
