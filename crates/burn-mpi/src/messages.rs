//! Tags of the lines that ranks print on standard error, for a program that starts jobs and reads why they
//! end.
//!
//! After [`tag_lines`], a line consists of the program's name, a tag and the text. The tag is the byte 0x1E,
//! the [kind](FAILED) of the line, a colon, a space, and the byte 0x1F. The reading program removes the tag.
//! If a script between the launcher and the ranks writes the lines to a log, the tag stays in the log. There,
//! the kind reads as a word of the line. A launcher's prefix may precede the name.

use std::sync::atomic::{AtomicBool, Ordering};

/// The kind of a line that says that a rank waits, or that it exits because it has waited too long. Such a
/// line does not say which error caused the wait.
#[cfg(any(feature = "mpi", feature = "internals"))]
pub const WAITS: &str = "waits";
/// The kind of a line that reports the error or the exit of another rank.
#[cfg(any(feature = "mpi", feature = "internals"))]
pub const NOTICED: &str = "noticed";
/// The kind of a line that reports an error of this rank.
pub const FAILED: &str = "failed";

static TAGGED: AtomicBool = AtomicBool::new(false);

/// Makes this process tag its lines from now on.
#[cfg(feature = "internals")]
pub fn tag_lines() {
    TAGGED.store(true, Ordering::Relaxed);
}

/// Returns the tag of a line of this `kind`; empty before [`tag_lines`].
pub fn tag(kind: &str) -> String {
    if TAGGED.load(Ordering::Relaxed) { format!("\u{1e}{kind}: \u{1f}") } else { String::new() }
}
