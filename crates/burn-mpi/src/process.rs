//! What belongs to the process and not to a rank: its name in printed lines, and the rank that it is in
//! an MPI job, for panics, log lines and exit handlers, where no `World` is accessible.

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

/// Sets the name with which lines that this library prints on standard error begin, such
/// as `trainer: rank 1 on alpha panicked: ending the job`. The default is the name of the
/// executable's file. Call it once, before [`World::init`](crate::World::init); later
/// calls have no effect.
///
/// ```
/// burn_mpi::name_program("trainer");
/// ```
pub fn name_program(name: &str) {
    NAME.get_or_init(|| name.to_owned());
}

/// The program's name.
pub(crate) fn name() -> &'static str {
    NAME.get_or_init(|| {
        let path = std::env::args_os().next();
        let file = path.as_deref().and_then(|path| Path::new(path).file_name());
        file.map_or_else(|| "burn-mpi".to_owned(), |name| name.to_string_lossy().into_owned())
    })
}

/// Sets the name under which the program's users know the deadline of collectives, such
/// as `--timeout`: the line of a job that exceeded it names this setting. The default is
/// [`Transport::timeout`](crate::Transport::timeout). Call it once, before
/// [`World::init`](crate::World::init); later calls have no effect.
///
/// ```
/// burn_mpi::name_deadline("--timeout");
/// ```
pub fn name_deadline(setting: &str) {
    DEADLINE.get_or_init(|| setting.to_owned());
}

/// Sets the deadline of MPI's start and of the collectives after it, 120 s by default. For programs
/// that know theirs before [`World::init`](crate::World::init).
///
/// ```
/// burn_mpi::set_deadline(std::time::Duration::from_secs(30));
/// ```
pub fn set_deadline(deadline: Duration) {
    ACTIVITY.set_deadline(deadline);
}

/// Sets the time, 60 s by default, after which a rank prints whom it waits for in a collective, once
/// a collective and before its deadline. Every rank has its own; with a time of the deadline or
/// longer, nothing is printed.
///
/// ```
/// burn_mpi::set_stall_warning(std::time::Duration::from_secs(10));
/// ```
pub fn set_stall_warning(after: Duration) {
    ACTIVITY.with(|state| state.stall_warning = after.min(LONGEST));
}

/// The setting of the deadline.
pub(crate) fn deadline_setting() -> &'static str {
    DEADLINE.get_or_init(|| "Transport::timeout".to_owned())
}

/// The setting of the deadline of MPI's start, which comes before any transport.
#[cfg(feature = "mpi")]
pub(crate) fn start_setting() -> &'static str {
    DEADLINE.get().map_or("burn_mpi::set_deadline", String::as_str)
}

/// A rank, the world size, and the rank's host.
type Identity = (usize, usize, String);

/// This process's.
static IDENTITY: OnceLock<Identity> = OnceLock::new();

thread_local! {
    /// This thread's, if it is a rank.
    static OF_THREAD: RefCell<Option<Identity>> = const { RefCell::new(None) };
}

/// Records which rank this process is, or this thread.
pub(crate) fn identify(member: &Member, is_thread: bool) {
    let identity = (member.rank, member.size, member.host.clone());
    if is_thread {
        OF_THREAD.set(Some(identity));
    } else {
        _ = IDENTITY.set(identity);
    }
}

/// Rank, world size and host of this thread or this process, once it is a rank: for log lines and
/// panics, where no `World` is accessible.
pub fn identity() -> Option<(usize, usize, String)> {
    OF_THREAD.with_borrow(Clone::clone).or_else(|| IDENTITY.get().cloned())
}

/// Prints a line on a fault of this rank.
pub(crate) fn print_line(line: &str) {
    print_of(FAILED, line);
}

/// Prints a line of this [kind](messages) on standard error in one write, so that lines of several ranks
/// do not interleave.
pub(crate) fn print_of(kind: &str, line: &str) {
    let line = format!("{}: {}{}\n", name(), messages::tag(kind), line.replace('\n', "; "));
    // A closed standard error cannot be reported.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
