//! Starts a process as one rank of a job, and ends the whole job from one rank.
//!
//! A launcher reads its ranks' output through pipes. MPICH's launcher ends the job as soon as one rank asks
//! for it, and may drop output that is still in a pipe. This output is often the line that says why the job
//! ends. A rank therefore waits until its output has been read before it ends the job.
//!
//! When a rank asks for the end, MPICH's mpirun (Hydra) ends the other ranks and waits for each host to
//! confirm. It sets no keepalives, so it waits indefinitely for a host that is cut off. A rank on mpirun's
//! own host can end mpirun. The rank finds mpirun among its ancestors: Hydra's proxy on that host is mpirun's
//! child, and the ranks are the proxy's children.

use std::error::Error;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use mpi::ffi;
use parking_lot::Mutex;

use crate::collective::compared::Checked;
use crate::collective::mpi::calls::MpiLink;
use crate::collective::mpi::{Mpi, is_mpi_thread, mpi_library, note_thread};
use crate::collective::pending::Link;
use crate::collective::wire::Element;
use crate::guard::{finalize, start_up};
use crate::host::{named_ranks, tell_apart};
use crate::launcher::stat;
use crate::member::Member;
use crate::process::{self, identity, print_line};
use crate::{Call, CommError, Launcher, Place, SharedError, World, environment, guard};

impl World {
    /// Starts MPI and connects to the other ranks. Without a launcher the world is one rank.
    ///
    /// The job aborts if the start takes longer than 120 s, or if a later collective does. It then prints a
    /// line that names the missing ranks if they are known. See [`set_deadline`](Self::set_deadline) for
    /// collectives, and [`set_deadline`](crate::set_deadline) for the start.
    ///
    /// # Threads
    /// MPI starts at the level `MPI_THREAD_FUNNELED`: from here on, the calling thread is the only one that
    /// calls MPI. It need not be the thread of `main`. A process may have any number of other threads. No
    /// other thread should read the environment (`getenv`) during this call, because the call changes it.
    ///
    /// The call sets variables for Open MPI. With `OMPI_MCA_ess_singleton_isolated=1`, a process without a
    /// launcher needs no daemon and no ssh, but cannot spawn other processes; a program that spawns sets it
    /// to 0. `OMPI_MCA_mpi_yield_when_idle=1` is set if this host has more ranks than cores. A process
    /// without other ranks may have inherited variables of a job whose process manager no longer answers.
    /// Open MPI or MPICH would end the process because of these variables, so the call removes them.
    ///
    /// This crate starts threads that do not call MPI: one for the deadline of the start, one for each
    /// transport that is connected over gloo, and the guard, which checks deadlines and exchanges UDP
    /// messages with the other ranks' guards. An exit handler of the process finalizes MPI, on the thread
    /// that exits.
    ///
    /// Call it once per process: MPI cannot start twice.
    ///
    /// # Errors
    /// [`CommError::Start`] if MPI does not start, or was started in this process before.
    /// [`CommError::ForeignLauncher`] if another MPI's launcher started this process,
    /// [`CommError::Inherited`] if the process manager of its launcher does not answer,
    /// [`CommError::Cleared`] if the variables of its launcher are missing, and [`CommError::ByHand`] if only
    /// torchrun's variables give it a rank. [`SharedError::Elsewhere`] on all ranks if a rank was built from
    /// other sources of this crate than rank 0.
    pub fn init() -> Result<Self, CommError> {
        // Two threads must not pass the check at the same time.
        static STARTING: Mutex<()> = Mutex::new(());
        let starting = STARTING.lock();
        let started_before = || {
            let reason =
                "this process has started MPI before; call World::init once, and start MPI nowhere else";
            CommError::Start(reason.into())
        };
        if has_started() {
            return Err(started_before());
        }
        let launcher = Launcher::detect_or_refuse()?;
        let library = mpi_library();
        // SAFETY: MPI has not started, as checked above. No thread of this crate reads the environment, and
        // the documentation of `init` requires that no thread of the caller does.
        unsafe { environment::prepare(launcher.as_ref(), &library)? };
        let _start_up = start_up::watch(launcher.as_ref());
        let rank = launcher.as_ref().map_or(0, |launcher| launcher.rank);
        log::debug!("rank {rank}: MPI is about to start");
        let threading = ::mpi::Threading::Funneled;
        let (universe, provided) = ::mpi::initialize_with_threading(threading).ok_or_else(started_before)?;
        drop(starting);
        if provided < threading {
            return Err(CommError::Start(format!(
                "this library needs the thread level {threading:?}, but MPI offers only {provided:?}"
            )));
        }
        log::debug!("rank {rank}: MPI has started");
        note_thread();
        // SAFETY: this thread has started MPI.
        let (rank, size) = unsafe { Mpi::rank_and_size()? };
        if let Some(launcher) = launcher {
            launcher.check(size, &library)?;
        }
        let here = Place::of_this_process(rank);
        let activity = Arc::clone(&process::ACTIVITY);
        let member = Member { rank, size, host: here.host.clone(), yields: false, activity };
        // SAFETY: this thread has started MPI, which only the exit handler finalizes.
        let mpi = unsafe { Mpi::new(Rc::new(member.clone())) };
        finalize::arrange(&mpi)?;
        // Dropping `universe` would finalize MPI, which is left to the exit handler.
        std::mem::forget(universe);
        process::identify(&member, false);
        let mut link = MpiLink::new(mpi)?;
        check_builds(&mut link)?;
        let mut world = Self::new(member, Box::new(Checked::over(link)), library);
        let mut places = world.gather(&here)?;
        tell_apart(&mut places);
        world.place(places);
        guard::start(&world)?;
        log::debug!("rank {rank}: the guard has started");
        world.enter();
        Ok(world)
    }
}

/// The version of this crate and the digest of its sources. The format of messages between ranks depends on
/// them.
const BUILD: &str = concat!("burn-mpi ", env!("CARGO_PKG_VERSION"), ", sources ", env!("BURN_MPI_SOURCES"));

/// Compares the builds of all ranks. This is the first exchange of a job, and has the same format in every
/// build: 128 bytes for the build and 128 bytes for the host, each padded with zeros.
///
/// # Errors
/// On all ranks, [`SharedError::Elsewhere`] names the ranks with another build than rank 0.
fn check_builds(link: &mut MpiLink) -> Result<(), CommError> {
    const ROOM: usize = 128;
    let Member { size, host, .. } = link.member();
    let mut all = vec![0; 2 * ROOM * size];
    let mut mine = [BUILD, host].map(|text| text.as_bytes()[..text.len().min(ROOM)].to_vec());
    mine.iter_mut().for_each(|bytes| bytes.resize(ROOM, 0));
    link.make(Call::AllGather, Element::Byte, &mine.concat(), &mut all)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let ranks: Vec<[String; 2]> =
        all.chunks_exact(2 * ROOM).map(|rank| [text(&rank[..ROOM]), text(&rank[ROOM..])]).collect();
    let others: Vec<usize> = (1..ranks.len()).filter(|&rank| ranks[rank][0] != ranks[0][0]).collect();
    let Some((&rank, more)) = others.split_first() else { return Ok(()) };
    let [build, host] = ranks[rank].clone();
    let hosts: Vec<String> = ranks.iter().map(|[_, host]| host.clone()).collect();
    let also =
        if more.is_empty() { String::new() } else { format!("; so has {}", named_ranks(more, &hosts)) };
    let reason = format!(
        "it has a different build ({build}) from rank 0 on {} ({}){also}: copy the same program to all machines",
        ranks[0][1], ranks[0][0]
    );
    Err(CommError::Shared(SharedError::Elsewhere { rank, host, reason }))
}

/// Runs `body` as one rank of the job. An error or a panic on any rank prints one line that names the rank
/// and the reason, and aborts all ranks. A panic aborts the job where it happens: it cannot be caught.
///
/// ```no_run
/// use std::process::ExitCode;
/// use burn_mpi::{World, run};
///
/// fn main() -> ExitCode {
///     run(train)
/// }
///
/// fn train(world: &World) -> Result<(), Box<dyn std::error::Error>> {
///     let data = std::fs::read(format!("shard{}.bin", world.rank()))?;
///     println!("rank {} has {} bytes", world.rank(), data.len());
///     Ok(())
/// }
/// ```
pub fn run(body: impl FnOnce(&World) -> Result<(), Box<dyn Error>>) -> ExitCode {
    end_the_job_on_panic();
    let world = match World::init() {
        Ok(world) => world,
        Err(error) => {
            if !error.is_rank_0s() {
                print_line(&error.to_string());
            }
            return ExitCode::FAILURE;
        }
    };
    let Err(error) = body(&world) else { return ExitCode::SUCCESS };
    world.report(error.as_ref());
    ExitCode::FAILURE
}

/// Aborts all processes of the job with exit code `code`. If MPI is not running, ends only this process.
///
/// May be called from any thread, and from a panic hook. The thread that started MPI calls `MPI_Abort`. At
/// the thread level that [`World::init`](crate::World::init) requests, other threads must not call MPI. If
/// another thread calls `abort`, this process exits at once, without `MPI_Finalize`, and its launcher aborts
/// the job (Open MPI's and MPICH's mpirun and Slurm's srun do). In both cases, `abort` first waits up to 5
/// seconds until the launcher has read what this process has printed.
pub fn abort(code: i32) -> ! {
    wait_until_read();
    // The exit handler must not wait for the other ranks.
    finalize::cancel();
    // SAFETY: MPI_Finalized may be called at any time from any thread (MPI 3.1, section 8.7.1), and writes to
    // a local variable. MPI_Abort is called only on the thread that started MPI (`is_mpi_thread`), and only
    // while MPI runs (`has_started`, and `finished` is 0). _exit may be called on any thread.
    unsafe {
        let mut finished = 0;
        ffi::MPI_Finalized(&mut finished);
        if has_started() && finished == 0 {
            if is_mpi_thread() {
                ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code);
            } else {
                end_mpirun();
                // Exit handlers could wait for the thread that is inside MPI, so they are skipped.
                libc::_exit(code);
            }
        }
    }
    std::process::exit(code)
}

/// Returns whether MPI was started in this process. It may have been finalized since.
fn has_started() -> bool {
    let mut started = 0;
    // SAFETY: MPI_Initialized may be called at any time from any thread (MPI 3.1, section 8.7.1), and writes
    // to a local variable.
    unsafe { ffi::MPI_Initialized(&mut started) };
    started != 0
}

/// Makes a panic on any thread of one rank abort all ranks, which would otherwise wait for that rank. The
/// panic hook prints the rank, calls the previous panic hook, and then [`abort`]s with code 101. Only the
/// first call has an effect.
pub fn end_the_job_on_panic() {
    /// The exit code of a Rust program that panics.
    const PANICKED: i32 = 101;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            #[cfg(feature = "data")]
            if process::defers_panics() {
                return before(panic);
            }
            if let Some((rank, _, host)) = identity() {
                print_line(&format!("rank {rank} on {host} panicked: aborting the job"));
            }
            before(panic);
            abort(PANICKED)
        }));
    });
}

/// How long the launcher may take to read the output. A launcher that is busy or stopped must not keep the
/// job from ending.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// If standard output or standard error is a pipe, waits until its reader has read everything, for at most
/// [`LIMIT`]. Call it before this process ends the job.
pub(crate) fn wait_until_read() {
    let began = Instant::now();
    while [libc::STDOUT_FILENO, libc::STDERR_FILENO].into_iter().any(is_unread) && began.elapsed() < LIMIT {
        std::thread::sleep(PAUSE);
    }
}

/// Returns whether a pipe contains unread bytes; false for anything else, such as a file.
fn is_unread(descriptor: libc::c_int) -> bool {
    // SAFETY: fstat and ioctl accept any number, and fail if it is not an open descriptor. Both write to
    // local variables of the types that they require. All zeros is a valid stat.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let mut bytes: libc::c_int = 0;
        libc::fstat(descriptor, &mut status) == 0
            && status.st_mode & libc::S_IFMT == libc::S_IFIFO
            && libc::ioctl(descriptor, libc::FIONREAD, &mut bytes) == 0
            && bytes > 0
    }
}

/// Shell script that ends process `$0`, which is Hydra's mpirun. It first waits 3 seconds, in which mpirun
/// ends by itself if it can. mpirun may forward the first signal and wait again, so the script sends a second
/// one.
const END: &str = r#"
    sleep 3
    for signal in TERM KILL; do
        case $(cat "/proc/$0/comm") in mpiexec*|mpirun*) kill -s $signal "$0" ;; *) exit ;; esac
        sleep 1
    done
"#;

/// Makes mpirun end after some seconds, if it is MPICH's mpirun and runs on this host. A child process ends
/// mpirun, because this rank exits earlier than that.
pub(crate) fn end_mpirun() {
    let Some(mpirun) = mpirun() else { return };
    // If no child process starts, mpirun goes on waiting. The error cannot be reported.
    let _ = Command::new("sh")
        .args(["-c", END, &mpirun.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
}

/// Returns the process id of Hydra's mpirun. It is the parent of Hydra's proxy, which is an ancestor of this
/// rank, possibly with a wrapper between proxy and rank.
fn mpirun() -> Option<u32> {
    let mut ancestor = parent_id();
    for _ in 0..4 {
        let (name, parent) = name_and_parent(ancestor)?;
        if name == "hydra_pmi_proxy" {
            let (name, _) = name_and_parent(parent)?;
            return (name.starts_with("mpiexec") || name.starts_with("mpirun")).then_some(parent);
        }
        ancestor = parent;
    }
    None
}

/// Returns the name and the parent of a process.
fn name_and_parent(pid: u32) -> Option<(String, u32)> {
    let (name, fields) = stat(&pid.to_string())?;
    Some((name, fields.get(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_pipe_is_unread_until_its_reader_has_read_it() {
        let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
        assert!(!is_unread(writer.as_raw_fd()));
        writer.write_all(b"why\n").expect("room in the pipe");
        assert!(is_unread(writer.as_raw_fd()));
        reader.read_exact(&mut [0; 4]).expect("four bytes");
        assert!(!is_unread(writer.as_raw_fd()));
    }

    #[test]
    fn files_and_closed_descriptors_have_nothing_to_wait_for() {
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        assert!(!is_unread(file.as_raw_fd()));
        assert!(!is_unread(-1));
    }

    #[test]
    fn this_process_has_a_parent_that_is_no_mpirun() {
        let (name, parent) = name_and_parent(std::process::id()).expect("/proc/self");
        assert!(!name.is_empty() && parent == parent_id());
        assert_eq!(mpirun(), None);
    }
}
