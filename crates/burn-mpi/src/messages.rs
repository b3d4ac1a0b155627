//! Tags of the lines that ranks print on standard error, for a program that starts jobs and reads why they end.
//!
//! After [`tag_lines`], a line is the program's name, a tag, and the text. The tag is the byte 0x1E, the [kind](FAILED) of
//! the line, a colon, a space, and the byte 0x1F. It reads as a word of the line where no program takes it out, such as
//! in the log of a script between the launcher and the ranks. A launcher's prefix may precede the name.

use std::sync::atomic::{AtomicBool, Ordering};

/// The kind of a line that says that a rank waits, or that it ends because a wait is over. It says nothing of an error.
pub const WAITS: &str = "waits";
/// The kind of a line that reports the error or the end of another rank.
pub const NOTICED: &str = "noticed";
/// The kind of a line that reports an error of this rank.
pub const FAILED: &str = "failed";

static TAGGED: AtomicBool = AtomicBool::new(false);

/// Tags the lines of this process from now on.
pub fn tag_lines() {
    TAGGED.store(true, Ordering::Relaxed);
}

/// The tag of a line of this `kind`; empty before [`tag_lines`].
pub fn tag(kind: &str) -> String {
    if TAGGED.load(Ordering::Relaxed) { format!("\u{1e}{kind}: \u{1f}") } else { String::new() }
}
