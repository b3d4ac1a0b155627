//! Burn's records (the saved state of a module, an optimizer or a scheduler) in files that only rank 0 reads
//! and writes.
//!
//! Beside the record `NAME`, the file `NAME.sha256` contains the kind of the record and its digest.

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::{ModuleRecord, RecordError};
use burn::tensor::Bytes;
use sha2::{Digest, Sha256};

use crate::calling::calling;
use crate::{CommError, World};

/// A record of Burn: of a module, an optimizer or a learning-rate scheduler.
pub trait Record: sealed::Recorded {}

mod sealed {
    use super::*;

    pub trait Recorded: Sized {
        /// The kind of the record, as `NAME.sha256` contains it.
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

/// Writes rank 0's `record` to a file. The `record` of other ranks is not used. Returns when the file is
/// complete. All ranks must call it.
///
/// The format is Burn's. A name without a suffix gets Burn's `.bpk`. `v1.2` has a suffix, `.2`. The file is
/// written under a temporary name, synced and renamed: a reader sees the old record or the new one. Beside
/// it, `NAME.sha256` contains the kind of the record and the file's digest (`sha256sum -c` reads it).
/// [`load_record`] uses this file to detect damage, and a record of another kind. A save that was interrupted
/// may leave a record without this file; it is loaded unchecked.
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
/// On all ranks, [`SharedError::Elsewhere`](crate::SharedError::Elsewhere) if rank 0 cannot write the file.
/// Other errors come from the transport.
pub fn save_record<R: Record>(world: &World, path: impl AsRef<Path>, record: R) -> Result<(), CommError> {
    let (path, _calling) = (&file_of(path.as_ref()), calling("save_record"));
    world.on_root(|| save(record, path).map_err(|error| described(path, error)))
}

/// Reads a record from a file on rank 0 and returns it on every rank. All ranks must call it. The other ranks
/// do not open `path`.
///
/// # Errors
/// On all ranks, [`SharedError::Elsewhere`](crate::SharedError::Elsewhere) if rank 0 cannot read the file, or
/// if the file is damaged or not a record of this kind. Other errors come from the transport.
pub fn load_record<R: Record>(world: &World, path: impl AsRef<Path>) -> Result<R, CommError> {
    let (path, _calling) = (&file_of(path.as_ref()), calling("load_record"));
    let bytes = world.on_root(|| read::<R>(path).map_err(|error| described(path, error)))?;
    let bytes = world.broadcast_bytes(bytes)?;
    let record = R::from_bytes(Bytes::from_bytes_vec(bytes));
    world.agree(record.map_err(|error| described(path, error)))
}

/// Returns `module` with the parameters, buffers and ids of a file that rank 0 reads, on every rank. All ranks
/// must call it. An optimizer finds its state by id, so load the optimizer too if it has made a step.
///
/// # Errors
/// The errors of [`load_record`]. Also an error if the record does not fit the `module` of a rank.
pub fn load_module<M: Module>(world: &World, path: impl AsRef<Path>, module: M) -> Result<M, CommError> {
    let (path, _calling) = (&file_of(path.as_ref()), calling("load_module"));
    let record = load_record::<ModuleRecord>(world, path)?;
    let loaded = module.try_load_record(record);
    world.agree(loaded.map_err(|error| described(path, format!("it is a record of another model: {error}"))))
}

/// Adds Burn's suffix if the path has none.
fn file_of(path: &Path) -> PathBuf {
    match path.extension() {
        None => path.with_extension("bpk"),
        Some(_) => path.to_owned(),
    }
}

/// Writes the record and its digest. The old digest is set aside first, so the record never has a wrong digest.
/// If the record cannot be written, the digest is put back. Until the new digest is written, the record has
/// none; [`load_record`] accepts such a record.
fn save<R: Record>(record: R, path: &Path) -> Result<(), RecordError> {
    let [digest, aside] = digests_of(path);
    for file in [&digest, &aside] {
        if file.is_dir() {
            return Err(failed(file, &io::ErrorKind::IsADirectory.into()));
        }
    }
    match fs::rename(&digest, &aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&digest, &error)),
        _ => {}
    }
    if let Err(error) = record.save(path) {
        // Burn may return an error although it has replaced the record, and an interrupted save may have left
        // the digest of another record.
        let fits = match [&aside, path].map(read_file) {
            [Ok(text), Ok(bytes)] => hash_in(&String::from_utf8_lossy(&text)) == Some(&sha256(&bytes)),
            _ => false,
        };
        let _ = if fits { fs::rename(&aside, &digest) } else { fs::remove_file(&aside) };
        return Err(error);
    }
    write_digest(path, R::KIND)
}

/// Returns the hash in the text of a digest file.
fn hash_in(text: &str) -> Option<&str> {
    text.lines().nth(1)?.split_whitespace().next()
}

/// Returns the digest file of a record, and the file of its old or incomplete digest.
fn digests_of(record: &Path) -> [PathBuf; 2] {
    ["sha256", "sha256.part"].map(|suffix| record.with_added_extension(suffix))
}

/// Reads the bytes of a record and checks them against its digest.
fn read<R: Record>(path: &Path) -> Result<Vec<u8>, RecordError> {
    let bytes = read_file(path)?;
    check_digest(path, &bytes, R::KIND)?;
    Ok(bytes)
}

fn described(path: &Path, error: impl Display) -> String {
    format!("{}: {error}", path.display())
}

fn failed(path: &Path, error: &io::Error) -> RecordError {
    RecordError::Io(format!("{}: {error}", path.display()))
}

/// Reads a regular file. Anything else is an error: opening a pipe would wait for a writer.
fn read_file(path: &Path) -> Result<Vec<u8>, RecordError> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            Err(RecordError::Io(format!("{} is not a regular file", path.display())))
        }
        _ => fs::read(path).map_err(|error| failed(path, &error)),
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the digest of a complete record, in the format of `sha256sum`, whose comments begin with `#`.
fn write_digest(record: &Path, kind: &str) -> Result<(), RecordError> {
    let [file, new] = digests_of(record);
    let name = record.file_name().unwrap_or_default().to_string_lossy();
    let text = format!("# {kind}\n{}  {name}\n", sha256(&read_file(record)?));
    // The digest that was set aside may be read-only.
    let _ = fs::remove_file(&new);
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&new, &file)).map_err(|error| {
        // The record itself is complete; only its digest is missing.
        let _ = fs::remove_file(&new);
        failed(&file, &error)
    })
}

/// Checks the `bytes` of a record against its digest. A record without a digest file is accepted: Burn itself
/// writes no digest.
fn check_digest(record: &Path, bytes: &[u8], kind: &str) -> Result<(), RecordError> {
    let [file, _] = digests_of(record);
    if let Ok(false) = file.try_exists() {
        return Ok(());
    }
    let text = read_file(&file)?;
    let text = String::from_utf8_lossy(&text);
    let found = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
    let expected = hash_in(&text).unwrap_or_default();
    if found != kind {
        return Err(RecordError::Io(match found {
            "" => format!(
                "the digest file {0} is damaged: save the record again, or remove {0}",
                file.display()
            ),
            found => format!("it is {found}, but {kind} is required"),
        }));
    }
    if sha256(bytes) == expected {
        return Ok(());
    }
    Err(RecordError::Io(format!(
        "it is damaged: its digest differs from the digest in {file}; use another copy of the record, or remove \
         {file} if the record was replaced on purpose",
        file = file.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::sealed::Recorded;
    use super::*;

    /// A record that cannot be written.
    struct Unwritable;

    impl Record for Unwritable {}

    impl Recorded for Unwritable {
        const KIND: &str = "a test's record";

        fn save(self, path: &Path) -> Result<(), RecordError> {
            Err(RecordError::Io(format!("{} cannot be written", path.display())))
        }

        fn from_bytes(_bytes: Bytes) -> Result<Self, RecordError> {
            Ok(Self)
        }
    }

    #[test]
    fn a_record_that_cannot_be_replaced_keeps_its_digest() {
        let folder = tempfolder("kept");
        let record = folder.join("o.bpk");
        fs::write(&record, b"moments").unwrap();
        save(Unwritable, &record).unwrap_err();
        assert!(!digests_of(&record)[0].exists(), "it had none");
        write_digest(&record, Unwritable::KIND).unwrap();
        save(Unwritable, &record).unwrap_err();
        assert!(digests_of(&record)[0].exists());
        read::<Unwritable>(&record).unwrap();
        // A save that was killed after it had replaced the record.
        let [digest, aside] = digests_of(&record);
        fs::rename(&digest, &aside).unwrap();
        fs::write(&record, b"newer moments").unwrap();
        save(Unwritable, &record).unwrap_err();
        read::<Unwritable>(&record).unwrap();
        fs::create_dir(&digest).unwrap();
        let error = save(Unwritable, &record).unwrap_err().to_string();
        assert!(error.contains("o.bpk.sha256: is a directory"), "{error}");
        fs::remove_dir(&digest).unwrap();
        write_digest(&record, Unwritable::KIND).unwrap();
        fs::write(&record, b"muments").unwrap();
        read::<Unwritable>(&record).map(drop).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
    }

    fn tempfolder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("burn-mpi-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn damage_and_another_kind_are_found_and_a_missing_digest_is_not() {
        let folder = tempfolder("digest");
        let record = folder.join("o.bpk");
        fs::write(&record, b"moments").unwrap();
        let (optimizer, module) = ("an optimizer's record", "a module's record");
        let check = |kind| check_digest(&record, &read_file(&record).unwrap(), kind);
        check(optimizer).expect("Burn's own files have no digest");
        write_digest(&record, optimizer).unwrap();
        check(optimizer).unwrap();
        let error = |kind| check(kind).unwrap_err().to_string();
        assert!([optimizer, module].iter().all(|kind| error(module).contains(kind)));
        fs::write(&record, b"muments").unwrap();
        assert!(error(optimizer).contains("digest") && error(optimizer).contains("o.bpk.sha256"));
        fs::write(record.with_added_extension("sha256"), "x").unwrap();
        assert!(error(optimizer).contains("o.bpk.sha256 is damaged"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
