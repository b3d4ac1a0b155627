//! Prints the output of commands. If the program that reads the output closes the pipe, the command
//! continues.
//!
//! `mpiburn report | head` closes the pipe after ten lines. The standard library's `println!` then panics,
//! and a panic of one rank aborts the whole job. With the default action of SIGPIPE, a closed pipe would end
//! the process, for example a training in the middle of its work. Commands therefore use the macros `print!`,
//! `println!` and `eprintln!` below. The macros drop output to a closed pipe.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::table::shortened;

/// Prints as `std::print!` does, but ignores a closed pipe.
#[macro_export]
macro_rules! print {
    ($($words:tt)*) => { $crate::console::out(format_args!($($words)*)) };
}
/// Prints as `std::println!` does, but ignores a closed pipe.
#[macro_export]
macro_rules! println {
    ($($words:tt)*) => { $crate::console::out(format_args!("{}\n", format_args!($($words)*))) };
}
/// Prints as `std::eprintln!` does, but ignores a closed pipe.
#[macro_export]
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::console::err(format_args!("{}\n", format_args!($($words)*))) };
}

thread_local! {
    /// What this thread has printed to stdout (index 0) and stderr (index 1) while its output is
    /// [captured](captured). `None` if its output is not captured.
    static CAPTURED: RefCell<Option<[String; 2]>> = const { RefCell::new(None) };
}

/// Runs `body`, and captures what this thread prints with the functions of this module. Returns the result of
/// `body`, and the captured texts of stdout and stderr. Captured text is not printed.
pub fn captured<T>(body: impl FnOnce() -> T) -> (T, [String; 2]) {
    CAPTURED.set(Some(Default::default()));
    let result = body();
    (result, CAPTURED.take().unwrap_or_default())
}

/// If this thread's output is captured, appends `text` to the captured stdout (`stream` 0) or stderr (1), and
/// returns true. Otherwise returns false.
fn is_captured(stream: usize, text: &str) -> bool {
    CAPTURED.with_borrow_mut(|captured| match captured {
        Some(texts) => {
            texts[stream].push_str(text);
            true
        }
        None => false,
    })
}

/// Whether output to stdout was lost for a reason other than a closed pipe.
static LOST: AtomicBool = AtomicBool::new(false);

/// Replaces control characters in `text` by escapes, except for line feeds and tabs. Characters that change
/// the writing direction are replaced too. The text may come from a file that somebody else wrote, and such a
/// text must not control the terminal.
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

/// Maximum number of characters of a word in a message.
const MOST_OF_WORD: usize = 200;

/// Makes untrusted text, for example from a file or the command line, safe to print in a message. Control
/// characters become escapes, and the middle of long words is cut out.
pub fn message(text: &str) -> String {
    let text = without_controls(text);
    text.split_inclusive(char::is_whitespace).map(|word| shortened(word, MOST_OF_WORD)).collect()
}

/// Writes `text` to stdout, or to the captured text if this thread's output is captured.
pub fn out(text: Arguments<'_>) {
    let text = text.to_string();
    let text = without_controls(&text);
    if is_captured(0, &text) {
        return;
    }
    note_lost(io::stdout().lock().write_all(text.as_bytes()));
}

/// Takes the result of a write to stdout. If the write failed, [`lost`] returns true from now on, and the
/// first error is reported on stderr. A closed pipe does not count as a failure.
pub fn note_lost(written: io::Result<()>) {
    if let Some(error) = failure(written) {
        // Report only once: a full disk stays full.
        if !LOST.swap(true, Ordering::Relaxed) {
            err(format_args!("mpiburn: cannot write to stdout: {error}\n"));
        }
    }
}

/// Writes `text` to stderr, or to the captured text if this thread's output is captured. Errors of the write
/// are ignored, because they cannot be reported.
pub fn err(text: Arguments<'_>) {
    let text = text.to_string();
    let text = without_controls(&text);
    if !is_captured(1, &text) {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

/// Writes an error to stderr as `NAME: TEXT`. If `colour` is true, the name is red. `tag` is written before
/// the text, for programs that read the output. Captured text has neither colour nor tag.
pub fn error(name: &str, tag: &str, text: &str, colour: bool) {
    let text = message(text);
    if !is_captured(1, &format!("{name}: {text}\n")) {
        let (red, plain) = if colour { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        let _ = io::stderr().lock().write_all(format!("{red}{name}:{plain} {tag}{text}\n").as_bytes());
    }
}

/// Returns whether the user allows colour: the environment variable NO_COLOR is empty or not set
/// (no-color.org).
pub fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns whether the terminal can print only plain text: the environment variable TERM is `dumb`, empty or
/// not set.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb")
}

/// Returns whether output to stdout was lost, for example on a full disk. A closed pipe does not count.
pub fn lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

fn failure(result: io::Result<()>) -> Option<io::Error> {
    result.err().filter(|error| error.kind() != ErrorKind::BrokenPipe)
}

/// Catches SIGXFSZ, so that a write beyond the file size limit (`ulimit -f`) returns an error. By default,
/// the signal ends the process.
pub fn survive_large_files() {
    // If the handler cannot be set, the signal still ends the process, and the exit status of the process
    // names the signal.
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
