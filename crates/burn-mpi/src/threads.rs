//! Ranks that are threads of this process, for tests: `cargo test` runs a data-parallel loop on several
//! ranks, without `mpirun` and without MPI, in milliseconds.
//!
//! [`run`] calls a function once for each rank, on a separate thread. The function uses its [`World`] in the
//! same way as over MPI. Messages go through
//! memory, whichever backend [`connect`](crate::connect) is asked for.
//!
//! ```
//! use burn_mpi::threads::{Options, run};
//! use burn_mpi::{Backend, CommError, Reduction, Transport, Wire, connect};
//!
//! let sums = run(3, &Options::default(), |world| {
//!     let mut collective = connect(world, Backend::Mpi, &Transport::default())?;
//!     let mut buffer = Wire::F32(vec![world.rank() as f32; 5]);
//!     collective.all_reduce(&mut buffer, Reduction::Ordered)?;
//!     Ok::<_, CommError>(buffer)
//! });
//! assert_eq!(sums.unwrap(), vec![Wire::F32(vec![3.0; 5]); 3]);
//! ```
//!
//! # Simulation
//! Ranks take turns. One rank runs until its next exchange, where the turn may pass to another rank. The seed
//! [`Options::seed`] decides which rank runs next, which message arrives first, and how long a rank is held
//! back. A failure names its seed, and the same seed repeats the failure.
//!
//! Time is virtual: when every rank waits, the clock jumps to the next moment at which something happens,
//! such as the end of a [`sleep`], a stall warning or a deadline. A test of a deadline of a minute takes no
//! time.
//!
//! ```
//! use std::time::Duration;
//! use burn_mpi::threads::{Options, run, sleep};
//!
//! let failure = run(3, &Options::default(), |world| {
//!     if world.rank() == 2 {
//!         sleep(world, Duration::from_secs(3600));
//!     }
//!     world.barrier()
//! });
//! let text = failure.unwrap_err().to_string();
//! assert!(text.contains("missing: rank 2 on node0"), "{text}");
//! ```
//!
//! # What differs from processes
//! - All ranks, and all tests of the same process, share statics. One of them is Burn's random generator.
//!   Seed the generator right before drawing, without an exchange in between. Burn draws a parameter at its
//!   first use, not in `init`. Run tests that draw from the generator one at a time (`--test-threads=1`,
//!   or cargo-nextest, which has a process for each test). Otherwise the same [`Options::seed`] does not
//!   repeat the numbers that a test draws.
//! - All ranks share Burn's autodiff, too: build each rank's module inside the function that `run` calls. If
//!   a module is built outside, its clones share one graph, and the first backward consumes this graph.
//!   [`GradientSync`](crate::GradientSync) rejects such a module with an error.
//! - If a rank holds a lock during an exchange, and another rank takes this lock, the job stops forever. A
//!   line says so after a minute. A lock in an argument is held until the call returns, as in
//!   `broadcast_module(world, shared.lock()?.clone())`.
//! - Sums with [`Reduction::Native`](crate::Reduction) are added in another order than over MPI or gloo,
//!   whose orders also differ from each other. With `Reduction::Ordered`, sums are added in rank order and
//!   have the same bits everywhere.
//! - Some mistakes that may fail over MPI go unnoticed: messages that no rank receives are dropped, and
//!   settings of a transport are ignored.
//! - If a rank panics or returns an error, the other ranks end at their next exchange with
//!   [`CommError::Left`](crate::CommError::Left). Nothing ends a rank that computes forever.
//!   `std::process::exit` ends all tests of the process, with its exit code.

mod hub;
pub(crate) mod seat;
mod state;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use derive_setters::Setters;

use self::hub::Hub;
use self::seat::Seat;
use crate::World;
use crate::activity::{DEFAULT_DEADLINE, DEFAULT_STALL};
use crate::process::message_of;

/// The transport's name.
const NAME: &str = "memory";

/// Settings of a job whose ranks are threads.
///
/// ```
/// use burn_mpi::threads::{Options, run};
///
/// // Two machines of two ranks each.
/// let options = Options::default().with_hosts(2);
/// let hosts = run(4, &options, |world| Ok::<_, String>(world.host().to_owned())).unwrap();
/// assert_eq!(hosts, ["node0", "node0", "node1", "node1"]);
/// ```
#[derive(Debug, Clone, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct Options {
    /// Seed of everything that a simulation draws.
    pub seed: u64,
    /// Number of machines that the ranks pretend to run on: `node0`, `node1`, …. Each has a block of
    /// consecutive ranks, the first ranks on `node0`.
    pub hosts: usize,
    /// Deadline of an exchange, until [`connect`](crate::connect) sets the deadline of its transport.
    pub deadline: Duration,
    /// Time in an exchange after which a rank prints which ranks it waits for.
    pub stall_warning: Duration,
    /// Whether ranks take turns. If false, ranks run at the same time, in real time and in no fixed order. A
    /// thread sanitizer needs false.
    pub turns: bool,
    /// Stack size of each rank's thread, in bytes.
    pub stack_bytes: usize,
    /// Function that each rank's thread calls first, with the rank as the argument, for example to set up a
    /// thread pool.
    pub on_thread: fn(usize),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 0,
            hosts: 1,
            deadline: DEFAULT_DEADLINE,
            stall_warning: DEFAULT_STALL,
            turns: true,
            stack_bytes: 16 << 20,
            on_thread: |_| (),
        }
    }
}

/// Why a job of threads failed.
#[derive(Clone, thiserror::Error)]
#[error("{error}{}", seed.map_or_else(String::new, |seed| format!(" (seed {seed})")))]
pub struct Failure {
    /// The first rank that returned an error, panicked, or returned while another rank waited for it.
    pub rank: usize,
    /// The rank's error, or its panic message.
    pub error: String,
    /// The seed that repeats the failure; `None` if [`Options::turns`] is false, because then no seed repeats
    /// it.
    pub seed: Option<u64>,
    /// Lines that ranks have printed: warnings of stalls and of turns that take long.
    pub lines: Vec<String>,
}

/// Prints the text of `Display`, because `unwrap` prints an error with `Debug`.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Runs `body` on `ranks` threads, each of them one rank of a job. Returns the results in rank order.
///
/// # Errors
/// [`Failure`] if a rank returns an error, panics, or returns while another rank needs it, or if the system
/// cannot start a thread.
///
/// # Panics
/// If `ranks` or [`Options::hosts`] is 0.
pub fn run<T: Send, E: fmt::Display>(
    ranks: usize,
    options: &Options,
    body: impl Fn(&World) -> Result<T, E> + Sync,
) -> Result<Vec<T>, Failure> {
    run_with_lines(ranks, options, body).map(|(results, _)| results)
}

/// Runs `body` as [`run`] does. Also returns the lines that ranks have printed: warnings of stalls and of
/// turns that take long.
///
/// # Errors
/// The errors of [`run`].
///
/// # Panics
/// In the same cases as [`run`].
pub fn run_with_lines<T: Send, E: fmt::Display>(
    ranks: usize,
    options: &Options,
    body: impl Fn(&World) -> Result<T, E> + Sync,
) -> Result<(Vec<T>, Vec<String>), Failure> {
    assert!(ranks > 0 && options.hosts > 0, "a job needs at least one rank and one host");
    let hub = Arc::new(Hub::new(ranks, options));
    let as_rank = |rank: usize| {
        let result = catch_unwind(AssertUnwindSafe(|| {
            (options.on_thread)(rank);
            let world = World::of_seat(Seat::take(Arc::clone(&hub), rank), Arc::clone(&hub.places));
            world.enter();
            body(&world).map_err(|error| error.to_string())
        }));
        let (status, reason, value) = match result {
            Ok(Ok(value)) => (0, String::new(), Some(value)),
            Ok(Err(error)) => (1, error, None),
            Err(panic) => (PANICKED, format!("panicked: {}", message_of(panic.as_ref())), None),
        };
        hub.leave(rank, status, reason);
        value
    };
    let results: Vec<Option<T>> = std::thread::scope(|scope| {
        let spawn = |rank: usize| {
            let thread = std::thread::Builder::new().name(format!("rank {rank}"));
            let spawned = thread.stack_size(options.stack_bytes).spawn_scoped(scope, move || as_rank(rank));
            // If no thread starts, the rank leaves with an error. The other ranks would wait for it
            // otherwise.
            spawned
                .map_err(|error| hub.leave(rank, 1, format!("cannot start a thread for this rank: {error}")))
                .ok()
        };
        let threads: Vec<_> = (0..ranks).map(spawn).collect();
        threads.into_iter().map(|thread| thread?.join().unwrap_or_default()).collect()
    });
    let (cause, lines) = hub.outcome();
    match (cause, results.into_iter().collect::<Option<Vec<T>>>()) {
        (None, Some(results)) => Ok((results, lines)),
        (cause, _) => {
            let (rank, error) = cause.unwrap_or((0, "the thread of a rank ended without a result".into()));
            Err(Failure { rank, error, seed: options.turns.then_some(options.seed), lines })
        }
    }
}

/// The exit code of a Rust program that panics.
const PANICKED: i32 = 101;

/// Sleeps on this rank: in virtual time in a simulation, otherwise in real time.
pub fn sleep(world: &World, time: Duration) {
    match world.seat() {
        Some(seat) => seat.sleep(time),
        None => std::thread::sleep(time),
    }
}
