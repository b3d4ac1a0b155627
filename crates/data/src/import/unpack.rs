//! Unpacks archives into a folder of the import. The folder is removed when the import ends.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use run_record::count;
use run_record::files::open_regular;
use zip::result::ZipError;

use super::archive::ArchiveKind;
use super::job::{Job, UNPACKED};
use crate::DataError;
use crate::error::damage;
use crate::quote::short;

/// Unpacks the source, which is an archive of the kind `kind`, and returns the folder with its files. Only
/// regular files are unpacked, and no file is written outside of the folder.
pub(super) fn into_folder(kind: ArchiveKind, job: &Job<'_>) -> Result<PathBuf, DataError> {
    let path = &*job.args.source;
    let folder = job.folder(UNPACKED)?;
    log::info!("unpacking {}", path.display());
    let left =
        run_record::files::free_bytes(&folder).map_or(u64::MAX, |free| free.try_into().unwrap_or(u64::MAX));
    let mut target = Target { folder: &folder, archive: path, job, left, links: 0, outside: Vec::new() };
    let file = BufReader::new(open_regular(path).map_err(DataError::read(path))?);
    match kind {
        ArchiveKind::Zip => target.zip(file)?,
        ArchiveKind::Tar => target.tar(file)?,
        ArchiveKind::TarGz => target.tar(MultiGzDecoder::new(file))?,
    }
    if target.links > 0 {
        log::warn!("left out: {} in the archive: links are not followed", count(target.links, "link"));
    }
    if let [first, ..] = &target.outside[..] {
        let number = count(target.outside.len(), "file");
        log::warn!("left out: {number} with a path outside of the archive (the first: {})", short(first));
    }
    Ok(folder)
}

/// The folder that an archive is unpacked to, and what was left out.
struct Target<'a> {
    folder: &'a Path,
    archive: &'a Path,
    job: &'a Job<'a>,
    /// Free bytes on the disk, minus the sizes of the files unpacked so far.
    left: u64,
    /// Number of entries that are links or devices.
    links: usize,
    /// Names of entries that lead out of the folder.
    outside: Vec<String>,
}

/// Returns the relative path for the name of an entry, or `None` if the name leads out of the folder. Some
/// Windows programs write `a\1.png`. As in Info-ZIP's unzip, a backslash is a separator if the name has no
/// slash.
fn inside(name: &str) -> Option<PathBuf> {
    let replaced = if name.contains('/') { name.to_owned() } else { name.replace('\\', "/") };
    let is_drive = replaced.as_bytes().get(1) == Some(&b':') && replaced.as_bytes()[0].is_ascii_alphabetic();
    let mut path = PathBuf::new();
    for part in replaced.split('/') {
        match part {
            "" | "." => {}
            ".." if !path.pop() => return None,
            ".." => {}
            part => path.push(part),
        }
    }
    let is_file = !path.as_os_str().is_empty();
    (is_file && !is_drive && !replaced.starts_with('/') && !replaced.contains('\0')).then_some(path)
}

/// Returns the name of an entry. A name that is valid UTF-8 is read as UTF-8, even if the entry's flag for
/// UTF-8 is not set. macOS does not set this flag. Other names are in code page 437.
fn name<R: Read + ?Sized>(entry: &zip::read::ZipFile<'_, R>) -> String {
    let raw = entry.name_raw();
    let name = std::str::from_utf8(raw).ok().map(str::to_owned);
    name.or_else(|| Some(entry.name().ok()?.into_owned()))
        .unwrap_or_else(|| String::from_utf8_lossy(raw).into_owned())
}

impl Target<'_> {
    /// Returns the error for an archive, or a file in it, that cannot be read.
    fn failed(&self, file: Option<&Path>, error: &io::Error) -> DataError {
        let of_zip = error.get_ref().and_then(|error| error.downcast_ref());
        if let Some(error @ ZipError::CompressionMethodNotSupported(_)) = of_zip {
            return self.of_zip(error.clone());
        }
        let file = file.map_or_else(|| "it".into(), |file| short(&file.to_string_lossy()).into_owned());
        match damage(error) {
            Some(what) => self.damaged(&format!("{file} {what}")),
            None => DataError::source(self.archive, format!("cannot be unpacked: {file}: {error}")),
        }
    }

    fn damaged(&self, what: &str) -> DataError {
        DataError::damaged(self.archive, format!("cannot be unpacked: {what}"))
    }

    /// Writes one file of the archive.
    fn write(&mut self, name: &Path, size: u64, contents: &mut dyn Read) -> Result<(), DataError> {
        self.job.step(0, 1)?;
        let Some(left) = self.left.checked_sub(size) else {
            bail!(
                self.archive,
                "needs more space than is free on the disk of --out: unpack it elsewhere, and import the folder"
            );
        };
        self.left = left;
        let path = self.folder.join(name);
        let parent = path.parent().unwrap_or(self.folder);
        fs::create_dir_all(parent).map_err(DataError::write(parent))?;
        let mut file = File::create(&path).map_err(DataError::write(&path))?;
        // Copy at most the declared size, so that an entry that contains more cannot fill the disk.
        match io::copy(&mut contents.take(size), &mut file) {
            // Read once more: decoders check the checksum only when a read reaches the end of the contents.
            Ok(written) if written == size => match contents.read(&mut [0]) {
                Ok(0) => Ok(()),
                Ok(_) => Err(self.failed(Some(name), &io::ErrorKind::InvalidData.into())),
                Err(error) => Err(self.failed(Some(name), &error)),
            },
            Ok(_) => Err(self.failed(Some(name), &io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.failed(Some(name), &error)),
        }
    }

    fn of_zip(&self, error: ZipError) -> DataError {
        let what = match error {
            ZipError::Io(error) => return self.failed(None, &error),
            ZipError::UnsupportedArchive(what) => {
                format!("is a zip archive of a kind that is not supported ({what})")
            }
            ZipError::CompressionMethodNotSupported(method) => {
                format!("uses zip compression method {method}, which is not supported")
            }
            ZipError::InvalidArchive(what) if what.contains("Multi-disk") => {
                "is one part of a multi-part zip archive, or is damaged".into()
            }
            _ => return self.damaged("it is damaged"),
        };
        let what = format!("{what}: unpack it with another program, and import the folder");
        DataError::source(self.archive, what)
    }

    fn zip(&mut self, file: BufReader<File>) -> Result<(), DataError> {
        let mut archive = zip::ZipArchive::new(file).map_err(|error| self.of_zip(error))?;
        if archive.index_for_name("[Content_Types].xml").is_some() {
            bail!(self.archive, "is a document or a spreadsheet: save the table as .csv");
        }
        for index in 0..archive.len() {
            if archive.by_index_raw(index).is_ok_and(|entry| entry.encrypted()) {
                bail!(self.archive, "is encrypted: unpack it with its password, and import the folder");
            }
            let mut entry = archive.by_index(index).map_err(|error| self.of_zip(error))?;
            let name = name(&entry);
            match inside(&name) {
                _ if entry.is_dir() => {}
                _ if !entry.is_file() => self.links += 1,
                None => self.outside.push(name),
                Some(path) => {
                    let size = entry.size();
                    self.write(&path, size, &mut entry)?;
                }
            }
        }
        Ok(())
    }

    fn tar(&mut self, mut file: impl Read) -> Result<(), DataError> {
        let mut archive = tar::Archive::new(&mut file);
        for entry in archive.entries().map_err(|error| self.failed(None, &error))? {
            let mut entry = entry.map_err(|error| self.failed(None, &error))?;
            let name = entry.path().map_err(|error| self.failed(None, &error))?.into_owned();
            let is_inside = name
                .components()
                .all(|part| matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir));
            match entry.header().entry_type() {
                tar::EntryType::Directory => {}
                kind if kind.is_file() && is_inside => {
                    let size = entry.size();
                    self.write(&name, size, &mut entry)?;
                }
                kind if kind.is_file() => self.outside.push(name.to_string_lossy().into_owned()),
                kind if kind.is_pax_global_extensions() => {}
                _ => self.links += 1,
            }
        }
        // The gzip checksum of a .tar.gz follows the padding of the tar archive: read to the end to check it.
        io::copy(&mut file.take(self.left), &mut io::sink())
            .map(drop)
            .map_err(|error| self.failed(None, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_entries_are_paths_in_the_folder_or_none() {
        for (name, expected) in [
            ("a/1.png", Some("a/1.png")),
            ("./a//1.png", Some("a/1.png")),
            ("a\\b\\1.png", Some("a/b/1.png")),
            ("a/b\\1.png", Some("a/b\\1.png")),
            ("a/../1.png", Some("1.png")),
            ("../1.png", None),
            ("..\\1.png", None),
            ("a/../../1.png", None),
            ("/1.png", None),
            ("\\1.png", None),
            ("C:\\a\\1.png", None),
            ("..", None),
        ] {
            assert_eq!(inside(name), expected.map(PathBuf::from), "{name}");
        }
    }
}
