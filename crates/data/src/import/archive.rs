//! Recognises and unpacks an archive that is to be imported. Errors about its files then name the archive
//! instead of the temporary folder.

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use run_record::files::open_regular;

use crate::DataError;
use crate::import::job::Job;
use crate::import::unpack;

/// Size in bytes of the first header of a tar archive. The header contains the magic number.
const TAR_HEADER: usize = 512;

/// Kinds of archives.
pub(super) enum ArchiveKind {
    Zip,
    Tar,
    TarGz,
}

/// Returns the kind of the archive `path` from its first bytes, or `None` if it is not an archive.
fn kind(path: &Path) -> io::Result<Option<ArchiveKind>> {
    let beginning = |reader: &mut dyn Read| {
        let mut bytes = Vec::new();
        reader.take(TAR_HEADER as u64).read_to_end(&mut bytes).map(|_| bytes)
    };
    let is_tar = |bytes: &[u8]| bytes.get(257..262) == Some(b"ustar");
    let mut file = open_regular(path)?;
    let bytes = beginning(&mut file)?;
    Ok(match &bytes[..] {
        [b'P', b'K', 3 | 5, ..] => Some(ArchiveKind::Zip),
        // A damaged .gz file does not count as an archive. It is read as a table later, and the reader
        // reports the damage.
        [0x1f, 0x8b, ..] => {
            let inside = beginning(&mut MultiGzDecoder::new(BufReader::new(open_regular(path)?)));
            inside.is_ok_and(|bytes| is_tar(&bytes)).then_some(ArchiveKind::TarGz)
        }
        bytes if is_tar(bytes) => Some(ArchiveKind::Tar),
        _ => None,
    })
}

/// Unpacks the source into a temporary folder of the import. Returns the folder, or `None` if the source is
/// not an archive. Only regular files are unpacked, and no file is written outside of the folder.
pub(crate) fn unpack(job: &Job<'_>) -> Result<Option<PathBuf>, DataError> {
    let path = &*job.args.source;
    let Some(kind) = kind(path).map_err(DataError::read(path))? else { return Ok(None) };
    unpack::into_folder(kind, job).map(Some)
}

/// Returns `error` with the archive's path instead of `folder`, the folder into which the archive was
/// unpacked. Changes both the path and the text of the error.
pub(crate) fn renamed(error: DataError, folder: &Path, archive: &Path) -> DataError {
    let inside = |path: PathBuf| match path.strip_prefix(folder) {
        Ok(rest) if rest.as_os_str().is_empty() => archive.to_owned(),
        Ok(rest) => archive.join(rest),
        Err(_) => path,
    };
    // The text of the error may name another file of the archive.
    let named = |what: String| what.replace(&*folder.to_string_lossy(), &archive.to_string_lossy());
    match error {
        DataError::Read { path, reason } => DataError::Read { path: inside(path), reason },
        DataError::Source { path, what } => DataError::Source { path: inside(path), what: named(what) },
        DataError::Damaged { path, what } => DataError::Damaged { path: inside(path), what: named(what) },
        DataError::Option { option, value, problem } => {
            DataError::Option { option, value, problem: named(problem) }
        }
        other => other,
    }
}
