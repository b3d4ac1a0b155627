//! A deadline for every collective, kept by a thread of its own.
//!
//! A rank inside MPI or gloo cannot look at the clock, and cannot say who is
//! missing: it only waits. So each rank has a guard, a thread that knows which
//! operation the rank is in, and since when, and that talks to the other guards
//! over UDP. When an operation exceeds its deadline, the guard asks all of them;
//! a rank that does not answer (stopped, dead, cut off), or has not come to that
//! operation, is missing. The line names it, and the job ends. A rank that ends
//! while others wait for it says so, and they need not wait for the deadline.

pub(crate) mod activity;
pub(crate) mod farewell;
mod hydra;
mod messages;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use self::activity::Seen;
pub(crate) use self::hydra::end_mpirun;
use self::messages::{ANSWER, Header, QUESTION, own_addresses};
use crate::run::say;
use crate::{CommError, World};

/// Exit code of a job that a guard ended.
const TIMED_OUT: i32 = 3;
/// How often a guard looks at the clock.
const TICK: Duration = Duration::from_millis(100);
/// How much longer each rank waits than the one below it before it speaks up
/// itself: one line is enough, and the lowest rank that can prints it.
const PATIENCE: Duration = Duration::from_millis(700);
/// How long a rank waits for one that has left before it ends the job. One that
/// left with an error ends the job itself, and sooner.
const LEFT: Duration = Duration::from_secs(2);
const FAILED: Duration = Duration::from_secs(5);
/// How long a peer may be silent at least before it counts as stopped.
const SILENCE: Duration = Duration::from_secs(10);
/// How often a rank that leaves says so.
const ANNOUNCE: Duration = Duration::from_millis(200);
/// How much longer than the deadline a transport's own timeout should be: the
/// guards know who is missing and a transport does not, so they speak first.
pub const MARGIN: Duration = Duration::from_secs(8);

struct Guard {
    socket: UdpSocket,
    rank: usize,
    job: u64,
    hosts: Vec<String>,
    peers: Vec<Vec<SocketAddr>>,
}

/// Starts this rank's guard. Called by all ranks; a job of one rank needs none.
///
/// # Errors
/// When the ranks cannot exchange their guards' addresses.
pub(crate) fn start(world: &World) -> Result<(), CommError> {
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
    let guard = Guard { rank: world.rank(), job, hosts, peers, socket };
    let started = std::thread::Builder::new().name("guard".into()).spawn(move || guard.watch());
    if started.is_err() {
        log::warn!("no thread for the guard: a collective that hangs will not be ended");
    }
    Ok(())
}

impl Guard {
    fn watch(self) {
        if self.socket.set_read_timeout(Some(TICK)).is_err() {
            return;
        }
        let mut announced: Option<Instant> = None;
        // A peer that has never been heard may be one that UDP does not reach.
        let mut heard: Vec<Option<Instant>> = vec![None; self.hosts.len()];
        self.peers.iter().for_each(|addresses| self.send(ANSWER, 0, "", addresses));
        loop {
            if let Some(answer) = self.hear() {
                heard[answer[1] as usize] = Some(Instant::now());
            }
            if let Some((status, reason)) = activity::leaving() {
                if announced.is_none() {
                    heard.iter_mut().flatten().for_each(|at| *at = Instant::now());
                }
                if announced.is_none_or(|at| at.elapsed() > ANNOUNCE) {
                    announced = Some(Instant::now());
                    self.announce(status, &reason);
                    self.peers.iter().for_each(|addresses| self.send(QUESTION, 0, "", addresses));
                }
                self.check_silence(&heard);
                continue;
            }
            let seen = activity::now();
            let Some(waited) = seen.waited else { continue };
            self.check_departures(seen, waited);
            self.check_deadline(seen, waited);
        }
    }

    fn patience(&self) -> Duration {
        PATIENCE * self.rank.min(8) as u32
    }

    /// Ends the job where a rank has left that has not come to the collective
    /// which this rank waits in: it never will.
    fn check_departures(&self, seen: Seen, waited: Duration) {
        for departure in activity::departed() {
            let limit = if departure.status == 0 { LEFT } else { FAILED };
            if departure.entered < seen.entered
                && waited > limit + self.patience()
                && activity::now().entered == seen.entered
            {
                self.end_the_job(&format!(
                    "{}; rank {} on {} waits for it in {}",
                    departure.error(),
                    self.rank,
                    self.hosts[self.rank],
                    activity::describe(seen.what)
                ));
            }
        }
    }

    /// Ends the job where a rank has answered while this one waits to leave, and
    /// does so no longer: it was stopped or cut off. One that works on answers.
    fn check_silence(&self, heard: &[Option<Instant>]) {
        let departed = activity::departed();
        // A guard whose core is taken may be silent for seconds.
        let limit = activity::deadline().max(SILENCE).saturating_add(self.patience());
        for (rank, heard) in heard.iter().enumerate() {
            let silent = heard.is_some_and(|at| at.elapsed() > limit);
            if silent && departed.iter().all(|departure| departure.rank != rank) {
                self.end_the_job(&format!(
                    "rank {rank} on {} has not answered for {} s, and rank {} on {} waits for it to end",
                    self.hosts[rank],
                    limit.as_secs_f64(),
                    self.rank,
                    self.hosts[self.rank]
                ));
            }
        }
    }

    fn check_deadline(&self, seen: Seen, waited: Duration) {
        let deadline = activity::deadline();
        if waited <= deadline.saturating_add(self.patience()) {
            return;
        }
        let answers = self.call_the_roll(seen);
        // The operation may have ended while the others were asked.
        let after = activity::now();
        let Some(waited) = after.waited.filter(|_| after.entered == seen.entered) else { return };
        self.end_the_job(&format!(
            "{} exceeded the deadline of {} s after {:.1} s on rank {} ({}); {}",
            activity::describe(seen.what),
            deadline.as_secs_f64(),
            waited.as_secs_f64(),
            self.rank,
            self.hosts[self.rank],
            self.cause(seen, &answers)
        ))
    }

    /// Who keeps this rank waiting, in words.
    fn cause(&self, seen: Seen, answers: &[Option<Header>]) -> String {
        let is_here =
            |answer: &Header| answer[2] > seen.entered || (answer[2] == seen.entered && answer[3] == 1);
        let others = || (0..answers.len()).filter(|&rank| rank != self.rank);
        let name = |rank: usize| format!("rank {rank} on {}", self.hosts[rank]);
        let missing: Vec<String> =
            others().filter(|&rank| !answers[rank].as_ref().is_some_and(is_here)).map(name).collect();
        if !missing.is_empty() {
            return format!("missing: {}", missing.join(", "));
        }
        let elsewhere = others().find_map(|rank| {
            let answer = answers[rank].filter(|a| (a[2], a[4]) != (seen.entered, seen.what))?;
            Some(format!("{} is in {}", name(rank), activity::describe(answer[4])))
        });
        match elsewhere {
            Some(elsewhere) => format!("{elsewhere}: ranks do not call the same operations"),
            None => "all ranks are in it, so the network between them is to blame".to_owned(),
        }
    }

    fn end_the_job(&self, line: &str) -> ! {
        say(line);
        end_mpirun();
        // SAFETY: ends this process at once, which ends the job. MPI_Abort is
        // not for this thread while the other one is inside MPI, and exit
        // handlers could wait for that one.
        unsafe { libc::_exit(TIMED_OUT) }
    }
}
