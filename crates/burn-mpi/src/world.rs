//! The world: MPI initialisation, this process's rank, and the hosts of all ranks. Gradients are
//! sent by a [collective](crate::Collective).

use std::cell::RefCell;
use std::rc::Rc;
#[cfg(feature = "mpi")]
use std::sync::Arc;
use std::time::Duration;

use crate::Primitives;
use crate::activity::Waiting;
#[cfg(feature = "mpi")]
use crate::collective::mpi::{Mpi, library};
#[cfg(feature = "mpi")]
use crate::guard::{self, finalize, start_up};
use crate::host::Place;
#[cfg(feature = "mpi")]
use crate::host::oversubscribed;
#[cfg(feature = "mpi")]
use crate::lab::MpiPrimitives;
use crate::member::Member;
use crate::threads::seat::Seat;
#[cfg(feature = "mpi")]
use crate::{CommError, Launcher, environment, process};

/// All ranks of the job, from the perspective of one of them.
///
/// A handle: clones are cheap and refer to the same job, so types can hold one without a lifetime.
/// MPI is finalized when the process exits, not when the last handle is dropped. So no value that
/// uses MPI can outlive it, and a rank whose `main` returns an error aborts the job instead of
/// waiting for the others.
///
/// MPI is called only from the thread that started it, so a world, and any type that holds one, is
/// `!Send` and `!Sync`:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::World>();
/// ```
///
/// ```compile_fail,E0277
/// fn is_used_by_several_threads<T: Sync>() {}
/// is_used_by_several_threads::<burn_mpi::World>();
/// ```
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
///
/// User-defined types hold a world and a collective like any other value:
///
/// ```no_run
/// use burn_mpi::{Backend, Collective, CommError, Transport, World, connect};
///
/// struct Trainer {
///     world: World,
///     collective: Box<dyn Collective>,
/// }
///
/// fn trainer(world: &World) -> Result<Trainer, CommError> {
///     let collective = connect(world, Backend::Mpi, &Transport::default())?;
///     Ok(Trainer { world: world.clone(), collective })
/// }
/// ```
#[derive(Clone)]
pub struct World(Rc<Job>);

struct Job {
    member: Rc<Member>,
    places: Vec<Place>,
    library: String,
    home: Home,
    /// The transport of exchanges: at first that of [`World::messages`].
    control: RefCell<Box<dyn Primitives>>,
}

/// What the ranks of a world are.
enum Home {
    /// Processes of an MPI job.
    #[cfg(feature = "mpi")]
    Mpi(Mpi, MpiPrimitives),
    /// Threads of this process.
    Threads(Seat),
}

impl World {
    /// Starts MPI and connects to the other ranks. Without a launcher the world is one rank.
    ///
    /// The job aborts if the start takes longer than 120 s, and from then on if a collective does,
    /// with a line that names the missing ranks as far as they are known; see
    /// [`set_deadline`](Self::set_deadline), and [`set_deadline`](crate::set_deadline) for the start.
    ///
    /// # Threads
    /// MPI starts at the level `MPI_THREAD_FUNNELED`: the calling thread, which need not be
    /// `main`'s, is the only one that calls MPI from here on. A process may have any number of
    /// other threads. None of them should read the environment (`getenv`) during this call, which
    /// sets variables for Open MPI: `OMPI_MCA_ess_singleton_isolated=1`, with which a process without
    /// a launcher needs no daemon and no ssh, and cannot spawn others (unless it is set to 0), and
    /// `OMPI_MCA_mpi_yield_when_idle=1` if there are more ranks than cores. A process that is alone in
    /// a shell inside another job removes the job's variables with which Open MPI and MPICH would end it.
    ///
    /// This crate starts threads that do not call MPI: one for the deadline of the start, the guard,
    /// which checks deadlines and exchanges UDP messages with the other ranks' guards, and one for
    /// each gloo connection. An
    /// exit handler of the process finalizes MPI, on the thread that exits.
    ///
    /// Call it once per process: MPI cannot start twice.
    ///
    /// # Errors
    /// [`CommError::Start`] if MPI does not start, or was started in this process before.
    /// [`CommError::ForeignLauncher`] if another MPI's launcher started this process,
    /// [`CommError::Inherited`] if its launcher's process manager is not there,
    /// [`CommError::Cleared`] if its launcher's variables are not, and
    /// [`CommError::ByHand`] if torchrun's variables alone number it.
    #[cfg(feature = "mpi")]
    pub fn init() -> Result<Self, CommError> {
        let launcher = Launcher::detect_or_refuse()?;
        let library = library::library_version();
        // SAFETY: MPI has not started, and no thread of this crate or of the caller reads the environment.
        unsafe { environment::prepare(launcher.as_ref(), &library)? };
        let _start_up = start_up::watch(launcher.as_ref());
        let rank = launcher.as_ref().map_or(0, |launcher| launcher.rank);
        log::debug!("rank {rank}: MPI is about to start");
        let threading = ::mpi::Threading::Funneled;
        let (universe, provided) = ::mpi::initialize_with_threading(threading)
            .ok_or_else(|| CommError::Start("it has been started in this process before".into()))?;
        if provided < threading {
            return Err(CommError::Start(format!(
                "it offers {provided:?}, and this program needs {threading:?}"
            )));
        }
        log::debug!("rank {rank}: MPI has started");
        library::note_thread();
        // SAFETY: this thread has started MPI.
        let (rank, size) = unsafe { Mpi::rank_and_size()? };
        if let Some(launcher) = launcher {
            launcher.check(size, &library)?;
        }
        let here = Place::of_this_process(rank);
        let activity = Arc::clone(process::activity());
        let mut member = Member { rank, size, host: here.host.clone(), yields: false, activity };
        // SAFETY: this thread has started MPI, which only the exit handler finalizes.
        let mpi = |member: &Member| unsafe { Mpi::new(Rc::new(member.clone())) };
        finalize::arrange(&mpi(&member))?;
        // Its drop would finalize MPI; the exit handler does that.
        std::mem::forget(universe);
        process::identify(&member, false);
        let operations = MpiPrimitives::of_job(&mpi(&member))?;
        let places =
            Self::over_mpi(mpi(&member), operations.clone(), Vec::new(), String::new()).gather(&here)?;
        member.yields = oversubscribed(&places, 1);
        let world = Self::over_mpi(mpi(&member), operations, places, library);
        guard::start(&world)?;
        log::debug!("rank {rank}: the guard has started");
        Ok(world)
    }

    #[cfg(feature = "mpi")]
    fn over_mpi(mpi: Mpi, operations: MpiPrimitives, places: Vec<Place>, library: String) -> Self {
        let control = RefCell::new(Box::new(operations.clone()) as _);
        let member = mpi.member();
        Self(Rc::new(Job { member, places, library, home: Home::Mpi(mpi, operations), control }))
    }

    /// The world of a rank that is a thread.
    pub(crate) fn of_seat(seat: Seat, places: Vec<Place>) -> Self {
        let control = RefCell::new(seat.primitives());
        let (member, library) = (Rc::new(seat.member().clone()), "no MPI".to_owned());
        Self(Rc::new(Job { member, places, library, home: Home::Threads(seat), control }))
    }

    /// Sets the deadline of collectives from here on, on this rank.
    pub fn set_deadline(&self, deadline: Duration) {
        self.member().activity.set_deadline(deadline);
    }

    /// Applies the deadline to a wait of a transport of another crate, until the result is dropped.
    /// All ranks must call it for the same operations in the same order.
    ///
    /// Names are those in error messages: `transport` as in
    /// [`Collective::transport`](crate::Collective::transport), `operation` as in
    /// [`Operation::name`](crate::Operation::name), `broadcast` or `barrier`, and `bucket` if the
    /// operation has one.
    ///
    /// ```no_run
    /// # use burn_mpi::World;
    /// # fn wait_for_the_network() {}
    /// # fn wait(world: &World) {
    /// let _waiting = world.watch("nccl", "all-reduce", Some(2));
    /// wait_for_the_network();
    /// # }
    /// ```
    pub fn watch(&self, transport: &str, operation: &str, bucket: Option<usize>) -> Waiting {
        self.member().enter(transport, operation, bucket)
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.member.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.member.size
    }

    /// Whether this is rank 0, which writes the files and shows progress.
    pub fn is_root(&self) -> bool {
        self.rank() == 0
    }

    /// This rank's host name.
    pub fn host(&self) -> &str {
        &self.0.member.host
    }

    /// Where each rank runs, in rank order.
    pub fn places(&self) -> &[Place] {
        &self.0.places
    }

    /// The MPI library in use, such as `Open MPI v4.1.4`.
    pub fn mpi_library(&self) -> &str {
        &self.0.library
    }

    /// Routes all exchanges from here on, of all clones, over `control` instead of MPI, so that a
    /// job on another transport uses MPI only to start. All ranks must call it at the same time.
    pub fn exchange_over(&self, control: Box<dyn Primitives>) {
        self.0.control.replace(control);
    }

    pub(crate) fn member(&self) -> &Rc<Member> {
        &self.0.member
    }

    /// MPI and its blocking operations, if ranks are its processes.
    #[cfg(feature = "mpi")]
    pub(crate) fn mpi(&self) -> Result<(&Mpi, &MpiPrimitives), CommError> {
        match &self.0.home {
            Home::Mpi(mpi, operations) => Ok((mpi, operations)),
            Home::Threads(_) => {
                Err(CommError::Transport("ranks that are threads have no MPI; use connect".into()))
            }
        }
    }

    /// This rank's place among threads, if ranks are that.
    pub(crate) fn seat(&self) -> Option<&Seat> {
        match &self.0.home {
            #[cfg(feature = "mpi")]
            Home::Mpi(..) => None,
            Home::Threads(seat) => Some(seat),
        }
    }

    /// Messages between ranks, whatever the transport of exchanges.
    pub(crate) fn messages(&self) -> Box<dyn Primitives> {
        match &self.0.home {
            #[cfg(feature = "mpi")]
            Home::Mpi(_, operations) => Box::new(operations.clone()),
            Home::Threads(seat) => seat.primitives(),
        }
    }

    pub(crate) fn control(&self) -> &RefCell<Box<dyn Primitives>> {
        &self.0.control
    }
}
