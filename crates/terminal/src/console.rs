//! Console output of commands. A reader that closes the pipe does not end the command.
//!
//! `mpiburn report | head` closes the pipe after ten lines. The standard library's `println!` then panics,
//! and a panic of one rank aborts the whole job. With SIGPIPE's default action, the signal would end a
//! training or its launcher in the middle of its work. Commands therefore use the macros `print!`, `println!`
//! and `eprintln!` below: output to a closed pipe is dropped, and the command continues.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::table::shortened;

/// Like `std::print!`, but ignores a closed pipe.
#[macro_export]
macro_rules! print {
    ($($words:tt)*) => { $crate::console::out(format_args!($($words)*)) };
}
/// Like `std::println!`, but ignores a closed pipe.
#[macro_export]
macro_rules! println {
    ($($words:tt)*) => { $crate::console::out(format_args!("{}\n", format_args!($($words)*))) };
}
/// Like `std::eprintln!`, but ignores a closed pipe.
#[macro_export]
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::console::err(format_args!("{}\n", format_args!($($words)*))) };
}

thread_local! {
    /// What this thread has printed to stdout and stderr, while its output is [captured](captured).
    static CAPTURED: RefCell<Option<[String; 2]>> = const { RefCell::new(None) };
}

/// Runs `body`. Returns its result, and the text that it printed to stdout and stderr; this text is not
/// written there. Only output of this thread is captured.
pub fn captured<T>(body: impl FnOnce() -> T) -> (T, [String; 2]) {
    CAPTURED.set(Some(Default::default()));
    let result = body();
    (result, CAPTURED.take().unwrap_or_default())
}

/// Appends `text` to the captured stdout (0) or stderr (1). Returns false if this thread's output is not
/// captured.
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

/// Replaces control characters in `text` by escapes, including those that change the writing direction. Names
/// and messages from files that somebody else wrote must not control the terminal.
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

/// Writes to stdout, or to the captured text.
pub fn out(text: Arguments<'_>) {
    let text = text.to_string();
    let text = without_controls(&text);
    if is_captured(0, &text) {
        return;
    }
    note_lost(io::stdout().lock().write_all(text.as_bytes()));
}

/// Records an error of writing to stdout, unless the pipe is closed. Reports the first error on stderr.
pub fn note_lost(written: io::Result<()>) {
    if let Some(error) = failure(written) {
        // Report only once: a full disk stays full.
        if !LOST.swap(true, Ordering::Relaxed) {
            err(format_args!("mpiburn: cannot write to stdout: {error}\n"));
        }
    }
}

/// Writes to stderr, or to the captured text. Errors are ignored, because they cannot be reported.
pub fn err(text: Arguments<'_>) {
    let text = text.to_string();
    let text = without_controls(&text);
    if !is_captured(1, &text) {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

/// Writes an error to stderr as `NAME: TEXT`. With `colour`, the name is red. `tag` precedes the text and
/// marks it for a program that reads the output.
pub fn error(name: &str, tag: &str, text: &str, colour: bool) {
    let text = message(text);
    if !is_captured(1, &format!("{name}: {text}\n")) {
        let (red, plain) = if colour { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        let _ = io::stderr().lock().write_all(format!("{red}{name}:{plain} {tag}{text}\n").as_bytes());
    }
}

/// Whether a terminal may show colour: NO_COLOR is not set, or is empty (no-color.org).
pub fn wants_colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Whether the terminal can only print text: TERM is `dumb`, empty or not set.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|kind| kind.is_empty() || kind == "dumb")
}

/// Whether output to stdout was lost, for example on a full disk.
pub fn lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

fn failure(result: io::Result<()>) -> Option<io::Error> {
    result.err().filter(|error| error.kind() != ErrorKind::BrokenPipe)
}

/// Catches SIGXFSZ, so that a write beyond the file size limit (`ulimit -f`) returns an error. By default,
/// the signal ends the process. For the same reason, Rust's runtime ignores SIGPIPE.
pub fn survive_large_files() {
    // If the handler cannot be set, the signal still ends the process and names the cause.
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
