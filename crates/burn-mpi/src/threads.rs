//! Ranks that are threads of this process, for tests: `cargo test` runs a data-parallel loop on several
//! ranks, without `mpirun` and without MPI, in milliseconds.
//!
//! [`run`] calls a function as every rank. What it does with its [`World`] is what it does
//! over MPI: exchanges, [`connect`](crate::connect), gradients, errors. Messages go through memory,
//! whatever the backend that `connect` is asked for.
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
//! Ranks take turns: one runs until its next exchange, where it may have to hand over to another one. Who
//! comes next, which message arrives first, and how long a rank is held back are drawn from
//! [`Options::seed`], so a failure, which names its seed, repeats. Time is virtual: when every rank waits,
//! the clock jumps to the next moment at which something happens, such as the end of a [`sleep`], a stall
//! warning or a deadline. A test of a deadline of a minute takes no time.
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
//! assert!(text.contains("missing: rank 2 on node0 (alive, and has not called it)"), "{text}");
//! ```
//!
//! # What differs from processes
//! - Statics are shared, by ranks and by tests of the same process. Burn's random generator is one for the
//!   process: seed it right before drawing, without an exchange in between (Burn draws a parameter when it
//!   is first used, not in `init`), and run tests that draw from it one at a time (`--test-threads=1`, or
//!   cargo-nextest, which has a process for each). Otherwise a seed does not repeat what it draws.
//! - Burn's autodiff is one for the process, too: build each rank's module inside the function. A module
//!   that is built outside and cloned shares its graph, which the first backward consumes;
//!   [`GradientSync`](crate::GradientSync) refuses it with a line.
//! - A lock that a rank holds while it communicates, and that another one takes, stops the job for ever; a
//!   line says so after a minute. In an argument, as in `broadcast_module(world, shared.lock()?.clone())`, it
//!   is held until the call returns.
//! - Native sums are in an order of their own, as those of MPI and gloo are; sums in rank order have the
//!   same bits everywhere.
//! - What MPI leaves to chance goes well here: messages that nobody receives are dropped, and settings of a
//!   transport are not looked at.
//! - A rank that panics or returns an error ends the others at their next exchange with
//!   [`CommError::Left`](crate::CommError::Left); nothing ends a rank that computes for ever.
//!   `std::process::exit` ends all tests of the process, with its exit code.

mod hub;
pub(crate) mod seat;
mod state;

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use self::hub::Hub;
use self::seat::Seat;
use crate::World;
use crate::activity::{DEFAULT_DEADLINE, DEFAULT_STALL};

/// The transport's name.
const NAME: &str = "memory";

/// How ranks run.
///
/// ```
/// use burn_mpi::threads::{Options, run};
///
/// // Two machines of two ranks each.
/// let options = Options { hosts: 2, ..Options::default() };
/// let hosts = run(4, &options, |world| Ok::<_, String>(world.host().to_owned())).unwrap();
/// assert_eq!(hosts, ["node0", "node0", "node1", "node1"]);
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// What is drawn in a simulation follows from it.
    pub seed: u64,
    /// Machines that the ranks pretend to run on, the first ones on the first: `node0`, `node1`, ….
    pub hosts: usize,
    /// Deadline of an exchange; [`connect`](crate::connect) sets another one.
    pub deadline: Duration,
    /// Time after which a rank prints whom it waits for.
    pub stall_warning: Duration,
    /// Whether ranks take turns. Otherwise they run at the same time, in the system's time and order: for a
    /// sanitizer of threads.
    pub turns: bool,
    /// Bytes of each rank's stack.
    pub stack_bytes: usize,
    /// Called first on each rank's thread, such as to set up a pool of threads for it.
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

/// Why a job of threads failed: the first rank that left with an error or a panic.
#[derive(Clone, thiserror::Error)]
#[error("{error}{}", seed.map_or_else(String::new, |seed| format!(" (seed {seed})")))]
pub struct Failure {
    /// The rank, which may have left without an error while another one needed it.
    pub rank: usize,
    /// Its error or its panic.
    pub error: String,
    /// The seed that repeats it; without turns nothing does.
    pub seed: Option<u64>,
    /// What ranks have printed: warnings of stalls.
    pub lines: Vec<String>,
}

/// The text, which `unwrap` prints.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Runs `body` as every rank of a job of `ranks` threads; returns their results in rank order.
///
/// # Errors
/// [`Failure`] if a rank returns an error, panics, or returns while another one needs it, or if the system
/// gives no thread for one.
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

/// As [`run`]; also returns what ranks have printed: warnings of stalls.
///
/// # Errors
/// As [`run`].
///
/// # Panics
/// As [`run`].
pub fn run_with_lines<T: Send, E: fmt::Display>(
    ranks: usize,
    options: &Options,
    body: impl Fn(&World) -> Result<T, E> + Sync,
) -> Result<(Vec<T>, Vec<String>), Failure> {
    assert!(ranks > 0 && options.hosts > 0, "a job has a rank and a host");
    let hub = Arc::new(Hub::new(ranks, options));
    let as_rank = |rank: usize| {
        let result = catch_unwind(AssertUnwindSafe(|| {
            (options.on_thread)(rank);
            let world = World::of_seat(Seat::take(Arc::clone(&hub), rank), hub.places());
            body(&world).map_err(|error| error.to_string())
        }));
        let (status, reason, value) = match result {
            Ok(Ok(value)) => (0, String::new(), Some(value)),
            Ok(Err(error)) => (1, error, None),
            Err(panic) => (PANICKED, format!("panicked: {}", message(panic.as_ref())), None),
        };
        hub.leave(rank, status, reason);
        value
    };
    let results: Vec<Option<T>> = std::thread::scope(|scope| {
        let spawn = |rank: usize| {
            let thread = std::thread::Builder::new().name(format!("rank {rank}"));
            let spawned = thread.stack_size(options.stack_bytes).spawn_scoped(scope, move || as_rank(rank));
            // The others wait for it, or for its leaving.
            spawned.map_err(|error| hub.leave(rank, 1, format!("the system gives no thread: {error}"))).ok()
        };
        let threads: Vec<_> = (0..ranks).map(spawn).collect();
        threads.into_iter().map(|thread| thread?.join().unwrap_or_default()).collect()
    });
    let (cause, lines) = hub.outcome();
    match (cause, results.into_iter().collect::<Option<Vec<T>>>()) {
        (None, Some(results)) => Ok((results, lines)),
        (cause, _) => {
            let (rank, error) = cause.unwrap_or((0, "a rank's thread ended".into()));
            Err(Failure { rank, error, seed: options.turns.then_some(options.seed), lines })
        }
    }
}

/// The exit code of a Rust program that panics.
const PANICKED: i32 = 101;

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Lets time pass on this rank: in a simulation the clock's, and else the system's.
pub fn sleep(world: &World, time: Duration) {
    match world.seat() {
        Some(seat) => seat.sleep(time),
        None => std::thread::sleep(time),
    }
}
