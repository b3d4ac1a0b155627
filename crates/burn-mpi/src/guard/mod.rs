//! Aborts the job if a rank waits in a collective for longer than the deadline.
//!
//! A rank inside MPI or gloo cannot check a deadline, and cannot tell which ranks are missing. So each rank
//! has a guard, which is a thread. The guard reads which operation the rank is in, and since when. It
//! exchanges messages with the guards of the other ranks over UDP.
//!
//! If an operation exceeds its deadline, the guard asks all other guards which operation their ranks are in.
//! A rank is missing if its guard does not answer (the rank is stopped, dead, cut off or very slow), or if
//! the rank has not entered the operation. The guard prints a line that names the missing ranks, and aborts
//! the job.
//!
//! A rank announces its exit if other ranks may wait for it. The others then need not wait for the deadline.

mod exit_barrier;
pub(crate) mod finalize;
mod process_manager;
pub(crate) mod start_up;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::activity::{Departure, State, Status};
use crate::cause::Wait;
use crate::guard::exit_barrier::{ExitBarrier, LINGER};
use crate::member::Member;
use crate::messages::{self, NOTICED, WAITS};
use crate::process::print_of;
use crate::run::{LIMIT, end_mpirun, wait_until_read};
use crate::{CommError, World};

/// Exit code of a job that a guard aborted.
const TIMED_OUT: i32 = 3;
/// Interval at which a guard checks the deadline.
const TICK: Duration = Duration::from_millis(100);
/// Unit of the delay before a report: rank r waits r times this duration, and from rank 8 on, one unit more for
/// each doubling of r. One line is enough, and the lowest rank that can report prints it.
const PATIENCE: Duration = Duration::from_millis(700);
/// How long a rank waits for another rank that has left with exit code 0, before the waiting rank aborts the
/// job.
const LEFT: Duration = Duration::from_secs(2);
/// The same wait if the other rank has left with an error. That rank normally aborts the job itself before
/// this time.
const FAILED: Duration = Duration::from_secs(10);
/// While a rank waits to leave, it aborts the job if another rank is silent for longer than the deadline. If
/// the deadline is shorter than this time, this time applies instead.
const SILENCE: Duration = Duration::from_secs(6);
/// Time between a rank's announcement that it prints why the job ends, and the printed line. In this time, a
/// lower rank can announce that it prints the line instead.
const CLAIM: Duration = Duration::from_secs(1);
/// How long a rank waits for another rank to print why the job ends. The exit of the printing rank ends all
/// ranks. If this rank exited earlier, the launcher would end the job before the line is printed.
const PRINTED: Duration = Duration::from_secs(20);
/// Interval at which a rank that leaves announces that it leaves, in a small job ([`spaced`]).
const ANNOUNCE: Duration = Duration::from_millis(200);
/// Interval between the questions with which rank 0, after its start, tests whether the other ranks answer at
/// all.
const REACH: Duration = Duration::from_secs(10);
/// How long a transport may take to abort its operations.
const ABORT: Duration = Duration::from_secs(1);
/// How much a transport's own timeout should exceed the deadline. Guards can name the missing ranks, and a
/// transport cannot, so guards have to report first.
#[cfg(feature = "gloo")]
pub const MARGIN: Duration = Duration::from_secs(30);

struct Guard {
    socket: UdpSocket,
    member: Member,
    job: u64,
    hosts: Vec<String>,
    peers: Vec<Vec<SocketAddr>>,
    exits: ExitBarrier,
}

/// The guard of this process. Not set in a job of one rank, or if the guard's socket could not be opened.
static GUARD: OnceLock<Guard> = OnceLock::new();

/// Waits until MPI has ended on all ranks, if this process has a guard. Called when MPI has ended on this
/// rank.
fn exit_together() {
    if let Some(guard) = GUARD.get() {
        guard.exit_together();
    }
}

/// Starts this rank's guard. Called by all ranks. A job of one rank needs no guard.
///
/// # Errors
/// If the ranks cannot exchange their guards' addresses.
pub(crate) fn start(world: &World) -> Result<(), CommError> {
    if world.size() == 1 {
        return Ok(());
    }
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let addresses = socket.as_ref().map(own_addresses).unwrap_or_default();
    let mut peers: Vec<Vec<SocketAddr>> = world.gather(&addresses)?;
    // A random number that nobody can guess: messages with another number are ignored.
    let job = world.broadcast(&RandomState::new().build_hasher().finish())?;
    let hosts: Vec<String> = world.places().iter().map(|place| place.host.clone()).collect();
    let Ok(socket) = socket else {
        log::warn!("cannot open a UDP socket for the guard: a collective that hangs will not be aborted");
        return Ok(());
    };
    for (host, addresses) in hosts.iter().zip(&mut peers) {
        addresses.retain(|address| host == world.host() || !address.ip().is_loopback());
    }
    let member = Member::clone(world.member());
    let guard = Guard { member, job, hosts, peers, socket, exits: ExitBarrier::new(LINGER, world.size()) };
    let guard = GUARD.get_or_init(|| guard);
    if std::thread::Builder::new().name("guard".into()).spawn(|| guard.watch()).is_err() {
        log::warn!("cannot start the guard's thread: a collective that hangs will not be aborted");
    }
    Ok(())
}

/// Returns how much longer than rank 0 this rank waits before it reports.
fn patience(rank: usize) -> Duration {
    PATIENCE * if rank < 8 { rank as u32 } else { 5 + rank.ilog2() }
}

/// Returns the interval between messages that every rank of a job of `size` ranks repeats. It grows with the
/// number of ranks, so that the number of messages that a rank receives in a second does not: a socket that
/// receives more than its process reads drops them.
fn spaced(interval: Duration, size: usize) -> Duration {
    interval * (size / 16).max(1) as u32
}

/// Waits until this process's output has been read, then ends this process, and with it the job.
fn end_process() -> ! {
    wait_until_read();
    end_mpirun();
    // SAFETY: exits this process at once, which ends the job. This thread must not call MPI_Abort while
    // another thread is inside MPI, and exit handlers could wait for that thread.
    unsafe { libc::_exit(TIMED_OUT) }
}

impl Guard {
    fn watch(&self) {
        let activity = &self.member.activity;
        if self.socket.set_read_timeout(Some(TICK)).is_err() {
            return;
        }
        let mut announced: Option<Instant> = None;
        self.announce(&Message::Answer);
        let mut asked = vec![Instant::now()];
        loop {
            self.recv();
            for rank in self.unreached(&mut asked, REACH) {
                log::warn!(
                    "rank {rank} on {} does not answer over UDP: it was stopped, is very slow, or a firewall drops UDP \
                     between the hosts; allow UDP between all hosts, because a job in which a rank hangs may \
                     otherwise not be aborted",
                    self.hosts[rank]
                );
            }
            if let Some(status) = activity.with(|state| state.leaving) {
                if announced.is_none() {
                    self.exits.begin_to_listen();
                }
                let interval = spaced(ANNOUNCE, self.member.size);
                if announced.is_none_or(|at| at.elapsed() > interval) {
                    announced = Some(Instant::now());
                    self.announce_exit(status);
                }
                self.check_silence();
                continue;
            }
            let seen = activity.now();
            let Some(waited) = seen.waited else { continue };
            self.check_departures(&seen, waited);
            self.check_wait(&seen, waited);
        }
    }

    /// Announces to all ranks that this rank leaves with exit code `status`. Also asks questions, because a
    /// rank that leaves notices if another rank is stopped ([`check_silence`](Self::check_silence)). Rank 0
    /// asks all ranks, and they ask rank 0: if all ranks asked all ranks, the answers would fill the sockets.
    fn announce_exit(&self, status: i32) {
        let mut reason = self.member.activity.with(|state| state.reason.clone());
        reason.truncate(reason.floor_char_boundary(REASON));
        self.announce(&Message::Leaving { status, reason });
        if self.member.rank == 0 {
            self.announce(&Message::Question);
        } else {
            self.send(&Message::Question, &self.peers[0]);
        }
    }

    /// Tests on rank 0 whether the other ranks answer. The guard calls this function at each tick. The
    /// function asks all ranks three times, `interval` apart. When `interval` has passed after the third
    /// question, one call returns the ranks that have never answered. All other calls return no ranks.
    /// `asked` has the time of the guard's start, followed by the time of each question.
    ///
    /// A firewall may let MPI's connections through and drop the guards' messages. Behind such a firewall,
    /// the guards cannot name a rank that hangs, and do not notice a rank that is stopped while it exits.
    fn unreached(&self, asked: &mut Vec<Instant>, interval: Duration) -> Vec<usize> {
        const QUESTIONS: usize = 3;
        if self.member.rank > 0 || asked.len() > QUESTIONS + 1 || asked[asked.len() - 1].elapsed() < interval
        {
            return Vec::new();
        }
        asked.push(Instant::now());
        if asked.len() <= QUESTIONS + 1 {
            self.announce(&Message::Question);
            return Vec::new();
        }
        (1..self.hosts.len()).filter(|&rank| !self.exits.has_received(rank, asked[1])).collect()
    }

    /// Aborts the job if this rank waits for a rank that has left: in a collective that the other rank has
    /// not entered, or in a message to or from the other rank.
    fn check_departures(&self, seen: &Status, waited: Duration) {
        let now = self.member.activity.now();
        if now.entered != seen.entered || now.waited < Some(waited) {
            return;
        }
        for departure in self.member.activity.departed() {
            let limit = if departure.status == 0 { LEFT } else { FAILED };
            let since = self.member.now().saturating_sub(departure.since);
            if (departure.entered < seen.entered || seen.peer == Some(departure.rank))
                && waited.min(since) > limit + patience(self.member.rank)
            {
                let Member { rank, host, .. } = &self.member;
                let error = departure.error();
                let line = format!("{error}; rank {rank} on {host} waits for it in {}", seen.what);
                self.end_the_job(NOTICED, &line);
            }
        }
    }

    /// Aborts the job if a rank that answered before stops answering while this rank waits to leave. The
    /// silent rank was stopped or cut off, perhaps while it was leaving itself. A running rank answers while
    /// it computes and while it leaves, until it knows that the other ranks no longer need it.
    fn check_silence(&self) {
        // The guard of a rank on a busy core may be silent for seconds.
        let deadline = self.member.activity.with(|state| state.deadline);
        let Member { rank, size, .. } = self.member;
        let limit = deadline.max(SILENCE).max(3 * spaced(ANNOUNCE, size)).saturating_add(patience(rank));
        // The ranks that this rank asks.
        let silent = || self.exits.silent(limit).into_iter().find(|&other| rank == 0 || other == 0);
        if silent().is_none() {
            return;
        }
        // Perhaps this rank itself was stopped, and has not yet read the messages of the others. `query_all`
        // reads them.
        self.query_all(&self.member.activity.now());
        if let Some(rank) = silent() {
            let line = format!(
                "rank {rank} on {} has not answered for {} s, while rank {} on {} waits for it to exit",
                self.hosts[rank],
                limit.as_secs_f64(),
                self.member.rank,
                self.member.host
            );
            self.end_the_job(WAITS, &line);
        }
    }

    /// Aborts the job if a collective exceeds the deadline. Before the deadline, prints one warning for a
    /// collective that takes long, because a job that makes no progress must not be silent. If ranks are in
    /// collectives that can never complete, aborts the job instead of printing the warning.
    fn check_wait(&self, seen: &Status, waited: Duration) {
        let activity = &self.member.activity;
        let (deadline, stall) = activity.with(|state| (state.deadline, state.stall_warning));
        let limit = stall.saturating_add(patience(self.member.rank));
        let end = deadline.saturating_add(patience(self.member.rank));
        if waited <= end {
            // Only one rank warns about a collective: the first that sees the long wait.
            let is_warned = activity.with(|state| state.warned >= seen.entered);
            if stall >= deadline || waited <= limit || is_warned {
                return;
            }
            activity.with(|state| state.warned = seen.entered);
            self.announce(&Message::Stalled);
        }
        let answers = self.query_all(seen);
        // While the others were asked, this operation may have completed, and another operation may have
        // begun.
        let after = activity.now();
        let Some(waited) = after.waited.filter(|_| after.entered == seen.entered) else { return };
        let departed = activity.departed();
        let (member, hosts) = (&self.member, &self.hosts);
        let wait = Wait { member, hosts, seen, answers: &answers, silent: SILENT, departed: &departed };
        let is_warned = |state: &mut State| state.warned_below >= seen.entered || state.ended_by.is_some();
        // The deadline may pass while this rank asks the others for its warning. No warning is printed after
        // the deadline.
        if waited > end {
            self.end_the_job(messages::FAILED, &wait.deadline(waited).to_string());
        } else if let Some(error) = wait.deadlock() {
            self.end_the_job(messages::FAILED, &error.to_string());
        } else if (limit..deadline).contains(&waited) && !activity.with(is_warned) {
            print_of(WAITS, &wait.stall(waited));
        }
    }

    /// Returns whether this rank prints why the job ends. One line is enough: if several ranks are about to
    /// print it, the lowest of them does. If another rank has already announced the line, this rank does not
    /// print. If not, this rank announces the line, and waits for the time [`CLAIM`], in which a lower rank
    /// may announce it too. Without the announcement, the other guards would count this rank as missing,
    /// because this guard is about to stop answering.
    fn prints_the_end(&self) -> bool {
        // Read what the others have sent meanwhile.
        self.recv_for(TICK);
        if self.member.activity.with(|state| state.ended_by).is_some() {
            return false;
        }
        self.announce(&Message::Ending);
        if self.member.rank > 0 {
            self.recv_for(CLAIM);
        }
        self.member.activity.with(|state| state.ended_by).is_none_or(|other| other > self.member.rank)
    }

    /// Ends this process, and with it the job.
    fn end_the_job(&self, kind: &str, line: &str) -> ! {
        if !self.prints_the_end() {
            // Normally the exit of the printing rank ends this process during the sleep. If the printing rank
            // was stopped before it printed, this rank prints the line after the sleep.
            std::thread::sleep(LIMIT + PRINTED);
        }
        print_of(kind, line);
        // The guard must not call the transport, because another thread uses it. The other thread reads this
        // flag and aborts its operations.
        if self.member.activity.with(|state| state.ending.replace(true).is_some()) {
            std::thread::sleep(ABORT);
        }
        end_process()
    }

    /// Waits up to one tick for a message, and handles the message. If the message is an answer, returns its
    /// sender's rank and status.
    pub(super) fn recv(&self) -> Option<(usize, Status)> {
        let mut bytes = [0; DATAGRAM];
        let (length, from) = match self.socket.recv_from(&mut bytes) {
            Ok(received) => received,
            Err(error) => {
                // A process that was stopped and continues gets `Interrupted`.
                use ErrorKind::{Interrupted, TimedOut, WouldBlock};
                if !matches!(error.kind(), WouldBlock | TimedOut | Interrupted) {
                    std::thread::sleep(TICK);
                }
                return None;
            }
        };
        let (job, rank, seen, message): Datagram = serde_json::from_slice(&bytes[..length]).ok()?;
        if job != self.job || rank >= self.hosts.len() || rank == self.member.rank {
            return None;
        }
        let activity = &self.member.activity;
        match &message {
            Message::Question => self.send(&Message::Answer, &[from]),
            Message::Acknowledged => self.send(&Message::Confirmed, &[from]),
            Message::Ending => activity.with(|state| {
                state.ended_by = Some(state.ended_by.map_or(rank, |other| other.min(rank)));
            }),
            Message::Stalled => activity.with(|state| {
                state.warned = state.warned.max(seen.entered);
                if rank < self.member.rank {
                    state.warned_below = state.warned_below.max(seen.entered);
                }
            }),
            Message::Leaving { status, reason } => {
                let (host, status, reason) = (self.hosts[rank].clone(), *status, reason.clone());
                let (entered, since) = (seen.entered, self.member.now());
                let departure = Departure { rank, host, status, entered, reason, since };
                activity.with(|state| {
                    if state.departed.iter().all(|known| known.rank != rank) {
                        state.departed.push(departure);
                    }
                });
            }
            Message::Answer | Message::Finalized | Message::AllFinalized | Message::Confirmed => {}
        }
        // Record the message only after the answer above is sent: once it is recorded, this process may exit.
        self.exits.note(rank, &message);
        matches!(message, Message::Answer).then_some((rank, seen))
    }

    /// Sends `message` to all other guards.
    pub(super) fn announce(&self, message: &Message) {
        let others = self.peers.iter().enumerate().filter(|(rank, _)| *rank != self.member.rank);
        others.for_each(|(_, addresses)| self.send(message, addresses));
    }

    pub(super) fn send(&self, message: &Message, to: &[SocketAddr]) {
        let datagram = (self.job, self.member.rank, self.member.activity.now(), message);
        let bytes = serde_json::to_vec(&datagram).expect("plain values have a JSON");
        for address in to {
            // A peer that cannot be reached counts as a peer that does not answer.
            let _ = self.socket.send_to(&bytes, address);
        }
    }

    /// Receives messages until `time` has passed.
    pub(super) fn recv_for(&self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.recv();
        }
    }

    /// Asks all other ranks for their current operation. Returns the last answer of each rank, or `None` if
    /// the rank has not answered. Ends early if this rank's own operation ends, or if the job ends.
    pub(super) fn query_all(&self, seen: &Status) -> Vec<Option<Status>> {
        let (activity, mut answers) = (&self.member.activity, vec![None; self.peers.len()]);
        let is_needed = || {
            let now = activity.now();
            let waits = seen.waited.is_none() || now.waited.is_some();
            waits && now.entered == seen.entered && activity.with(|state| state.ended_by.is_none())
        };
        let is_known = |(rank, answer): (usize, &Option<Status>)| {
            let has_left = || activity.with(|state| state.departed.iter().any(|left| left.rank == rank));
            answer.is_some() || rank == self.member.rank || has_left()
        };
        for round in 0..MOST_ROUNDS {
            if !is_needed() || (round >= ROUNDS && answers.iter().enumerate().all(is_known)) {
                break;
            }
            let asked = Instant::now();
            self.announce(&Message::Question);
            while asked.elapsed() < ROUND && is_needed() {
                if let Some((rank, answer)) = self.recv() {
                    answers[rank] = Some(answer);
                }
            }
        }
        answers
    }
}

/// How long a guard listens after each round of questions to all ranks.
const ROUND: Duration = Duration::from_millis(300);
/// Minimum number of rounds. The last answer of each rank counts.
const ROUNDS: u32 = 5;
/// Maximum number of rounds, if a rank does not answer. The guard of a rank on a busy core may take seconds
/// to answer. The limit is a number of rounds rather than a time: this process may be stopped meanwhile, and
/// the time of the stop must not count as silence of the others.
const MOST_ROUNDS: u32 = 20;
/// How long a rank has been silent if it has not answered in [`MOST_ROUNDS`] rounds.
pub(super) const SILENT: Duration = Duration::from_millis(ROUND.as_millis() as u64 * MOST_ROUNDS as u64);
/// Maximum bytes of a reason in a message.
pub(super) const REASON: usize = 600;
/// Bytes of the longest UDP datagram, rounded up.
const DATAGRAM: usize = 1 << 16;

/// A message of one guard to another.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// Asks what the receiver is doing. The reply is an `Answer`.
    Question,
    Answer,
    /// The sender exits with the code `status`. `reason` is empty if it is unknown.
    Leaving {
        status: i32,
        reason: String,
    },
    /// The sender is about to print why the job ends.
    Ending,
    /// The sender is about to print a warning with the ranks that it waits for.
    Stalled,
    /// MPI has ended on the sender.
    Finalized,
    /// MPI has ended on all ranks.
    AllFinalized,
    /// The sender has received `AllFinalized`, and exits soon.
    Acknowledged,
    /// The sender has received `Acknowledged`.
    Confirmed,
}

/// The job's number, the sender's rank, the sender's status, and the message.
type Datagram = (u64, usize, Status, Message);

/// Returns every IPv4 address at which other hosts may reach this host, and the loopback address.
pub(super) fn own_addresses(socket: &UdpSocket) -> Vec<SocketAddr> {
    let port = socket.local_addr().map_or(0, |address| address.port());
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default().into_iter();
    let others = interfaces.map(|interface| interface.ip()).filter(|ip| ip.is_ipv4() && !ip.is_loopback());
    let all = std::iter::once(Ipv4Addr::LOCALHOST.into()).chain(others);
    all.map(|ip| SocketAddr::new(ip, port)).collect()
}
