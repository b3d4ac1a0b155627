//! Tensors of a checkpoint that differ between ranks: rank 0 writes them into one file and reads them from
//! it, one tensor after the other.

use std::collections::BTreeMap;

use super::Recorder;
use burn_mpi::{CommError, World};
use run_record::{FinishedRankFile, NewRankFile, RankFile, RankTensors, RecordError};

/// Tensors of one rank, by name.
pub type OwnTensors = BTreeMap<String, Vec<f32>>;

/// Writes `own`, the tensors of each rank, into a file that the checkpoint after `step` steps takes. Returns
/// the file on rank 0 and `None` on other ranks. If rank 0 cannot write, the other ranks send their tensors nevertheless,
/// and rank 0 returns the error inside the result, so that all ranks make the same calls.
///
/// # Errors
/// If the transport fails.
pub fn write<'a>(
    world: &World,
    recorder: &Recorder<'_>,
    step: usize,
    own: impl Iterator<Item = (String, &'a mut [f32])>,
) -> Result<Option<Result<FinishedRankFile, RecordError>>, CommError> {
    let mut own: Vec<(String, &mut [f32])> = own.collect();
    let lengths: RankTensors = own.iter().map(|(name, values)| (name.clone(), values.len())).collect();
    let all: Vec<RankTensors> = world.gather(&lengths)?;
    let mut file = recorder.writer.as_ref().map(|writer| writer.rank_file(step, &all));
    let mut received = Vec::new();
    for (rank, tensors) in all.iter().enumerate() {
        for (at, (_, length)) in tensors.iter().enumerate() {
            let values = if rank == world.rank() {
                &mut *own[at].1
            } else if world.is_root() {
                received.resize(*length, 0.0);
                &mut received[..]
            } else {
                continue;
            };
            world.pass_f32(values, rank, 0)?;
            if let Some(Ok(new)) = &mut file
                && let Err(error) = new.push(values)
            {
                file = Some(Err(error));
            }
        }
    }
    Ok(file.map(|file| file.and_then(NewRankFile::finish)))
}

/// Returns the tensors of this rank from the checkpoint's `file`, which rank 0 has open; empty if there is no
/// file.
///
/// # Errors
/// If the file cannot be read, or the transport fails.
pub fn read(world: &World, file: Option<&RankFile>) -> Result<OwnTensors, CommError> {
    let all: Vec<RankTensors> = world.broadcast(&file.map_or_else(Vec::new, RankFile::tensors))?;
    let (mut own, mut read) = (BTreeMap::new(), Ok(()));
    for (rank, tensors) in all.into_iter().enumerate() {
        for (name, length) in tensors {
            let is_own = rank == world.rank();
            if !is_own && !world.is_root() {
                continue;
            }
            let mut values = vec![0.0; length];
            if let (Some(file), Ok(())) = (file, &read) {
                read = file.read(rank, &name, &mut values);
            }
            world.pass_f32(&mut values, 0, rank)?;
            if is_own {
                own.insert(name, values);
            }
        }
    }
    world.agree(read).map(|()| own)
}
