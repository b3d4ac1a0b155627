//! Messages between guards, over UDP.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Guard, TICK};
use crate::activity::{Departure, Status};

/// How long a guard listens after each time that it asks all ranks.
const ROUND: Duration = Duration::from_millis(300);
/// How often it asks at least: the last answer counts.
const ROUNDS: u32 = 5;
/// How often it asks if some rank does not answer. The guard of one whose core is busy may take seconds. Rounds are
/// counted, since this process may be stopped meanwhile, which must not count as the others' silence.
const MOST_ROUNDS: u32 = 20;
/// How long a rank has not answered that answers in none of them.
pub(super) const SILENT: Duration = Duration::from_millis(ROUND.as_millis() as u64 * MOST_ROUNDS as u64);
/// Maximum bytes of a reason in a message.
pub(super) const REASON: usize = 600;
/// Bytes of the longest UDP datagram, rounded up.
const DATAGRAM: usize = 1 << 16;

/// What a guard tells another one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// What is the receiver doing?
    Question,
    Answer,
    /// The sender exits with this code, for a reason that is empty if unknown.
    Leaving {
        status: i32,
        reason: String,
    },
    /// The sender is about to print why the job ends.
    Ending,
    /// The sender is about to print who is waited for.
    Stalled,
    /// MPI has ended in the sender.
    Ended,
    /// MPI has ended in all ranks.
    AllEnded,
    /// The sender knows that, and exits soon.
    Knows,
    /// The sender has received that.
    Confirmed,
}

/// The job's number, the sender's rank, what that one is doing, and what it tells.
type Datagram = (u64, usize, Status, Message);

impl Guard {
    /// Waits one tick for a message; answers a question, returns an answer and its rank.
    pub(super) fn recv(&self) -> Option<(usize, Status)> {
        let mut bytes = [0; DATAGRAM];
        let (length, from) = match self.socket.recv_from(&mut bytes) {
            Ok(received) => received,
            Err(error) => {
                // A process that was stopped and goes on is interrupted.
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
            Message::Knows => self.send(&Message::Confirmed, &[from]),
            Message::Ending => activity.with(|state| {
                state.ended_by = Some(state.ended_by.map_or(rank, |other| other.min(rank)));
            }),
            Message::Stalled => activity.with(|state| {
                state.told = state.told.max(seen.entered);
                if rank < self.member.rank {
                    state.told_below = state.told_below.max(seen.entered);
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
            Message::Answer | Message::Ended | Message::AllEnded | Message::Confirmed => {}
        }
        // After what is sent: this process may exit then.
        self.exits.note(rank, &message);
        matches!(message, Message::Answer).then_some((rank, seen))
    }

    /// Tells all other guards.
    pub(super) fn announce(&self, message: &Message) {
        let others = self.peers.iter().enumerate().filter(|(rank, _)| *rank != self.member.rank);
        others.for_each(|(_, addresses)| self.send(message, addresses));
    }

    pub(super) fn send(&self, message: &Message, to: &[SocketAddr]) {
        let datagram = (self.job, self.member.rank, self.member.activity.now(), message);
        let bytes = serde_json::to_vec(&datagram).expect("plain values have a JSON");
        for address in to {
            // A peer that cannot be reached counts as one that does not answer.
            let _ = self.socket.send_to(&bytes, address);
        }
    }

    /// Receives messages for so long.
    pub(super) fn recv_for(&self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.recv();
        }
    }

    /// Asks all other ranks for their current operation; returns the last answer of
    /// each. Ends early if this rank's own operation does, or the job.
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

/// Every address under which other hosts may reach this one, and the loopback.
pub(super) fn own_addresses(socket: &UdpSocket) -> Vec<SocketAddr> {
    let port = socket.local_addr().map_or(0, |address| address.port());
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default().into_iter();
    let others = interfaces.map(|interface| interface.ip()).filter(|ip| ip.is_ipv4() && !ip.is_loopback());
    let all = std::iter::once(Ipv4Addr::LOCALHOST.into()).chain(others);
    all.map(|ip| SocketAddr::new(ip, port)).collect()
}
