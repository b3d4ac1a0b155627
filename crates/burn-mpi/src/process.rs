//! State that belongs to the process and not to a [`World`](crate::World): its name in printed lines, its
//! deadlines, and which rank it is.
//!
//! Panic hooks, log lines and exit handlers need this state, and have no access to a `World`.

use std::any::Any;
use std::cell::RefCell;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use crate::activity::{Activity, DEFAULT_DEADLINE, DEFAULT_STALL, LONGEST};
use crate::clock::Clock;
use crate::member::Member;
use crate::messages::{self, FAILED};

static NAME: OnceLock<String> = OnceLock::new();
static DEADLINE: OnceLock<String> = OnceLock::new();
/// What this process is doing as a rank of an MPI job.
pub(crate) static ACTIVITY: LazyLock<Arc<Activity>> =
    LazyLock::new(|| Arc::new(Activity::new(Clock::system(), DEFAULT_DEADLINE, DEFAULT_STALL)));

/// Sets the program's name. The lines that this library prints on standard error begin with it, such as
/// `trainer: rank 1 on alpha panicked: aborting the job`. The default is the file name of the executable.
/// Call it once, before [`World::init`](crate::World::init); later calls have no effect.
///
/// ```
/// burn_mpi::name_program("trainer");
/// ```
pub fn name_program(name: &str) {
    NAME.get_or_init(|| name.to_owned());
}

/// Returns the program's name in printed lines.
pub(crate) fn name() -> &'static str {
    NAME.get_or_init(|| {
        let path = std::env::args_os().next();
        let file = path.as_deref().and_then(|path| Path::new(path).file_name());
        file.map_or_else(|| "burn-mpi".to_owned(), |name| name.to_string_lossy().into_owned())
    })
}

/// Sets the name of the option by which the program's users set the deadline of collectives, such as
/// `--timeout`. The error of a job that exceeded the deadline names this option. The default is
/// [`Transport::timeout`](crate::Transport::timeout). Call it once, before
/// [`World::init`](crate::World::init); later calls have no effect.
///
/// ```
/// burn_mpi::name_deadline("--timeout");
/// ```
pub fn name_deadline(setting: &str) {
    DEADLINE.get_or_init(|| setting.to_owned());
}

/// Sets the deadline of MPI's start and of the collectives after it, 120 s by default. Call it before
/// [`World::init`](crate::World::init), so that it applies to the start. [`connect`](crate::connect) later
/// replaces the deadline by [`Transport::timeout`](crate::Transport::timeout).
///
/// ```
/// burn_mpi::set_deadline(std::time::Duration::from_secs(30));
/// ```
pub fn set_deadline(deadline: Duration) {
    ACTIVITY.set_deadline(deadline);
}

/// Sets the time after which a rank prints which ranks it waits for in a collective, 60 s by default. The
/// line is printed at most once for each collective. Each rank has its own setting. If the time is not
/// shorter than the deadline, nothing is printed.
///
/// If the ranks are in collectives that can never complete, because they do not call the same operations, the
/// job ends at this time instead of at the deadline.
///
/// ```
/// burn_mpi::set_stall_warning(std::time::Duration::from_secs(10));
/// ```
pub fn set_stall_warning(after: Duration) {
    ACTIVITY.with(|state| state.stall_warning = after.min(LONGEST));
}

/// Returns the name of the option that sets the deadline.
pub(crate) fn deadline_setting() -> &'static str {
    DEADLINE.get_or_init(|| "Transport::timeout".to_owned())
}

/// Returns the name of the option that sets the deadline of MPI's start. The default is the name of the
/// function [`set_deadline`], because `Transport::timeout` applies only after the start.
#[cfg(feature = "mpi")]
pub(crate) fn start_setting() -> &'static str {
    DEADLINE.get().map_or("burn_mpi::set_deadline", String::as_str)
}

/// A rank, the world size, and the rank's host.
type Identity = (usize, usize, String);

/// The identity of this process, once it is a rank.
static IDENTITY: OnceLock<Identity> = OnceLock::new();

thread_local! {
    /// The identity of this thread, if the thread is a rank.
    static OF_THREAD: RefCell<Option<Identity>> = const { RefCell::new(None) };
}

#[cfg(feature = "data")]
thread_local! {
    /// Whether a panic of this thread is another thread's to report.
    static DEFERS_PANICS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Makes a panic of this thread end only this thread, and not the job. The thread that joins it reports the
/// panic.
#[cfg(feature = "data")]
pub(crate) fn defer_panics() {
    DEFERS_PANICS.set(true);
}

/// Returns whether this thread has called [`defer_panics`].
#[cfg(all(feature = "data", feature = "mpi"))]
pub(crate) fn defers_panics() -> bool {
    DEFERS_PANICS.get()
}

/// Returns the message of a caught panic.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Records which rank this process is, or this thread if `is_thread`.
pub(crate) fn identify(member: &Member, is_thread: bool) {
    let identity = (member.rank, member.size, member.host.clone());
    if is_thread {
        OF_THREAD.set(Some(identity));
    } else {
        _ = IDENTITY.set(identity);
    }
}

/// Returns the rank, the world size and the host of this thread, or of this process if the thread itself is
/// not a rank. Returns `None` before this process is a rank. Log lines and panic hooks call this function,
/// because they have no access to a `World`.
pub fn identity() -> Option<(usize, usize, String)> {
    OF_THREAD.with_borrow(Clone::clone).or_else(|| IDENTITY.get().cloned())
}

/// Prints a line about an error of this rank.
pub(crate) fn print_line(line: &str) {
    print_of(FAILED, line);
}

/// Prints a line of this [kind](messages) on standard error in one write, so that lines of several ranks do
/// not interleave.
pub(crate) fn print_of(kind: &str, line: &str) {
    let line = format!("{}: {}{}\n", name(), messages::tag(kind), line.replace('\n', "; "));
    // If standard error is closed, the failure cannot be reported.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
