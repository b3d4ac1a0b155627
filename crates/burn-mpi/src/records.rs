//! Burn's records in files of rank 0, for all ranks.

mod digest;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Bytes;

use crate::calling::calling;
use crate::{CommError, World};

/// A record of Burn: of a module, an optimizer or a learning-rate scheduler.
pub trait Record: sealed::Recorded {}

mod sealed {
    use super::*;

    pub trait Recorded: Sized {
        /// What it is a record of, as its digest's file says.
        const KIND: &'static str;
        fn from_bytes(bytes: Bytes) -> Result<Self, RecordError>;
        fn save(self, path: &Path) -> Result<(), RecordError>;
    }
}

macro_rules! records {
    ($($record:ty = $kind:literal),*) => {$(
        impl Record for $record {}

        impl sealed::Recorded for $record {
            const KIND: &'static str = $kind;

            fn from_bytes(bytes: Bytes) -> Result<Self, RecordError> {
                <$record>::from_bytes(bytes)
            }

            fn save(self, path: &Path) -> Result<(), RecordError> {
                <$record>::save(self, path)
            }
        }
    )*};
}

records!(
    ModuleRecord = "a module's record",
    OptimizerRecord = "an optimizer's record",
    LrSchedulerRecord = "a learning-rate scheduler's record"
);

/// Writes rank 0's `record` into a file; the other ranks' is not read. Returns when it is complete.
/// All ranks must call it.
///
/// The format is Burn's. A name without a suffix gets Burn's `.bpk`; `v1.2` has one. The file is
/// written under a temporary name, synced and renamed: a reader sees the old or the new one. Beside
/// it, `NAME.sha256` has the kind of the record and the file's digest (`sha256sum -c` reads it), by
/// which [`load_record`] finds damage and a record of another kind.
///
/// ```no_run
/// # use burn::{module::Module, optim::ModuleOptimizer};
/// # use burn_mpi::{CommError, World, load_module, load_record, save_record};
/// # fn example<M: Module>(world: &World, model: M, optimizer: ModuleOptimizer) -> Result<(), CommError> {
/// save_record(world, "model", model.clone().into_record())?;
/// save_record(world, "optimizer", optimizer.to_record())?;
/// // Later, in another job: first the module, whose ids the optimizer's record refers to.
/// let model = load_module(world, "model", model)?;
/// let optimizer = optimizer.load_record(load_record(world, "optimizer")?);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// On all ranks, [`SharedError::Elsewhere`](crate::SharedError::Elsewhere) if rank 0 cannot write it. Otherwise if the transport fails.
pub fn save_record<R: Record>(world: &World, path: impl AsRef<Path>, record: R) -> Result<(), CommError> {
    let (path, _calling) = (&file_of(path.as_ref()), calling("save_record"));
    world.on_root(|| save(record, path).map_err(|error| described(path, error)))
}

/// The record of a file that rank 0 reads, on every rank. All ranks must call it; the other ranks'
/// `path` is not used.
///
/// # Errors
/// On all ranks, [`SharedError::Elsewhere`](crate::SharedError::Elsewhere) if rank 0 cannot read the file, or it is not a record.
/// Otherwise if the transport fails.
pub fn load_record<R: Record>(world: &World, path: impl AsRef<Path>) -> Result<R, CommError> {
    let (path, _calling) = (&file_of(path.as_ref()), calling("load_record"));
    let bytes = world.on_root(|| read::<R>(path).map_err(|error| described(path, error)))?;
    let bytes = world.broadcast_bytes(bytes)?;
    let record = R::from_bytes(Bytes::from_bytes_vec(bytes));
    world.agree(record.map_err(|error| described(path, error)))
}

/// `module` with the parameters and buffers of a file that rank 0 reads, on every rank. All ranks
/// must call it.
///
/// # Errors
/// As [`load_record`], and if the file has another model than any rank's.
pub fn load_module<M: Module>(world: &World, path: impl AsRef<Path>, module: M) -> Result<M, CommError> {
    let (path, _calling) = (&file_of(path.as_ref()), calling("load_module"));
    let record = load_record::<ModuleRecord>(world, path)?;
    let loaded = module.try_load_record(record);
    world.agree(loaded.map_err(|error| described(path, format!("it has another model: {error}"))))
}

/// Burn's name of the file.
fn file_of(path: &Path) -> PathBuf {
    match path.extension() {
        None => path.with_extension("bpk"),
        Some(_) => path.to_owned(),
    }
}

/// Writes the record and its digest. Between the two there is no digest rather than a wrong one.
fn save<R: Record>(record: R, path: &Path) -> Result<(), RecordError> {
    digest::remove(path)?;
    record.save(path)?;
    digest::write(path, R::KIND)
}

/// The bytes of a record in a file.
fn read<R: Record>(path: &Path) -> Result<Vec<u8>, RecordError> {
    let bytes = digest::read(path)?;
    digest::check(path, &bytes, R::KIND)?;
    Ok(bytes)
}

fn described(path: &Path, error: impl Display) -> String {
    format!("{}: {error}", path.display())
}
