//! Start of a process as one rank of a job, and the end of the whole job from one rank.
//!
//! A launcher reads its ranks' output through pipes. MPICH's ends the job as soon as one rank asks for it, and may drop
//! what is still in a pipe: often the line that tells why. So a rank waits before it ends the job.
//!
//! MPICH's mpirun (Hydra) then ends the other ranks and waits for each host to confirm. It sets no keepalives, so it
//! waits indefinitely for a host that is cut off. A rank on mpirun's own host can end it: Hydra's proxy there is
//! mpirun's child, and the ranks are the proxy's.

use std::error::Error;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, ExitCode, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use mpi::ffi;

use crate::collective::compared::Checked;
use crate::collective::mpi::calls::MpiLink;
use crate::collective::mpi::{Mpi, is_mpi_thread, mpi_library, note_thread};
use crate::collective::pending::Link;
use crate::collective::wire::Element;
use crate::guard::{finalize, start_up};
use crate::host::tell_apart;
use crate::launcher::stat;
use crate::member::Member;
use crate::process::{self, identity, print_line};
use crate::{Call, CommError, Launcher, Place, SharedError, World, environment, guard};

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
    /// [`SharedError::Elsewhere`] on all ranks if one is built of other sources of this crate.
    pub fn init() -> Result<Self, CommError> {
        let launcher = Launcher::detect_or_refuse()?;
        let library = mpi_library();
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
        // Its drop would finalize MPI; the exit handler does that.
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
        Ok(world)
    }
}

/// The version of this crate and the digest of its sources: what ranks exchange depends on them.
const BUILD: &str = concat!("burn-mpi ", env!("CARGO_PKG_VERSION"), ", sources ", env!("BURN_MPI_SOURCES"));

/// Compares the builds of all ranks, in the first exchange of all, whose form is the same in each build: 128 bytes
/// for the build and 128 for the host, with zeros after both.
///
/// # Errors
/// On all ranks, [`SharedError::Elsewhere`] names those with another build than rank 0.
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
    let more: String = more.iter().map(|&rank| format!(", rank {rank} on {}", ranks[rank][1])).collect();
    let also = if more.is_empty() { String::new() } else { format!("; so it is with{}", &more[1..]) };
    let reason = format!(
        "it has another build ({build}) than rank 0 on {} ({}): copy one program to all machines{also}",
        ranks[0][1], ranks[0][0]
    );
    Err(CommError::Shared(SharedError::Elsewhere { rank, host, reason }))
}

/// Runs `body` as one rank of the job. An error or a panic on any rank prints
/// one line that names the rank and the reason, and aborts all ranks. A panic
/// aborts the job where it happens: it cannot be caught.
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

/// Aborts all processes of the job with `code`; only this process if MPI is not running.
///
/// May be called from any thread, and from a panic hook. The thread that started MPI calls
/// `MPI_Abort`. Other threads must not, at the thread level that
/// [`World::init`](crate::World::init) requests: there this process exits at once, without
/// `MPI_Finalize`, and its launcher aborts the job (Open MPI's and MPICH's mpirun and Slurm's
/// srun do). Before that, the launcher has up to 5 seconds to read what this process has printed.
pub fn abort(code: i32) -> ! {
    wait_until_read();
    // No exit handler may wait for the other ranks.
    finalize::cancel();
    // SAFETY: MPI_Initialized and MPI_Finalized may be called at any time from any thread (MPI
    // 3.1, section 8.7.1); MPI_Abort is called on this thread only while MPI runs, which they
    // check.
    unsafe {
        let (mut started, mut finished) = (0, 0);
        ffi::MPI_Initialized(&mut started);
        ffi::MPI_Finalized(&mut finished);
        if started != 0 && finished == 0 {
            if is_mpi_thread() {
                ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code);
            } else {
                end_mpirun();
                // Exit handlers could wait for the thread that is inside MPI.
                libc::_exit(code);
            }
        }
    }
    std::process::exit(code)
}

/// Makes a panic on any thread of one rank abort all ranks, which would otherwise wait for it.
/// Prints the rank, calls the previous panic hook, and then [`abort`]s with code 101. The first call
/// counts.
pub fn end_the_job_on_panic() {
    /// The exit code of a Rust program that panics.
    const PANICKED: i32 = 101;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if let Some((rank, _, host)) = identity() {
                print_line(&format!("rank {rank} on {host} panicked: ending the job"));
            }
            before(panic);
            abort(PANICKED)
        }));
    });
}

/// How long the launcher may take. One that is busy or stopped must not keep the job from its end.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until the readers of standard output and standard error have read everything, where these
/// are pipes. To be called before this process ends the job.
pub(crate) fn wait_until_read() {
    let began = Instant::now();
    while [libc::STDOUT_FILENO, libc::STDERR_FILENO].into_iter().any(is_unread) && began.elapsed() < LIMIT {
        std::thread::sleep(PAUSE);
    }
}

/// Whether bytes are left in a pipe; false for anything else, such as a file.
fn is_unread(descriptor: libc::c_int) -> bool {
    // SAFETY: fstat and ioctl take any number, and fail if that is no open descriptor; both write to
    // variables of this function alone, of the types that they require. All zeros is a valid stat.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let mut bytes: libc::c_int = 0;
        libc::fstat(descriptor, &mut status) == 0
            && status.st_mode & libc::S_IFMT == libc::S_IFIFO
            && libc::ioctl(descriptor, libc::FIONREAD, &mut bytes) == 0
            && bytes > 0
    }
}

/// Ends process `$0` after 3 seconds, in which Hydra ends the job by itself if
/// it can. It may forward a first signal and wait again.
const END: &str = r#"
    sleep 3
    for signal in TERM KILL; do
        case $(cat "/proc/$0/comm") in mpiexec*|mpirun*) kill -s $signal "$0" ;; *) exit ;; esac
        sleep 1
    done
"#;

/// Ends mpirun soon, if it is MPICH's and runs on this host. A child process
/// does it, since this rank exits first.
pub(crate) fn end_mpirun() {
    let Some(mpirun) = mpirun() else { return };
    // If this fails, mpirun waits: the error cannot be reported.
    let _ = Command::new("sh")
        .args(["-c", END, &mpirun.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
}

/// The process id of Hydra's mpirun: the parent of the proxy that is this
/// rank's ancestor, possibly with a wrapper between them.
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

/// A process's program name and parent.
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
