//! A deadline for every collective, kept by a thread of its own.
//!
//! A rank inside MPI or gloo cannot look at the clock, and cannot say who is
//! missing: it only waits. So each rank has a guard, a thread that knows which
//! collective the rank is in, and since when, and that answers the other
//! guards over UDP. When a collective exceeds its deadline, the guard asks all
//! of them; whoever does not answer (stopped, gone, cut off), or has not come
//! to that collective, is missing. The line names them, and the job ends.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{CommError, World, hydra};

/// Exit code of a job that a guard ended.
const TIMED_OUT: i32 = 3;
/// How often a guard looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// How long answers are waited for.
const ROLL_CALL: Duration = Duration::from_millis(1500);
/// How much longer each rank waits than the one below it before it speaks up
/// itself: one line is enough, and the lowest rank that can prints it.
const PATIENCE: Duration = Duration::from_millis(700);

/// How much longer than the deadline a transport's own timeout should be: the
/// guards know who is missing and a transport does not, so they speak first.
pub const MARGIN: Duration = Duration::from_secs(8);

/// What this rank is doing, written by it and read by its guard.
struct Activity {
    /// Collectives entered so far.
    entered: AtomicU64,
    /// When the one under way began, in ms since `epoch` and at least 1; 0
    /// where none is.
    since: AtomicU64,
    /// Index of its name in [`NAMES`], and its bucket + 1.
    what: AtomicU64,
    epoch: OnceLock<Instant>,
}

static ACTIVITY: Activity = Activity {
    entered: AtomicU64::new(0),
    since: AtomicU64::new(0),
    what: AtomicU64::new(0),
    epoch: OnceLock::new(),
};

/// Operations that can be waited in.
const NAMES: [&str; 6] = ["all-reduce", "all-gather", "broadcast", "barrier", "all-to-all", "exchange"];

/// Says that this rank is in a collective, until it is dropped.
pub(super) struct Waiting(());

/// Enters the collective `operation`, on `bucket` where it has one.
pub(super) fn enter(operation: &str, bucket: Option<usize>) -> Waiting {
    let epoch = ACTIVITY.epoch.get_or_init(Instant::now);
    let name = NAMES.iter().position(|name| *name == operation).unwrap_or(NAMES.len() - 1);
    let bucket = bucket.map_or(0, |bucket| bucket as u64 + 1);
    ACTIVITY.what.store(name as u64 | bucket << 8, Ordering::Relaxed);
    ACTIVITY.entered.fetch_add(1, Ordering::Relaxed);
    ACTIVITY.since.store(epoch.elapsed().as_millis() as u64 + 1, Ordering::Release);
    Waiting(())
}

impl Drop for Waiting {
    fn drop(&mut self) {
        ACTIVITY.since.store(0, Ordering::Release);
    }
}

/// A question or an answer between guards: this job's number, the sender's
/// rank, the collectives it has entered, whether it is in one, and whether
/// this is an answer.
type Message = [u64; 5];

struct Guard {
    socket: UdpSocket,
    deadline: Duration,
    rank: usize,
    job: u64,
    backend: &'static str,
    hosts: Vec<String>,
    peers: Vec<Vec<SocketAddr>>,
}

/// Starts this rank's guard. Called by all ranks; a job of one rank needs none.
///
/// # Errors
/// When the ranks cannot exchange their guards' addresses.
pub fn start(world: &World, deadline: Duration, backend: &'static str) -> Result<(), CommError> {
    if world.size() == 1 {
        return Ok(());
    }
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let addresses: Vec<SocketAddr> = match &socket {
        Ok(socket) => own_addresses(socket.local_addr().map_or(0, |address| address.port())),
        Err(_) => Vec::new(),
    };
    let peers: Vec<Vec<SocketAddr>> = world.gather(&addresses)?;
    let job = world.broadcast(&u64::from(std::process::id()))?;
    let hosts: Vec<String> = world.places().iter().map(|place| place.host.clone()).collect();
    let Ok(socket) = socket else {
        log::warn!("no UDP socket for the guard: a collective that hangs will not be ended");
        return Ok(());
    };
    let same_host = |peer: usize| hosts[peer] == hosts[world.rank()];
    let peers = peers
        .into_iter()
        .enumerate()
        .map(|(peer, mut addresses)| {
            addresses.retain(|address| same_host(peer) || !address.ip().is_loopback());
            addresses
        })
        .collect();
    let guard = Guard { deadline, rank: world.rank(), job, backend, hosts, peers, socket };
    let started = std::thread::Builder::new().name("guard".into()).spawn(move || guard.watch());
    if started.is_err() {
        log::warn!("no thread for the guard: a collective that hangs will not be ended");
    }
    Ok(())
}

/// How long MPI may take to end.
const FINALIZE: Duration = Duration::from_secs(20);

/// Says that this rank is done and will exit with `code`: if MPI does not end
/// by then, the process ends without it. MPICH's ranks were seen to wait for
/// each other for ever there, with everything written and said.
pub fn leave(code: u8) {
    let _ = std::thread::Builder::new().name("leave".into()).spawn(move || {
        std::thread::sleep(FINALIZE);
        eprintln!("mpiburn: MPI does not end; leaving it after {} s", FINALIZE.as_secs());
        // SAFETY: ends this process at once; exit handlers would wait for MPI.
        unsafe { libc::_exit(i32::from(code)) }
    });
}

impl Guard {
    fn watch(self) {
        if self.socket.set_read_timeout(Some(TICK)).is_err() {
            return;
        }
        let patience = PATIENCE * self.rank.min(8) as u32;
        loop {
            self.hear();
            let Some((waited, entered)) = overdue(self.deadline + patience) else { continue };
            let missing = self.call_the_roll(entered);
            // The collective may have ended while the others were asked.
            if overdue(self.deadline).is_some_and(|(_, now)| now == entered) {
                self.end_the_job(waited, &missing);
            }
        }
    }

    /// Waits a tick for a message; answers a question, returns an answer.
    fn hear(&self) -> Option<Message> {
        let mut bytes = [0u8; 40];
        match self.socket.recv_from(&mut bytes) {
            Ok((40, from)) => {
                let message: Message = bytemuck::pod_read_unaligned(&bytes);
                if message[0] != self.job {
                    return None;
                }
                if message[4] == 1 {
                    return Some(message);
                }
                self.send(1, &[from]);
                None
            }
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                std::thread::sleep(TICK);
                None
            }
            _ => None,
        }
    }

    fn send(&self, answer: u64, to: &[SocketAddr]) {
        let waiting = u64::from(ACTIVITY.since.load(Ordering::Acquire) > 0);
        let entered = ACTIVITY.entered.load(Ordering::Relaxed);
        let message: Message = [self.job, self.rank as u64, entered, waiting, answer];
        for address in to {
            // A peer that cannot be reached is one that does not answer.
            let _ = self.socket.send_to(bytemuck::bytes_of(&message), address);
        }
    }

    /// Ranks that are not in the collective number `entered`.
    fn call_the_roll(&self, entered: u64) -> Vec<usize> {
        let mut present = vec![false; self.peers.len()];
        present[self.rank] = true;
        let began = Instant::now();
        let mut asked: Option<Instant> = None;
        while began.elapsed() < ROLL_CALL {
            if asked.is_none_or(|at| at.elapsed() > ROLL_CALL / 5) {
                asked = Some(Instant::now());
                self.peers.iter().for_each(|addresses| self.send(0, addresses));
            }
            if let Some([_, rank, their_entered, waiting, _]) = self.hear()
                && let Some(present) = present.get_mut(rank as usize)
            {
                *present |= their_entered > entered || (their_entered == entered && waiting == 1);
            }
        }
        (0..present.len()).filter(|&rank| !present[rank]).collect()
    }

    fn end_the_job(&self, waited: Duration, missing: &[usize]) -> ! {
        let what = ACTIVITY.what.load(Ordering::Relaxed);
        let operation = NAMES[(what & 0xff) as usize];
        let bucket = match what >> 8 {
            0 => String::new(),
            bucket => format!(" of bucket {}", bucket - 1),
        };
        let names: Vec<String> =
            missing.iter().map(|&rank| format!("rank {rank} on {}", self.hosts[rank])).collect();
        let who = match names.is_empty() {
            true => "all ranks are in it, so the network between them is to blame".to_owned(),
            false => format!("missing: {}", names.join(", ")),
        };
        eprintln!(
            "mpiburn: {} {operation}{bucket} exceeded --comm-timeout after {:.1} s on rank {} ({}); {who}",
            self.backend,
            waited.as_secs_f64(),
            self.rank,
            self.hosts[self.rank],
        );
        hydra::end_mpirun();
        // SAFETY: ends this process at once, which ends the job. MPI_Abort is
        // not for this thread while the other one is inside MPI, and exit
        // handlers could wait for that one.
        unsafe { libc::_exit(TIMED_OUT) }
    }
}

/// How long the collective under way has taken, and its number, where that is
/// longer than `deadline`.
fn overdue(deadline: Duration) -> Option<(Duration, u64)> {
    let since = ACTIVITY.since.load(Ordering::Acquire);
    let epoch = ACTIVITY.epoch.get()?;
    let waited = epoch.elapsed().saturating_sub(Duration::from_millis(since));
    (since > 0 && waited > deadline).then(|| (waited, ACTIVITY.entered.load(Ordering::Relaxed)))
}

/// Every address under which other hosts may reach this one, and the loopback.
fn own_addresses(port: u16) -> Vec<SocketAddr> {
    let mut addresses: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
    for interface in if_addrs::get_if_addrs().unwrap_or_default() {
        if interface.ip().is_ipv4() && !interface.is_loopback() {
            addresses.push(interface.ip());
        }
    }
    addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}
