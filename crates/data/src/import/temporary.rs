//! Makes unnamed temporary files. They hold the contents of a table that had to be decompressed or converted
//! before it can be read.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use crate::DataError;

/// Number of bytes that are copied at once.
const BLOCK: usize = 1 << 16;

/// Creates an empty file in the folder for temporary files.
pub(crate) fn file() -> Result<File, DataError> {
    tempfile::tempfile().map_err(failed)
}

/// Returns the error for a temporary file that cannot be written. The error names the folder, and the
/// environment variable that chooses another folder.
pub(crate) fn failed(error: io::Error) -> DataError {
    let folder = std::env::temp_dir();
    let what = format!(
        "cannot hold temporary files: {error}; free space there, or name another folder: TMPDIR=/path/to/folder"
    );
    DataError::source(&folder, what)
}

/// Copies `contents` to a temporary file and rewinds this file. `path` is the compressed file that `contents`
/// come from. If reading fails, the error names this file.
pub(crate) fn copy(path: &Path, mut contents: impl Read) -> Result<File, DataError> {
    let (mut file, mut block) = (file()?, vec![0; BLOCK]);
    loop {
        match contents.read(&mut block) {
            Ok(0) => break,
            Ok(bytes) => file.write_all(&block[..bytes]).map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(DataError::unpack(path)(error)),
        }
    }
    file.rewind().map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::names_all;

    #[test]
    fn an_error_of_a_temporary_file_names_the_folder_and_the_variable() {
        let message = failed(io::ErrorKind::StorageFull.into()).to_string();
        assert!(message.starts_with(&std::env::temp_dir().display().to_string()), "{message}");
        assert!(names_all(&message, "temporary files | TMPDIR="), "{message}");
    }

    #[test]
    fn an_error_of_the_packed_file_is_that_of_the_file() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::InvalidData.into())
            }
        }
        let error = copy(Path::new("a.csv.gz"), Broken).unwrap_err();
        assert!(
            matches!(&error, DataError::Damaged { path, .. } if path == Path::new("a.csv.gz")),
            "{error}"
        );
        let mut text = String::new();
        copy(Path::new("a.csv.gz"), &b"x,y"[..]).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "x,y");
    }
}
