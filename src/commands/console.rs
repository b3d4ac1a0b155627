//! What commands print, for people who may have stopped reading.
//!
//! `mpiburn report | head` closes the pipe after ten lines. The standard
//! library's `println!` panics then, and a panic ends the whole job of a rank. A
//! signal instead (SIGPIPE) would end a training, or its launcher, in the middle
//! of its work. So the commands' `print!`, `println!` and `eprintln!` are these:
//! what nobody reads any more is dropped, and the work goes on to its end.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// As the standard library's, to a reader who may leave.
macro_rules! print {
    ($($words:tt)*) => { $crate::commands::console::out(format_args!($($words)*)) };
}
/// As the standard library's, to a reader who may leave.
macro_rules! println {
    ($($words:tt)*) => { $crate::commands::console::out(format_args!("{}\n", format_args!($($words)*))) };
}
/// As the standard library's, to a reader who may leave.
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::commands::console::err(format_args!("{}\n", format_args!($($words)*))) };
}

/// Whether something could not be written for another reason than that nobody
/// reads it.
static LOST: AtomicBool = AtomicBool::new(false);

/// Writes to stdout.
pub fn out(text: Arguments<'_>) {
    if let Some(error) = failure(io::stdout().lock().write_fmt(text)) {
        // Said once: a disk that is full stays full.
        if !LOST.swap(true, Ordering::Relaxed) {
            err(format_args!("mpiburn: cannot write to stdout: {error}\n"));
        }
    }
}

/// Writes to stderr, where a failure can be told to nobody.
pub fn err(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// Whether output was lost, as on a full disk.
pub fn lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

fn failure(result: io::Result<()>) -> Option<io::Error> {
    result.err().filter(|error| error.kind() != ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_who_left_is_no_failure_and_a_full_disk_is() {
        assert!(failure(Err(ErrorKind::BrokenPipe.into())).is_none() && failure(Ok(())).is_none());
        assert_eq!(failure(Err(ErrorKind::StorageFull.into())).unwrap().kind(), ErrorKind::StorageFull);
    }
}
