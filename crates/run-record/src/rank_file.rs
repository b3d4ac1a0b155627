//! `ranks.safetensors`: tensors of a checkpoint that differ between ranks, such as the parameters of each
//! rank between two synchronisations.
//!
//! Tensor `params` of rank 2 is named `rank2.params`. All tensors are flat f32. Rank 0 writes one tensor
//! after the other, before the rest of the checkpoint, so it needs memory for the tensors of one rank only.
//! It reads them in the same way.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::tensor_file::read_header;
use super::{RecordError, files, folders};

/// Name of the file in a checkpoint's folder.
pub const RANKS: &str = "ranks.safetensors";

/// Names and lengths of one rank's tensors.
pub type RankTensors = Vec<(String, usize)>;

/// A rank file that is being written, in a temporary folder beside the checkpoints. The folder is removed if
/// no checkpoint takes the file.
#[derive(Debug)]
pub struct NewRankFile {
    file: BufWriter<File>,
    digest: Sha256,
    folder: TempDir,
    /// The path in errors.
    path: PathBuf,
}

/// A complete rank file, which the next checkpoint takes.
#[derive(Debug)]
pub struct FinishedRankFile {
    folder: TempDir,
    /// SHA-256 of the file.
    pub(super) sha256: String,
}

impl NewRankFile {
    /// Creates the file of the checkpoint in the folder `checkpoint`, for the `tensors` of all ranks, in rank
    /// order.
    ///
    /// # Errors
    /// If the file cannot be written, or the folder of checkpoints is a symbolic link.
    pub fn create(checkpoint: &Path, tensors: &[RankTensors]) -> Result<Self, RecordError> {
        let path = checkpoint.join(RANKS);
        let (folder, file) =
            folders::file_before(checkpoint, RANKS).map_err(|e| RecordError::write(&path, e))?;
        let mut new = Self { file: BufWriter::new(file), digest: Sha256::new(), folder, path };
        new.write(&header(tensors))?;
        Ok(new)
    }

    /// Appends the values of the next tensor, in the order of the tensors of [`create`](Self::create).
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn push(&mut self, values: &[f32]) -> Result<(), RecordError> {
        self.write(bytemuck::cast_slice(values))
    }

    /// Ends the file after its last tensor.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(self) -> Result<FinishedRankFile, RecordError> {
        let written = self.file.into_inner().map_err(io::IntoInnerError::into_error);
        written.and_then(|file| file.sync_all()).map_err(|e| RecordError::write(&self.path, e))?;
        Ok(FinishedRankFile { folder: self.folder, sha256: files::hex(self.digest.finalize()) })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        self.digest.update(bytes);
        self.file.write_all(bytes).map_err(|e| RecordError::write(&self.path, e))
    }
}

impl FinishedRankFile {
    /// Moves the file into the folder `to`.
    pub(super) fn move_to(&self, to: &Path) -> io::Result<()> {
        fs::rename(self.folder.path().join(RANKS), to.join(RANKS))
    }
}

/// Returns the beginning of a safetensors file: the length of the header, and the header as JSON.
fn header(tensors: &[RankTensors]) -> Vec<u8> {
    let (mut entries, mut end) = (serde_json::Map::new(), 0);
    for (rank, tensors) in tensors.iter().enumerate() {
        for (name, length) in tensors {
            let begin = end;
            end += length * size_of::<f32>();
            let entry = json!({ "dtype": "F32", "shape": [length], "data_offsets": [begin, end] });
            entries.insert(format!("rank{rank}.{name}"), entry);
        }
    }
    let mut text = serde_json::Value::Object(entries).to_string().into_bytes();
    // The values begin at a multiple of 8 bytes.
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text].concat()
}

/// The rank file of a checkpoint, open for reading.
#[derive(Debug)]
pub struct RankFile {
    path: PathBuf,
    file: File,
    /// For each rank, offset in the file and length of its tensors, by name.
    tensors: Vec<BTreeMap<String, (u64, usize)>>,
}

impl RankFile {
    /// Opens the rank file of the checkpoint in the folder `checkpoint`, which belongs to a run of `ranks`
    /// ranks. `None` if the checkpoint has no rank file.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or has tensors of other ranks.
    pub fn open(checkpoint: &Path, ranks: usize) -> Result<Option<Self>, RecordError> {
        let path = checkpoint.join(RANKS);
        let damaged = |what: &str| RecordError::damaged(&path, what.into());
        let file = files::if_there(files::open_regular(&path));
        let Some(mut file) = file.map_err(|e| RecordError::read(&path, e))? else { return Ok(None) };
        let (metadata, start) = read_header(&path, &mut file)?;
        let mut tensors = vec![BTreeMap::new(); ranks];
        for (name, info) in metadata.tensors() {
            let rank = name.strip_prefix("rank").and_then(|rest| rest.split_once('.'));
            let rank = rank.and_then(|(rank, name)| Some((rank.parse::<usize>().ok()?, name)));
            let Some((own, name)) = rank.and_then(|(rank, name)| Some((tensors.get_mut(rank)?, name))) else {
                return Err(damaged(&format!("contains {name}, which is no tensor of one of {ranks} ranks")));
            };
            let (begin, end) = info.data_offsets;
            own.insert(name.to_owned(), (start + begin as u64, (end - begin) / size_of::<f32>()));
        }
        Ok(Some(Self { path, file, tensors }))
    }

    /// Returns names and lengths of the tensors of each rank.
    pub fn tensors(&self) -> Vec<RankTensors> {
        let of_rank = |tensors: &BTreeMap<String, (u64, usize)>| {
            tensors.iter().map(|(name, (_, length))| (name.clone(), *length)).collect()
        };
        self.tensors.iter().map(of_rank).collect()
    }

    /// Reads the tensor `name` of `rank` into `values`, which has its length.
    ///
    /// # Errors
    /// If there is no such tensor of this length, or the file cannot be read.
    pub fn read(&self, rank: usize, name: &str, values: &mut [f32]) -> Result<(), RecordError> {
        let found = self.tensors.get(rank).and_then(|tensors| tensors.get(name));
        let Some((start, _)) = found.filter(|(_, length)| *length == values.len()) else {
            let what = format!("does not contain {} values of rank{rank}.{name}", values.len());
            return Err(RecordError::damaged(&self.path, what));
        };
        let read = self.file.read_exact_at(bytemuck::cast_slice_mut(values), *start);
        read.map_err(|e| RecordError::read(&self.path, e))
    }
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;
    use crate::checkpoint::{reduce, verify};
    use crate::{Checkpoint, Layout, SaveOptions};

    fn tensors(lengths: &[&[(&str, usize)]]) -> Vec<RankTensors> {
        let of_rank = |tensors: &&[(&str, usize)]| {
            tensors.iter().map(|(name, length)| ((*name).to_owned(), *length)).collect()
        };
        lengths.iter().map(of_rank).collect()
    }

    fn written(checkpoints: &Path, tensors: &[RankTensors]) -> FinishedRankFile {
        let mut new = NewRankFile::create(&checkpoints.join("step-00000001"), tensors).unwrap();
        let mut next = 0.5;
        for (_, length) in tensors.iter().flatten() {
            let values: Vec<f32> = (0..*length).map(|at| next + at as f32).collect();
            next += 100.0;
            new.push(&values).unwrap();
        }
        new.finish().unwrap()
    }

    #[test]
    fn tensors_of_each_rank_come_back() {
        let root = tempfile::tempdir().unwrap();
        let tensors = tensors(&[&[("a", 3), ("b.c", 1)], &[], &[("a", 0), ("z", 5)]]);
        let finished = written(&root.path().join("checkpoints"), &tensors);
        let checkpoint = root.path().join("step-00000001");
        fs::create_dir(&checkpoint).unwrap();
        assert!(RankFile::open(&checkpoint, 3).unwrap().is_none());
        finished.move_to(&checkpoint).unwrap();
        let bytes = fs::read(checkpoint.join(RANKS)).unwrap();
        assert_eq!(files::sha256(&bytes), finished.sha256);
        // Other programs read it too.
        let other = SafeTensors::deserialize(&bytes).unwrap();
        let z: Vec<f32> = other
            .tensor("rank2.z")
            .unwrap()
            .data()
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(z, [300.5, 301.5, 302.5, 303.5, 304.5]);
        let file = RankFile::open(&checkpoint, 3).unwrap().unwrap();
        assert_eq!(file.tensors(), tensors);
        let mut values = [0.0; 3];
        file.read(0, "a", &mut values).unwrap();
        assert_eq!(values, [0.5, 1.5, 2.5]);
        for (rank, name, length) in [(1, "a", 3), (0, "a", 2), (3, "a", 0), (0, "x", 1)] {
            assert!(file.read(rank, name, &mut vec![0.0; length]).unwrap_err().is_damage(), "{rank} {name}");
        }
        let error = RankFile::open(&checkpoint, 2).unwrap_err().to_string();
        assert!(error.contains("rank2.") && error.contains("2 ranks"), "{error}");
        fs::write(checkpoint.join(RANKS), &bytes[..20]).unwrap();
        assert!(RankFile::open(&checkpoint, 3).is_err());
    }

    #[test]
    fn a_checkpoint_checks_its_rank_file_until_a_sweep_removes_it() {
        let root = tempfile::tempdir().unwrap();
        let finished = written(root.path(), &tensors(&[&[("a", 3)], &[("a", 2)]]));
        let checkpoint = Checkpoint {
            model: "m".into(),
            world_size: 2,
            updates: 1,
            moments: Vec::new(),
            position: 7u8,
            params: Vec::new(),
        };
        let options = SaveOptions { ranks: Some(&finished), step: 1, ..SaveOptions::default() };
        let path = checkpoint.save(root.path(), &Layout(Vec::new()), &options).unwrap();
        let file = path.join(RANKS);
        assert!(verify(&path).unwrap().files.contains_key(RANKS));
        let bytes = fs::read(&file).unwrap();
        let last = bytes.len() - 1;
        for damaged in [&bytes[..last], &[&bytes[..last], &[!bytes[last]]].concat()] {
            fs::write(&file, damaged).unwrap();
            let error = verify(&path).unwrap_err();
            assert!(error.is_damage() && error.to_string().contains(RANKS), "{error}");
        }
        fs::write(&file, bytes).unwrap();
        reduce(root.path(), &[]).unwrap();
        assert!(!file.exists() && !verify(&path).unwrap().files.contains_key(RANKS));
    }

    #[test]
    fn a_file_that_no_checkpoint_takes_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let tensors = tensors(&[&[("a", 3)]]);
        drop(written(root.path(), &tensors));
        drop(NewRankFile::create(&root.path().join("step-00000001"), &tensors).unwrap());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
