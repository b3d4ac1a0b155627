//! `NAME.sha256` beside the record `NAME`: what it is a record of, and its digest.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use burn::store::RecordError;
use sha2::{Digest, Sha256};

fn failed(path: &Path, error: &io::Error) -> RecordError {
    RecordError::Io(format!("{}: {error}", path.display()))
}

/// The bytes of a regular file: opening a pipe would wait for a writer.
pub fn read(path: &Path) -> Result<Vec<u8>, RecordError> {
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

/// Removes the digest of a record that is about to be replaced.
pub fn remove(record: &Path) -> Result<(), RecordError> {
    let file = record.with_added_extension("sha256");
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&file, &error)),
        _ => Ok(()),
    }
}

/// Writes the digest of a complete record, in the format of `sha256sum`, whose comments begin with `#`.
pub fn write(record: &Path, kind: &str) -> Result<(), RecordError> {
    let [file, new] = ["sha256", "sha256.part"].map(|suffix| record.with_added_extension(suffix));
    let name = record.file_name().unwrap_or_default().to_string_lossy();
    let text = format!("# {kind}\n{}  {name}\n", sha256(&read(record)?));
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    written.and_then(|()| fs::rename(&new, &file)).map_err(|error| {
        // The record itself is complete.
        let _ = fs::remove_file(&new);
        failed(&file, &error)
    })
}

/// Checks the `bytes` of a record against its digest; one that Burn itself has written has none.
pub fn check(record: &Path, bytes: &[u8], kind: &str) -> Result<(), RecordError> {
    let file = record.with_added_extension("sha256");
    if let Ok(false) = file.try_exists() {
        return Ok(());
    }
    let text = read(&file)?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    let found = lines.next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
    let expected = lines.next().and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    if found != kind {
        return Err(RecordError::Io(match found {
            "" => format!("{} is damaged: save the record again, or remove that file", file.display()),
            found => format!("it is {found}, and {kind} is expected"),
        }));
    }
    if sha256(bytes) == expected {
        return Ok(());
    }
    Err(RecordError::Io(format!(
        "it is damaged: {} has another digest; use another copy, or remove that file if the record was replaced on \
         purpose",
        file.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_and_another_kind_are_found_and_a_missing_digest_is_not() {
        let folder = std::env::temp_dir().join(format!("burn-mpi-digest-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let record = folder.join("o.bpk");
        fs::write(&record, b"moments").unwrap();
        let (optimizer, module) = ("an optimizer's record", "a module's record");
        let check = |kind| check(&record, &read(&record).unwrap(), kind);
        check(optimizer).expect("Burn's own files have no digest");
        write(&record, optimizer).unwrap();
        check(optimizer).unwrap();
        let of = |kind| check(kind).unwrap_err().to_string();
        assert!(of(module).contains("an optimizer's record, and a module's record is expected"));
        fs::write(&record, b"muments").unwrap();
        assert!(of(optimizer).contains("damaged: ") && of(optimizer).contains("o.bpk.sha256"));
        fs::write(record.with_added_extension("sha256"), "x").unwrap();
        assert!(of(optimizer).contains("o.bpk.sha256 is damaged"));
        remove(&record).unwrap();
        remove(&record).unwrap();
        check(module).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
