//! Console output of the commands, for readers that may close the pipe.
//!
//! `mpiburn report | head` closes the pipe after ten lines. The standard library's
//! `println!` then panics, and a panic of one rank aborts the whole job. SIGPIPE would
//! instead end a training, or its launcher, in the middle of its work. The commands'
//! `print!`, `println!` and `eprintln!` are therefore the macros below: output to a closed
//! pipe is dropped, and the command continues.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::table::shortened;

/// Like the standard library's, but ignores a closed pipe.
#[macro_export]
macro_rules! print {
    ($($words:tt)*) => { $crate::console::out(format_args!($($words)*)) };
}
/// Like the standard library's, but ignores a closed pipe.
#[macro_export]
macro_rules! println {
    ($($words:tt)*) => { $crate::console::out(format_args!("{}\n", format_args!($($words)*))) };
}
/// Like the standard library's, but ignores a closed pipe.
#[macro_export]
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::console::err(format_args!("{}\n", format_args!($($words)*))) };
}

thread_local! {
    /// What this thread has printed on stdout and stderr, while it is [captured](captured).
    static CAPTURED: RefCell<Option<[String; 2]>> = const { RefCell::new(None) };
}

/// Runs a command as a function, whose output on this thread goes into two texts instead of stdout and
/// stderr.
pub fn captured<T>(body: impl FnOnce() -> T) -> (T, [String; 2]) {
    CAPTURED.set(Some(Default::default()));
    let result = body();
    (result, CAPTURED.take().unwrap_or_default())
}

/// Takes a text that is for stdout (0) or stderr (1), if this thread's output is captured.
fn is_captured(stream: usize, text: &str) -> bool {
    CAPTURED.with_borrow_mut(|captured| match captured {
        Some(texts) => {
            texts[stream].push_str(text);
            true
        }
        None => false,
    })
}

/// Whether output could not be written for a reason other than a closed pipe.
static LOST: AtomicBool = AtomicBool::new(false);

/// `text` with control characters as escapes, those of the writing direction too: names and messages
/// in files that somebody else wrote must not command the terminal.
pub fn without_controls(text: &str) -> Cow<'_, str> {
    let turns =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_control = |c: char| turns(c) || (c.is_control() && !matches!(c, '\n' | '\t'));
    if !text.contains(is_control) {
        Cow::Borrowed(text)
    } else {
        let shown = |c: char| if is_control(c) { c.escape_default().to_string() } else { c.to_string() };
        Cow::Owned(text.chars().map(shown).collect())
    }
}

/// Most letters of a word in a message.
const MOST_OF_WORD: usize = 200;

/// A message without control characters and long words, of which the beginning and the end are left: it may quote any
/// text of a file or of the command line.
pub fn message(text: &str) -> String {
    let text = without_controls(text);
    text.split_inclusive(char::is_whitespace).map(|word| shortened(word, MOST_OF_WORD)).collect()
}

/// Writes to stdout.
pub fn out(text: Arguments<'_>) {
    let text = text.to_string();
    let text = without_controls(&text);
    if is_captured(0, &text) {
        return;
    }
    note_lost(io::stdout().lock().write_all(text.as_bytes()));
}

/// Notes whether what went to stdout is lost.
pub fn note_lost(written: io::Result<()>) {
    if let Some(error) = failure(written) {
        // Reported once: a full disk stays full.
        if !LOST.swap(true, Ordering::Relaxed) {
            err(format_args!("mpiburn: cannot write to stdout: {error}\n"));
        }
    }
}

/// Writes to stderr; a failure cannot be reported.
pub fn err(text: Arguments<'_>) {
    let text = text.to_string();
    let text = without_controls(&text);
    if !is_captured(1, &text) {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

/// Writes an error to stderr as `NAME: TEXT`, the name in red if `colour` is in use, and the text behind a `tag` for a
/// program that reads it.
pub fn error(name: &str, tag: &str, text: &str, colour: bool) {
    let text = message(text);
    if !is_captured(1, &format!("{name}: {text}\n")) {
        let (red, plain) = if colour { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        let _ = io::stderr().lock().write_all(format!("{red}{name}:{plain} {tag}{text}\n").as_bytes());
    }
}

/// Whether colour is wanted on a terminal: not where NO_COLOR is set (no-color.org).
pub fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether the terminal only prints: its type is `dumb`, or unknown.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb")
}

/// Whether output was lost, as on a full disk.
pub fn lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

fn failure(result: io::Result<()>) -> Option<io::Error> {
    result.err().filter(|error| error.kind() != ErrorKind::BrokenPipe)
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) an error of that write, as SIGPIPE's default in Rust makes
/// one to a closed pipe: without a handler, SIGXFSZ ends the process.
pub fn survive_large_files() {
    // Without it, the signal is what says so.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown() {
        assert_eq!(without_controls("a\tb\n│"), "a\tb\n│");
        assert_eq!(without_controls("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(without_controls("\u{1b}[31m\r\u{9b}x"), "\\u{1b}[31m\\r\\u{9b}x");
        let word = "ä".repeat(5000);
        let text = message(&format!("--drop {word}: is for\ttables {word}\n"));
        assert!(
            text.starts_with("--drop ä") && text.contains("ä…ä") && text.contains(": is for\ttables ä"),
            "{text}"
        );
        assert!(text.ends_with("ä\n") && text.chars().count() < 430, "{text}");
        assert_eq!(message(&word[..400]), word[..400]);
    }

    #[test]
    fn a_closed_pipe_is_ignored_and_a_full_disk_is_a_failure() {
        assert!(failure(Err(ErrorKind::BrokenPipe.into())).is_none() && failure(Ok(())).is_none());
        assert_eq!(failure(Err(ErrorKind::StorageFull.into())).unwrap().kind(), ErrorKind::StorageFull);
    }
}
