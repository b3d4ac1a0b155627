//! Writes files of a run directory only in the directory itself, never where a link leads.
//!
//! A run directory may contain links that its owner or somebody else put there. Writing through a link would
//! overwrite a file outside the directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const SYMBOLIC: &str = "it is a symbolic link, and mpiburn does not write through links: replace the link by what \
                        it points to";
const HARD: &str = "it is a hard link, and mpiburn does not write through links: replace the link by a copy of the \
                    file";
const IRREGULAR: &str = "it is not a regular file: choose another name, or remove it";

fn in_the_way(what: &str) -> io::Error {
    io::Error::new(ErrorKind::AlreadyExists, what)
}

/// Checks that `path` is a regular file or a folder, or does not exist.
///
/// # Errors
/// If `path` is a symbolic link, a pipe or a device.
pub fn refuse_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(in_the_way(SYMBOLIC)),
        Ok(found) if !found.is_file() && !found.is_dir() => Err(in_the_way(IRREGULAR)),
        _ => Ok(()),
    }
}

/// Opens a regular file for writing and does not follow a symbolic link.
///
/// The open call itself fails at a link, so a link that is created after a check of the path has no effect.
/// Opening a pipe does not wait for its reader.
///
/// # Errors
/// If the file cannot be opened, or is a symbolic link, a hard link, a pipe or a device.
pub fn open_here(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => in_the_way(SYMBOLIC),
        Some(Errno::NXIO) => in_the_way(IRREGULAR),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(in_the_way(IRREGULAR));
    }
    if found.nlink() > 1 { Err(in_the_way(HARD)) } else { Ok(file) }
}

/// Creates the file `path`, or empties it. Opens it with [`open_here`].
///
/// # Errors
/// If [`open_here`] returns an error, or the file cannot be emptied.
pub fn create_here(path: &Path) -> io::Result<File> {
    // `truncate(true)` would empty the target of a hard link before the link is detected.
    let file = open_here(path, File::options().write(true).create(true).truncate(false))?;
    file.set_len(0)?;
    Ok(file)
}

/// Replaces the content of the file `path`, or creates the file. Fails if `path` is a link.
///
/// # Errors
/// If it cannot be written.
pub fn write_here(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create_here(path)?.write_all(bytes)
}

/// Appends to `path`, and creates it if it is missing. Fails if `path` is a link.
///
/// # Errors
/// If it cannot be written.
pub fn append_here(path: &Path, bytes: &[u8]) -> io::Result<()> {
    open_here(path, File::options().create(true).append(true))?.write_all(bytes)
}

/// Appends to the file `name` in `folder`. Fails if the folder or the file is a link.
///
/// # Errors
/// If it cannot be written.
pub fn append_in(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty()).map_err(io::Error::from);
    let opened = opened.map_err(|error| if folder.is_symlink() { in_the_way(SYMBOLIC) } else { error })?;
    // This path leads through the open folder. The file is therefore in this folder, even if another folder
    // or a link has meanwhile taken the folder's name.
    append_here(&PathBuf::from(format!("/proc/self/fd/{}/{name}", opened.as_raw_fd())), bytes)
}

/// Writes a new file and syncs it to disk.
///
/// # Errors
/// If it cannot be written.
pub fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = create_here(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    type Write = fn(&Path, &[u8]) -> io::Result<()>;
    const WRITES: [Write; 3] = [write_here, append_here, write_synced];

    #[test]
    fn nothing_is_written_through_a_link_or_into_a_pipe() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("target"), "kept").unwrap();
        symlink(path("target"), path("link")).unwrap();
        symlink(path("none"), path("dangling")).unwrap();
        fs::hard_link(path("target"), path("hard")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        for write in WRITES {
            for (name, reason) in [
                ("link", "symbolic link"),
                ("dangling", "symbolic link"),
                ("hard", "hard link"),
                ("pipe", "not a regular file"),
            ] {
                let error = write(&path(name), b"lost").unwrap_err().to_string();
                assert!(error.contains(reason), "{name}: {error}");
                // Removing the link would lose the run.
                assert!(!error.contains("remove the link"), "{name}: {error}");
            }
            write(&path("new"), b"x").unwrap();
        }
        assert_eq!(fs::read_to_string(path("target")).unwrap(), "kept");
        assert!(!path("none").exists());
        fs::create_dir(path("folder")).unwrap();
        symlink(path("folder"), path("other")).unwrap();
        append_in(&path("folder"), "file", b"x").unwrap();
        append_in(&path("folder"), "file", b"y").unwrap();
        for folder in ["other", "dangling"] {
            let error = append_in(&path(folder), "file", b"z").unwrap_err().to_string();
            assert!(error.contains("symbolic link"), "{error}");
        }
        assert_eq!(fs::read_to_string(path("folder/file")).unwrap(), "xy");
        symlink(path("target"), path("folder/inner")).unwrap();
        assert!(append_in(&path("folder"), "inner", b"z").is_err());
    }
}
