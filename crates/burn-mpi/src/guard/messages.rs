//! Messages between guards, over UDP.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::{Guard, TICK};
use crate::activity::{Departure, Seen};

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
const REASON: usize = 600;

pub(super) const QUESTION: u64 = 0;
pub(super) const ANSWER: u64 = 1;
pub(super) const LEAVING: u64 = 2;
/// A guard has printed why the job ends.
pub(super) const ENDING: u64 = 3;
/// A guard is about to print who is waited for.
pub(super) const STALLED: u64 = 4;

/// MPI has ended in the sender.
pub(super) const ENDED: u64 = 5;
/// MPI has ended in all ranks.
pub(super) const ALL_ENDED: u64 = 6;
/// The sender knows that, and exits soon.
pub(super) const KNOWS: u64 = 7;
/// The sender has had the message before.
pub(super) const CONFIRMED: u64 = 8;

/// Fixed part of a message, before a reason's text: this job's number, the
/// sender's rank, the collectives it has entered, whether it is in an operation,
/// the operation, the kind of message, and the exit code of a rank that leaves.
pub(super) type Header = [u64; 7];
const HEADER: usize = size_of::<Header>();

impl Guard {
    /// Waits one tick for a message; answers a question, returns an answer.
    pub(super) fn hear(&self) -> Option<Header> {
        let mut bytes = [0u8; HEADER + REASON];
        match self.socket.recv_from(&mut bytes) {
            Ok((length, from)) if length >= HEADER => {
                let header: Header = bytemuck::pod_read_unaligned(&bytes[..HEADER]);
                let rank = header[1] as usize;
                if header[0] != self.job || rank >= self.hosts.len() {
                    return None;
                }
                if header[5] == KNOWS {
                    // Before it is noted: this process may exit then.
                    self.send(CONFIRMED, 0, "", &[from]);
                }
                if rank != self.member.rank {
                    self.exits.note(header[5], rank);
                }
                match header[5] {
                    ANSWER => return Some(header),
                    QUESTION => self.send(ANSWER, 0, "", &[from]),
                    ENDING => self.member.activity.note_end(rank),
                    STALLED => {
                        self.member.activity.note_stall(header[2]);
                        if rank < self.member.rank {
                            self.member.activity.leave_stall(header[2]);
                        }
                    }
                    ENDED | ALL_ENDED | KNOWS | CONFIRMED => {}
                    _ => self.member.activity.note_departure(Departure {
                        rank,
                        host: self.hosts[rank].clone(),
                        status: header[6] as i32,
                        entered: header[2],
                        reason: String::from_utf8_lossy(&bytes[HEADER..length]).into_owned(),
                        since: self.member.now(),
                    }),
                }
                None
            }
            // A process that was stopped and goes on is interrupted.
            Err(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                std::thread::sleep(TICK);
                None
            }
            _ => None,
        }
    }

    pub(super) fn announce(&self, kind: u64, status: i32, reason: &str) {
        let others = self.peers.iter().enumerate().filter(|(rank, _)| *rank != self.member.rank);
        others.for_each(|(_, addresses)| self.send(kind, status, reason, addresses));
    }

    pub(super) fn send(&self, kind: u64, status: i32, reason: &str, to: &[SocketAddr]) {
        let Seen { entered, what, waited } = self.member.activity.now();
        let waiting = u64::from(waited.is_some());
        let header: Header = [self.job, self.member.rank as u64, entered, waiting, what, kind, status as u64];
        let mut message = bytemuck::bytes_of(&header).to_vec();
        message.extend(&reason.as_bytes()[..reason.floor_char_boundary(REASON)]);
        for address in to {
            // A peer that cannot be reached counts as one that does not answer.
            let _ = self.socket.send_to(&message, address);
        }
    }

    /// Hears messages for so long.
    pub(super) fn hear_for(&self, time: Duration) {
        let began = Instant::now();
        while began.elapsed() < time {
            self.hear();
        }
    }

    /// Asks all ranks for their current operation; returns the last answer of
    /// each. Ends early if this rank's own operation does, or the job.
    pub(super) fn query_all(&self, seen: Seen) -> Vec<Option<Seen>> {
        let (activity, mut answers) = (&self.member.activity, vec![None; self.peers.len()]);
        let is_needed = || {
            let now = activity.now();
            let waits = seen.waited.is_none() || now.waited.is_some();
            waits && now.entered == seen.entered && activity.ended_by().is_none()
        };
        let is_complete = |answers: &[Option<Seen>]| {
            let departed = activity.departed();
            let is_known =
                |rank| rank == self.member.rank || departed.iter().any(|departure| departure.rank == rank);
            (0..answers.len()).all(|rank| answers[rank].is_some() || is_known(rank))
        };
        for round in 0..MOST_ROUNDS {
            if !is_needed() || (round >= ROUNDS && is_complete(&answers)) {
                break;
            }
            let asked = Instant::now();
            self.peers.iter().for_each(|addresses| self.send(QUESTION, 0, "", addresses));
            while asked.elapsed() < ROUND && is_needed() {
                if let Some(answer) = self.hear() {
                    let [_, rank, entered, waits, what, ..] = answer;
                    let waited = (waits == 1).then_some(Duration::ZERO);
                    answers[rank as usize] = Some(Seen { entered, what, waited });
                }
            }
        }
        answers
    }
}

/// Every address under which other hosts may reach this one, and the loopback.
pub(super) fn own_addresses(port: u16) -> Vec<SocketAddr> {
    let mut addresses: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
    for interface in if_addrs::get_if_addrs().unwrap_or_default() {
        if interface.ip().is_ipv4() && !interface.is_loopback() {
            addresses.push(interface.ip());
        }
    }
    addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}
