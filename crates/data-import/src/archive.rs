//! Archives, unpacked beside the data set for as long as they are read.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::ImportError;
use crate::job::Job;

/// Bytes of a tar archive's first header, in which its magic number is.
const TAR_HEADER: usize = 512;

/// The kinds of archives.
enum Kind {
    Zip,
    Tar,
    TarGz,
}

/// The kind of archive that `path` is, by its first bytes.
fn kind(path: &Path) -> io::Result<Option<Kind>> {
    let beginning = |reader: &mut dyn Read| {
        let mut bytes = Vec::new();
        reader.take(TAR_HEADER as u64).read_to_end(&mut bytes).map(|_| bytes)
    };
    let is_tar = |bytes: &[u8]| bytes.get(257..262) == Some(b"ustar");
    let mut file = File::open(path)?;
    let bytes = beginning(&mut file)?;
    Ok(match &bytes[..] {
        [b'P', b'K', 3 | 5, ..] => Some(Kind::Zip),
        // What is no whole gz file is named where the table in it is read.
        [0x1f, 0x8b, ..] => {
            let inside = beginning(&mut MultiGzDecoder::new(BufReader::new(File::open(path)?)));
            inside.is_ok_and(|bytes| is_tar(&bytes)).then_some(Kind::TarGz)
        }
        bytes if is_tar(bytes) => Some(Kind::Tar),
        _ => None,
    })
}

/// Unpacks the source into a folder; `None` if it is no archive. Only files are unpacked, and none outside.
pub(crate) fn unpack(job: &Job<'_>) -> Result<Option<PathBuf>, ImportError> {
    let path = &*job.args.source;
    let Some(kind) = kind(path).map_err(ImportError::read(path))? else { return Ok(None) };
    let folder = job.folder("unpacked")?;
    log::info!("unpacking {}", path.display());
    let left =
        run_record::files::free_bytes(&folder).map_or(u64::MAX, |free| free.try_into().unwrap_or(u64::MAX));
    let mut target = Target { folder: &folder, archive: path, job, left, others: 0 };
    let file = BufReader::new(File::open(path).map_err(ImportError::read(path))?);
    match kind {
        Kind::Zip => target.zip(file)?,
        Kind::Tar => target.tar(file)?,
        Kind::TarGz => target.tar(MultiGzDecoder::new(file))?,
    }
    if target.others > 0 {
        log::warn!("left out: what is no file in the archive, such as links ({})", target.others);
    }
    Ok(Some(folder))
}

/// Where an archive is unpacked.
struct Target<'a> {
    folder: &'a Path,
    archive: &'a Path,
    job: &'a Job<'a>,
    /// Bytes that are free.
    left: u64,
    /// Entries that are no files.
    others: usize,
}

impl Target<'_> {
    fn invalid(&self, what: impl std::fmt::Display) -> ImportError {
        ImportError::source(self.archive, format!("cannot be unpacked: {what}"))
    }

    /// Writes a file of the archive.
    fn write(&mut self, name: &Path, size: u64, contents: &mut dyn Read) -> Result<(), ImportError> {
        self.job.step(0, 1)?;
        let Some(left) = self.left.checked_sub(size) else {
            bail!(
                self.archive,
                "holds more than there is free on the disk of --out: unpack it elsewhere, and import the folder"
            );
        };
        self.left = left;
        let path = self.folder.join(name);
        let parent = path.parent().unwrap_or(self.folder);
        fs::create_dir_all(parent).map_err(ImportError::write(parent))?;
        let mut file = File::create(&path).map_err(ImportError::write(&path))?;
        // An entry that says less than it has does not fill the disk.
        match io::copy(&mut contents.take(size), &mut file) {
            // A checksum is compared where the contents end.
            Ok(written) if written == size => match contents.read(&mut [0]) {
                Ok(0) => Ok(()),
                Ok(_) => Err(self.invalid(format!("{} is longer than it says", name.display()))),
                Err(error) => Err(self.invalid(format!("{}: {error}", name.display()))),
            },
            Ok(_) => Err(self.invalid(format!("{} is truncated", name.display()))),
            Err(error) => Err(self.invalid(format!("{}: {error}", name.display()))),
        }
    }

    fn zip(&mut self, file: BufReader<File>) -> Result<(), ImportError> {
        let mut archive = zip::ZipArchive::new(file).map_err(|error| self.invalid(error))?;
        if archive.index_for_name("[Content_Types].xml").is_some() {
            bail!(self.archive, "is a document or a spreadsheet: save the table as .csv");
        }
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).map_err(|error| self.invalid(error))?;
            match entry.enclosed_name() {
                _ if entry.is_dir() => {}
                Some(name) if entry.is_file() => {
                    let size = entry.size();
                    self.write(&name, size, &mut entry)?;
                }
                _ => self.others += 1,
            }
        }
        Ok(())
    }

    fn tar(&mut self, mut file: impl Read) -> Result<(), ImportError> {
        let mut archive = tar::Archive::new(&mut file);
        for entry in archive.entries().map_err(|error| self.invalid(error))? {
            let mut entry = entry.map_err(|error| self.invalid(error))?;
            let name = entry.path().map_err(|error| self.invalid(error))?.into_owned();
            let is_inside = name
                .components()
                .all(|part| matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir));
            match entry.header().entry_type() {
                tar::EntryType::Directory => {}
                kind if kind.is_file() && is_inside => {
                    let size = entry.size();
                    self.write(&name, size, &mut entry)?;
                }
                kind if kind.is_pax_global_extensions() => {}
                _ => self.others += 1,
            }
        }
        // The checksum of a .tar.gz is behind what fills up the archive.
        io::copy(&mut file.take(self.left), &mut io::sink()).map(drop).map_err(|error| self.invalid(error))
    }
}

/// The error with the path of the archive in place of that of the folder where it was unpacked.
pub(crate) fn renamed(error: ImportError, folder: &Path, archive: &Path) -> ImportError {
    let inside = |path: PathBuf| match path.strip_prefix(folder) {
        Ok(rest) if rest.as_os_str().is_empty() => archive.to_owned(),
        Ok(rest) => archive.join(rest),
        Err(_) => path,
    };
    match error {
        ImportError::Read { path, reason } => ImportError::Read { path: inside(path), reason },
        ImportError::Source { path, what } => ImportError::Source { path: inside(path), what },
        other => other,
    }
}
