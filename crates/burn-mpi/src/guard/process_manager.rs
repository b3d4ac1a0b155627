//! Ends an MPICH job without `MPI_Finalize`, for versions in which `MPI_Finalize` may never return.
//!
//! In MPICH before 4.2 over UCX, each rank closes its connections in `MPI_Finalize`, and then waits for the
//! other ranks. It waits in a read from the socket of the process manager, the daemon that started the ranks.
//! While the rank reads, it no longer answers over the network. A rank that needs an answer to close a
//! connection then waits forever. A C program of MPI_Init, MPI_Sendrecv and MPI_Finalize hangs in a third of
//! its runs with four ranks on two cores and two nodes. In MPICH 4.2, the ranks meet in a barrier first
//! (commit d6c7cd5b64).
//!
//! So the ranks meet in a barrier of the process manager while they still answer over the network. Then they
//! tell the process manager that they have finalized, and exit. The messages follow the protocol PMI-1: lines
//! of `cmd=NAME` over a socket, whose file descriptor is in the environment variable `PMI_FD`. mpiexec.hydra
//! and Slurm's `srun --mpi=pmi2` speak this protocol.

use std::io::{ErrorKind, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long the process manager may take to answer a command of this rank.
const ANSWER: Duration = Duration::from_secs(30);

/// How long one read from the socket waits for an answer.
const LOOK: Duration = Duration::from_millis(1);

/// The process manager's socket, which belongs to the MPI library.
pub(super) struct ProcessManager {
    socket: ManuallyDrop<UnixStream>,
}

impl ProcessManager {
    /// Returns the process manager of this job. Returns `None` if [`may_never_finalize`] is false for
    /// `library`, the version string of the MPI library, or if `PMI_FD` names no open descriptor.
    ///
    /// # Safety
    /// MPI has been initialized, its library no longer uses the socket, and nothing else in this process owns
    /// the socket.
    pub(super) unsafe fn instead_of_finalize(library: &str) -> Option<Self> {
        if !may_never_finalize(library) {
            return None;
        }
        let descriptor: RawFd = std::env::var("PMI_FD").ok()?.parse().ok().filter(|&fd| fd > 2)?;
        // SAFETY: fcntl accepts any number, and fails if the number is not an open descriptor.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
            return None;
        }
        // SAFETY: the descriptor is open, and nobody else uses it, as the caller states. ManuallyDrop leaves
        // it open.
        let socket = ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(descriptor) });
        Some(Self { socket })
    }

    /// Waits for all ranks in a barrier of the process manager, and calls `progress` meanwhile. Then reports
    /// that this rank has finalized.
    pub(super) fn finalize(&mut self, mut progress: impl FnMut()) -> std::io::Result<()> {
        self.socket.set_read_timeout(Some(LOOK))?;
        self.ask("barrier_in", "barrier_out", &mut progress)?;
        self.ask("finalize", "finalize_ack", &mut || ())
    }

    fn ask(&mut self, command: &str, answer: &str, progress: &mut dyn FnMut()) -> std::io::Result<()> {
        self.socket.write_all(format!("cmd={command}\n").as_bytes())?;
        let began = Instant::now();
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            progress();
            let mut byte = [0];
            match self.socket.read(&mut byte) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => line.push(byte[0]),
                Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Err(error);
                }
                Err(_) if began.elapsed() > ANSWER => return Err(ErrorKind::TimedOut.into()),
                Err(_) => {}
            }
        }
        let line = String::from_utf8_lossy(&line);
        if line.split_whitespace().any(|word| word.strip_prefix("cmd=") == Some(answer)) {
            Ok(())
        } else {
            Err(std::io::Error::other(format!("unexpected answer '{}'", line.trim())))
        }
    }
}

/// Returns whether `library` is the version string of an MPICH before 4.2 over UCX.
fn may_never_finalize(library: &str) -> bool {
    let version = library.strip_prefix("MPICH Version:").and_then(|text| text.split_whitespace().next());
    let mut numbers = version.unwrap_or_default().split('.').map_while(|number| number.parse::<u32>().ok());
    let older = matches!((numbers.next(), numbers.next()), (Some(3), _) | (Some(4), Some(0 | 1)));
    older && library.contains("ch4:ucx")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn only_older_mpich_over_ucx_is_not_finalized() {
        let library = |version: &str, device: &str| {
            format!("MPICH Version:\t{version}\nMPICH Release date:\tThu Apr  7\nMPICH Device:\t{device}\n")
        };
        assert!(may_never_finalize(&library("4.0.2", "ch4:ucx")));
        assert!(may_never_finalize(&library("4.1", "ch4:ucx")));
        assert!(!may_never_finalize(&library("4.2.0", "ch4:ucx")));
        assert!(!may_never_finalize(&library("5.0.0rc3", "ch4:ucx")));
        assert!(!may_never_finalize(&library("4.0.2", "ch4:ofi")));
        assert!(!may_never_finalize("Open MPI v4.1.4, package: Debian OpenMPI, ch4:ucx"));
    }

    fn manager_and_socket() -> (ProcessManager, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a socket");
        (ProcessManager { socket: ManuallyDrop::new(ours) }, theirs)
    }

    #[test]
    fn all_ranks_meet_with_progress_before_the_end_is_reported() {
        let (mut manager, theirs) = manager_and_socket();
        static PROGRESS: AtomicUsize = AtomicUsize::new(0);
        let daemon = std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().expect("a socket"));
            let (mut asked, mut theirs) = (Vec::new(), theirs);
            for answer in ["cmd=barrier_out\n", "cmd=finalize_ack rc=0\n"] {
                let mut line = String::new();
                lines.read_line(&mut line).expect("a line");
                // The barrier is incomplete until this rank has made progress.
                while line == "cmd=barrier_in\n" && PROGRESS.load(Ordering::Relaxed) < 5 {
                    std::thread::yield_now();
                }
                asked.push(line);
                theirs.write_all(answer.as_bytes()).expect("an answer");
            }
            asked
        });
        manager.finalize(|| _ = PROGRESS.fetch_add(1, Ordering::Relaxed)).expect("an end");
        assert_eq!(daemon.join().expect("a daemon"), ["cmd=barrier_in\n", "cmd=finalize\n"]);
    }

    #[test]
    fn another_answer_and_a_closed_socket_are_errors() {
        let (mut manager, mut theirs) = manager_and_socket();
        theirs.write_all(b"cmd=abort\n").expect("an answer");
        let error = manager.finalize(|| ()).expect_err("no barrier");
        assert!(error.to_string().contains("'cmd=abort'"), "{error}");
        let (mut manager, theirs) = manager_and_socket();
        drop(theirs);
        manager.finalize(|| ()).expect_err("a closed socket");
    }
}
