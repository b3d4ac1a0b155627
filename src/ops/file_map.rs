//! Files as memory.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// Maps `file` to be read, privately.
///
/// Somebody who cuts it short while it is in use ends the process by SIGBUS;
/// renaming another file into its place leaves the map as it was, and that is
/// how this program replaces files.
///
/// # Errors
/// When the system cannot map it.
pub fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is private and only read, and nothing in this program
    // writes to a file that it maps; the note above has what others can do.
    unsafe { Mmap::map(file) }
}
