//! The world: MPI's start, this process's rank in it, and the small exchanges
//! that set a job up. Gradients travel by a [collective](crate::Collective).

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::guard::{self, activity, farewell};
use crate::host::{Place, online_cores, oversubscribed};
use crate::mpi::MpiWorld;
use crate::mpi::library;
use crate::run::say;
use crate::{Backend, CommError, Launcher, Primitives, Wire};

/// All ranks of the job, seen from one of them. One exists per process. MPI ends
/// with the process, so that a rank whose `main` returns an error ends the job
/// instead of waiting for the others.
///
/// ```no_run
/// # use burn_mpi::{CommError, World};
/// # fn example() -> Result<(), CommError> {
/// let world = World::init()?;
/// println!("rank {} of {} on {}", world.rank(), world.size(), world.host());
///
/// // Small exchanges: every rank's value, and a sum.
/// let samples: Vec<usize> = world.gather(&(100 + world.rank()))?;
/// let mut total = [samples[world.rank()] as f64];
/// world.sum_f64(&mut total)?;
///
/// // An error on one rank becomes the error of all.
/// let shard = std::fs::read(format!("shard{}.bin", world.rank()));
/// let bytes: Vec<u8> = world.agree(shard)?;
/// # Ok(())
/// # }
/// ```
pub struct World {
    mpi: MpiWorld,
    places: Vec<Place>,
    library: String,
    /// What exchanges go over once the job is set up; MPI if none.
    control: RefCell<Option<Box<dyn Primitives>>>,
}

/// Rank and host, for log lines and for panics, which have no `World` at hand.
static IDENTITY: OnceLock<(usize, usize, String)> = OnceLock::new();

impl World {
    /// Starts MPI and meets the other ranks. Without a launcher the world is
    /// one rank. MPI is to be used from this thread alone.
    ///
    /// From here on a collective that takes longer than 120 s ends the job with
    /// a line that names the missing ranks; see [`set_deadline`](Self::set_deadline).
    ///
    /// # Errors
    /// When MPI does not start, or when another MPI's launcher started this
    /// process ([`CommError::ForeignLauncher`]), or none did
    /// ([`CommError::ByHand`]).
    pub fn init() -> Result<Self, CommError> {
        let launcher = Launcher::detect_or_refuse()?;
        yield_where_cores_lack(launcher.as_ref());
        let threading = ::mpi::Threading::Funneled;
        let (universe, provided) = ::mpi::initialize_with_threading(threading)
            .ok_or_else(|| CommError::Start("it is running already in this process".into()))?;
        if provided < threading {
            return Err(CommError::Start(format!(
                "it offers {provided:?}, and this program needs {threading:?}"
            )));
        }
        let library = library::library_version();
        let mpi = MpiWorld::new(Place::of_this_process(0).host)?;
        if let Some(launcher) = launcher {
            launcher.check(mpi.size, &library)?;
        }
        farewell::arrange(&mpi)?;
        // Its drop would finalize MPI; the farewell does.
        std::mem::forget(universe);
        let _ = IDENTITY.set((mpi.rank, mpi.size, mpi.host.clone()));
        let mut world = Self { places: Vec::new(), library, control: RefCell::new(None), mpi };
        world.places = world.gather(&Place::of_this_process(world.rank()))?;
        world.mpi.yields = oversubscribed(&world.places, 1);
        guard::start(&world)?;
        Ok(world)
    }

    /// Sets how long a collective may take from here on, on this rank.
    pub fn set_deadline(&self, deadline: Duration) {
        activity::set_deadline(deadline);
    }

    /// Says on this rank that it waits in `operation`, until the result is dropped.
    fn enter(&self, operation: &str) -> activity::Waiting {
        let backend = self.control.borrow().as_ref().map_or(Backend::Mpi, |control| control.backend());
        activity::enter(backend, operation, None)
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.mpi.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.mpi.size
    }

    /// Whether this rank writes the files and shows the progress.
    pub fn is_root(&self) -> bool {
        self.mpi.rank == 0
    }

    /// This rank's host name.
    pub fn host(&self) -> &str {
        &self.mpi.host
    }

    /// Where each rank runs, in rank order.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The MPI library in use, as `Open MPI v4.1.4`.
    pub fn mpi_library(&self) -> &str {
        &self.library
    }

    /// Has all exchanges from here on go over `control` instead of MPI, so that
    /// a job on another backend uses MPI to start and for nothing else. All
    /// ranks call it at the same time.
    pub fn exchange_over(&self, control: Box<dyn Primitives>) {
        self.control.replace(Some(control));
    }

    /// Every rank's `mine`, all of one length, in rank order.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<u8>, CommError> {
        let _waiting = self.enter("all-gather");
        match &mut *self.control.borrow_mut() {
            None => self.mpi.all_gather(mine),
            Some(control) => {
                let mut all = vec![0; mine.len() * self.size()];
                control.all_gather(mine, &mut all)?;
                Ok(all)
            }
        }
    }

    /// Rank 0's bytes in every rank's `buffer`, equally long on all.
    fn broadcast_into(&self, buffer: &mut [u8]) -> Result<(), CommError> {
        let _waiting = self.enter("broadcast");
        match &mut *self.control.borrow_mut() {
            None => self.mpi.broadcast(buffer, 0),
            Some(_) if buffer.is_empty() => Ok(()),
            Some(control) => control.broadcast(buffer, 0),
        }
    }

    pub(crate) fn mpi(&self) -> &MpiWorld {
        &self.mpi
    }

    /// Every rank's value, in rank order, on every rank.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>, CommError> {
        let mine = to_json(mine);
        let lengths = self.all_gather(&(mine.len() as u64).to_le_bytes())?;
        let lengths: Vec<usize> = lengths
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()) as usize)
            .collect();
        // Padded to the longest: the exchange is small, and one call serves.
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut padded = mine;
        padded.resize(longest, 0);
        let all = self.all_gather(&padded)?;
        lengths
            .iter()
            .enumerate()
            .map(|(rank, &length)| self.decode(&all[rank * longest..rank * longest + length]))
            .collect()
    }

    /// Rank 0's value on every rank; the other ranks' `value` is not read.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn broadcast<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<T, CommError> {
        let bytes = self.broadcast_bytes(if self.is_root() { to_json(value) } else { Vec::new() })?;
        self.decode(&bytes)
    }

    /// Rank 0's bytes on every rank.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn broadcast_bytes(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, CommError> {
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.broadcast_into(&mut length)?;
        bytes.resize(u64::from_le_bytes(length) as usize, 0);
        self.broadcast_into(&mut bytes)?;
        Ok(bytes)
    }

    /// Overwrites `values` on every rank with rank 0's.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn broadcast_f32(&self, values: &mut [f32]) -> Result<(), CommError> {
        self.broadcast_into(bytemuck::cast_slice_mut(values))
    }

    /// Sums `values` over all ranks, in place.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn sum_f64(&self, values: &mut [f64]) -> Result<(), CommError> {
        let _waiting = self.enter("sum");
        match &mut *self.control.borrow_mut() {
            None => self.mpi.all_reduce_sum(values),
            Some(control) => {
                let mut buffer = Wire::F64(values.to_vec());
                control.all_reduce(&mut buffer)?;
                if let Wire::F64(sums) = buffer {
                    values.copy_from_slice(&sums);
                }
                Ok(())
            }
        }
    }

    /// Returns once every rank has called it.
    ///
    /// # Errors
    /// When the transport fails.
    pub fn barrier(&self) -> Result<(), CommError> {
        let _waiting = self.enter("barrier");
        match &mut *self.control.borrow_mut() {
            None => self.mpi.barrier(),
            Some(control) => control.barrier(),
        }
    }

    /// Makes one rank's failure every rank's: if any rank brings an error, all
    /// ranks return one that names the lowest such rank, so that no rank waits
    /// for one that has left, and one line is printed instead of one a rank.
    ///
    /// # Errors
    /// The first failing rank's error, or the transport's.
    pub fn agree<T, E: std::fmt::Display>(&self, mine: Result<T, E>) -> Result<T, CommError> {
        let reason = mine.as_ref().err().map(|error| format!("{error:#}"));
        let all: Vec<Option<String>> = self.gather(&reason)?;
        let first = all.into_iter().enumerate().find_map(|(r, e)| Some((r, e?)));
        match (first, mine) {
            (None, Ok(value)) => Ok(value),
            (Some((rank, reason)), _) => {
                Err(CommError::Elsewhere { rank, host: self.places[rank].host.clone(), reason })
            }
            (None, Err(error)) => Err(CommError::Start(error.to_string())),
        }
    }

    /// Checks that `mine` is the same text on every rank.
    ///
    /// # Errors
    /// [`CommError::Diverged`] names the first rank that differs from rank 0.
    pub fn check_equal(&self, what: &str, mine: &str) -> Result<(), CommError> {
        let all: Vec<String> = self.gather(&mine.to_owned())?;
        match all.iter().position(|text| *text != all[0]) {
            None => Ok(()),
            Some(rank) => Err(CommError::Diverged {
                what: what.to_owned(),
                rank,
                host: self.places[rank].host.clone(),
                found: all[rank].clone(),
                expected: all[0].clone(),
            }),
        }
    }

    fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, CommError> {
        serde_json::from_slice(bytes).map_err(|error| {
            CommError::Start(format!(
                "rank {} on {} got a message it cannot read ({error}); do all ranks run the same binary?",
                self.rank(),
                self.host()
            ))
        })
    }
}

/// Rank, world size and host of this process, once MPI runs.
pub fn identity() -> Option<(usize, usize, &'static str)> {
    IDENTITY.get().map(|(rank, size, host)| (*rank, *size, host.as_str()))
}

/// Ends all processes of the job with `code`; this one alone where MPI does
/// not run.
pub fn abort(code: i32) -> ! {
    library::abort(code)
}

/// Has a panic on one rank end all of them: the others would wait for it. Says
/// which rank it is, and leaves the rest to the panic hook in place before.
pub fn end_the_job_on_panic() {
    /// The exit code of a Rust program that panics.
    const PANICKED: i32 = 101;
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some((rank, _, host)) = identity() {
            say(&format!("rank {rank} on {host} panicked: ending the job"));
        }
        before(panic);
        abort(PANICKED)
    }));
}

/// Has Open MPI give the core away while a rank waits, where the launcher
/// started more ranks than this host has cores: spinning there costs whole
/// time slices (a 4-byte all-reduce takes milliseconds instead of
/// microseconds). It must be said before MPI starts.
fn yield_where_cores_lack(launcher: Option<&Launcher>) {
    let local = launcher.and_then(|l| l.local_size).unwrap_or(1);
    if local > online_cores() && std::env::var_os("OMPI_MCA_mpi_yield_when_idle").is_none() {
        // SAFETY: called before MPI starts and before this process has a
        // second thread that could read the environment at the same time.
        unsafe { std::env::set_var("OMPI_MCA_mpi_yield_when_idle", "1") };
    }
}

fn to_json<T: Serialize>(value: &T) -> Vec<u8> {
    // Own plain data types: numbers, texts and lists always serialise.
    serde_json::to_vec(value).unwrap_or_default()
}
