//! Exit barrier: makes every rank wait, before it exits, until MPI has ended on all ranks.
//!
//! Ranks leave `MPI_Finalize` at different times: Open MPI's `MPI_Finalize` waits for all ranks at its
//! beginning, and then takes some milliseconds. If a rank is stopped in these milliseconds and the others
//! exit, the launcher waits for the stopped rank forever, and no other rank is left to report it. So ranks
//! exit together:
//!
//! 1. Each rank sends `Finalized` to rank 0 when MPI has ended on it.
//! 2. When rank 0 has received `Finalized` from every rank, it sends `AllFinalized` to all ranks.
//! 3. Each rank answers with `Acknowledged`, and exits when rank 0 has answered with `Confirmed`.
//! 4. Rank 0 exits when every rank has acknowledged.
//!
//! Each rank has a guard, a thread that ends the job if a rank hangs. The guards send these messages over
//! UDP, and repeat each message until it is answered. If a rank stops answering, the guards end the job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{Guard, spaced};
use crate::guard::Message;

/// Interval at which a message without an answer is sent again, in a small job ([`spaced`]).
const RESEND: Duration = Duration::from_millis(20);
/// How long a message is repeated to a rank whose messages do not arrive here.
pub(super) const LINGER: Duration = Duration::from_secs(1);
/// How many times longer a rank repeats `Acknowledged` to a rank 0 whose messages arrive here. Either rank 0
/// has exited, and all its confirmations were lost, or rank 0 has not read the acknowledgement yet: with many
/// ranks on few cores, that takes seconds, and rank 0 would wait for this rank until the deadline.
const PATIENT: u32 = 15;

/// State of the exit barrier on one rank.
pub(super) struct ExitBarrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
    linger: Duration,
    resend: Duration,
}

#[derive(Default)]
struct BarrierState {
    /// When the last message of each rank arrived. It has no entry for a rank whose messages never arrived,
    /// for example because the network cuts the rank off.
    received: BTreeMap<usize, Instant>,
    /// Ranks on which MPI has ended.
    finalized: BTreeSet<usize>,
    /// Ranks that have sent `Acknowledged`. They may have exited.
    acknowledged: BTreeSet<usize>,
    /// Whether MPI has ended on all ranks, or this rank exits without waiting for the others.
    all: bool,
    /// Whether rank 0 has confirmed this rank's acknowledgement.
    confirmed: bool,
}

impl BarrierState {
    /// Returns whether `ranks` contains every rank from which a message has arrived.
    fn is_everyone(&self, ranks: &BTreeSet<usize>) -> bool {
        self.received.keys().all(|rank| ranks.contains(rank))
    }
}

impl ExitBarrier {
    pub(super) fn new(linger: Duration, size: usize) -> Self {
        let resend = spaced(RESEND, size);
        Self { state: Mutex::default(), changed: Condvar::new(), linger, resend }
    }

    /// Records a message of another rank.
    pub(super) fn note(&self, rank: usize, message: &Message) {
        let mut state = self.state.lock();
        state.received.insert(rank, Instant::now());
        match message {
            Message::Finalized => drop(state.finalized.insert(rank)),
            Message::Acknowledged => drop(state.acknowledged.insert(rank)),
            Message::AllFinalized => state.all = true,
            Message::Confirmed => state.confirmed = true,
            _ => return,
        }
        self.changed.notify_all();
    }

    /// Returns whether a message of `rank` has arrived since `since`.
    pub(super) fn has_received(&self, rank: usize, since: Instant) -> bool {
        self.state.lock().received.get(&rank).is_some_and(|&at| at >= since)
    }

    /// Restarts the measurement of how long each rank has been silent. Until now, this rank asked no
    /// questions that the others must answer.
    pub(super) fn begin_to_listen(&self) {
        self.state.lock().received.values_mut().for_each(|at| *at = Instant::now());
    }

    /// Returns the ranks that have sent messages before, but no message for the time `limit`. Leaves out
    /// ranks that have acknowledged the end of MPI on all ranks.
    pub(super) fn silent(&self, limit: Duration) -> Vec<usize> {
        let state = self.state.lock();
        // Once MPI has ended on all ranks, silence is normal: the other ranks exit, and this rank soon exits
        // too.
        let silent = state.received.iter().filter(|(_, at)| !state.all && at.elapsed() > limit);
        silent.map(|(&rank, _)| rank).filter(|rank| !state.acknowledged.contains(rank)).collect()
    }

    /// Calls `send` repeatedly, until the state is `reached` or `limit` has passed. The first call is after
    /// `first`.
    fn wait_until(
        &self,
        first: Duration,
        limit: Duration,
        reached: impl Fn(&BarrierState) -> bool,
        send: impl Fn(),
    ) {
        let began = Instant::now();
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| !reached(state), first);
        while !reached(&state) && began.elapsed() < limit {
            // The guard's thread needs the lock to record messages.
            MutexGuard::unlocked(&mut state, &send);
            self.changed.wait_while_for(&mut state, |state| !reached(state), self.resend);
        }
    }
}

impl Guard {
    /// Waits until MPI has ended on all ranks that can be reached. Call it after MPI has ended on this rank,
    /// while the guard's thread runs: the thread ends the job if a rank is stopped.
    pub(super) fn exit_together(&self) {
        if self.member.rank == 0 {
            self.exit_as_root()
        } else {
            self.exit_as_other()
        }
        self.exits.state.lock().all = true;
    }

    fn exit_as_root(&self) {
        let wait = |reached: fn(&BarrierState) -> bool, tell: &dyn Fn()| {
            self.exits.wait_until(Duration::ZERO, Duration::MAX, reached, tell);
        };
        wait(|state| state.is_everyone(&state.finalized), &|| ());
        let tell = || self.announce(&Message::AllFinalized);
        // Tell the others at least once: some ranks may receive this rank's messages, although their messages
        // do not arrive here.
        tell();
        wait(|state| state.is_everyone(&state.acknowledged), &tell);
        // A rank whose confirmation was lost would repeat its acknowledgement.
        self.announce(&Message::Confirmed);
    }

    fn exit_as_other(&self) {
        let tell = |message| self.send(&message, &self.peers[0]);
        let receives = self.exits.state.lock().received.contains_key(&0);
        let ExitBarrier { linger, .. } = self.exits;
        // Ranks do not all send at the same moment.
        let first = RESEND * (self.member.rank / 16) as u32;
        let limit = if receives { Duration::MAX } else { linger };
        self.exits.wait_until(first, limit, |state| state.all, || tell(Message::Finalized));
        if !receives {
            // Rank 0's messages do not arrive here. Tell all ranks that they need not wait for this rank.
            self.announce(&Message::Acknowledged);
        }
        let limit = if receives { PATIENT * linger } else { linger };
        self.exits.wait_until(first, limit, |state| state.confirmed, || tell(Message::Acknowledged));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;
    use crate::activity::{Activity, DEFAULT_DEADLINE, DEFAULT_STALL};
    use crate::clock::Clock;
    use crate::member::Member;

    /// Linger time in the tests. It is as long as a test may take, so that no test fails on a slow machine.
    /// A lost message shows in the state of the barrier, not in a timeout.
    fn limit() -> Duration {
        Duration::from_secs(include_str!("limit_s").trim().parse().expect("seconds"))
    }

    /// Makes guards of `size` ranks in this process. Each guard's thread receives messages until the guard's
    /// flag is set.
    fn guards(size: usize, linger: Duration) -> Vec<(Arc<Guard>, Arc<AtomicBool>)> {
        let bind = |_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let sockets: Vec<UdpSocket> = (0..size).map(bind).collect();
        let peers: Vec<_> =
            sockets.iter().map(|socket| vec![socket.local_addr().expect("an address")]).collect();
        let hosts = vec!["here".to_owned(); size];
        let guard = |(rank, socket): (usize, UdpSocket)| {
            socket.set_read_timeout(Some(Duration::from_millis(5))).expect("a timeout");
            let exits = ExitBarrier::new(linger, size);
            let (hosts, peers) = (hosts.clone(), peers.clone());
            let activity = Activity::new(Clock::system(), DEFAULT_DEADLINE, DEFAULT_STALL);
            let member = Member::new(rank, size, hosts[rank].clone(), activity);
            let guard = Arc::new(Guard { socket, member, job: 7, hosts, peers, exits });
            let stopped = Arc::new(AtomicBool::new(false));
            let (thread, until) = (Arc::clone(&guard), Arc::clone(&stopped));
            thread::spawn(move || {
                while !until.load(Ordering::Relaxed) {
                    thread.recv();
                }
            });
            (guard, stopped)
        };
        sockets.into_iter().enumerate().map(guard).collect()
    }

    fn introduce(guards: &[(Arc<Guard>, Arc<AtomicBool>)]) {
        for (guard, _) in guards {
            guard.announce(&Message::Answer);
        }
        let everyone =
            |(guard, _): &(Arc<Guard>, _)| guard.exits.state.lock().received.len() == guards.len() - 1;
        while !guards.iter().all(everyone) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until `guard` has received `Finalized` from all `ranks`.
    fn await_ends(guard: &Guard, ranks: &[usize]) {
        while !ranks.iter().all(|rank| guard.exits.state.lock().finalized.contains(rank)) {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn exit_on_a_thread(guard: &Arc<Guard>) -> thread::JoinHandle<()> {
        let guard = Arc::clone(guard);
        thread::spawn(move || guard.exit_together())
    }

    #[test]
    fn no_rank_exits_before_the_last_one_and_then_all_do_at_once() {
        for last in 0..4 {
            let guards = guards(4, limit());
            introduce(&guards);
            let (late, early): (Vec<_>, Vec<_>) =
                guards.iter().enumerate().partition(|(rank, _)| *rank == last);
            let early: Vec<_> = early.into_iter().map(|(_, (guard, _))| exit_on_a_thread(guard)).collect();
            // Rank 0 sends itself no message.
            let ended: Vec<usize> = (1..4).filter(|&rank| rank != last).collect();
            await_ends(&guards[0].0, &ended);
            assert!(early.iter().all(|rank| !rank.is_finished()), "a rank exited before rank {last}");
            late[0].1.0.exit_together();
            early.into_iter().for_each(|rank| rank.join().expect("no panic"));
            let confirmed: Vec<bool> =
                guards[1..].iter().map(|(guard, _)| guard.exits.state.lock().confirmed).collect();
            assert_eq!(confirmed, [true; 3], "a message is lost");
            assert!(guards.iter().all(|(guard, _)| guard.exits.silent(Duration::ZERO).is_empty()));
            guards.iter().for_each(|(_, stopped)| stopped.store(true, Ordering::Relaxed));
        }
    }

    #[test]
    fn a_rank_that_is_stopped_after_its_end_keeps_the_first_from_exiting() {
        let guards = guards(3, limit());
        introduce(&guards);
        // Rank 1 sends `Finalized`, and then neither receives nor answers.
        guards[1].1.store(true, Ordering::Relaxed);
        guards[1].0.send(&Message::Finalized, &guards[1].0.peers[0]);
        await_ends(&guards[0].0, &[1]);
        let [first, other] = [0, 2].map(|rank| exit_on_a_thread(&guards[rank].0));
        other.join().expect("no panic");
        assert!(guards[2].0.exits.state.lock().confirmed, "a message is lost");
        // Rank 0 sends the confirmation before it records the acknowledgement.
        while !guards[0].0.exits.state.lock().acknowledged.contains(&2) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!first.is_finished(), "rank 0 does not wait for rank 1");
        assert_eq!(guards[0].0.exits.silent(Duration::ZERO), [1]);
        guards[0].0.exits.note(1, &Message::Acknowledged);
        first.join().expect("no panic");
    }

    #[test]
    fn many_ranks_exit_together() {
        let guards = guards(48, limit());
        introduce(&guards);
        guards.iter().for_each(|(guard, _)| guard.announce_exit(0));
        let exits: Vec<_> = guards.iter().map(|(guard, _)| exit_on_a_thread(guard)).collect();
        exits.into_iter().for_each(|rank| rank.join().expect("no panic"));
        let confirmed = |(guard, _): &(Arc<Guard>, _)| guard.exits.state.lock().confirmed;
        assert!(guards[1..].iter().all(confirmed), "a message is lost");
        guards.iter().for_each(|(_, stopped)| stopped.store(true, Ordering::Relaxed));
    }

    /// The questions of all ranks together do not grow with the square of the number of ranks.
    #[test]
    fn a_rank_that_leaves_asks_rank_0_alone() {
        const RANKS: usize = 20;
        let guards = guards(RANKS, limit());
        guards.iter().for_each(|(_, stopped)| stopped.store(true, Ordering::Relaxed));
        while guards.iter().any(|(guard, _)| Arc::strong_count(guard) > 1) {
            thread::sleep(Duration::from_millis(1));
        }
        for (rank, expected) in [(0, 1..RANKS), (5, 0..1)] {
            guards[rank].0.announce_exit(0);
            let asked = (0..RANKS).filter(|other| {
                let mut is_asked = false;
                let mut bytes = [0; 1 << 16];
                while let Ok(length) = guards[*other].0.socket.recv(&mut bytes) {
                    let (_, from, _, message): super::super::Datagram =
                        serde_json::from_slice(&bytes[..length]).expect("a message");
                    assert_eq!(from, rank);
                    is_asked |= matches!(message, Message::Question);
                }
                is_asked
            });
            assert_eq!(asked.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "asked by rank {rank}");
        }
    }

    #[test]
    fn ranks_that_do_not_hear_each_other_exit() {
        for (guard, stopped) in guards(2, RESEND) {
            stopped.store(true, Ordering::Relaxed);
            guard.exit_together();
        }
    }

    #[test]
    fn a_rank_that_answers_no_question_is_told_once_and_by_rank_0() {
        let guards = guards(3, limit());
        introduce(&guards);
        guards[2].1.store(true, Ordering::Relaxed);
        // Wait until the thread of rank 2 has ended.
        while Arc::strong_count(&guards[2].0) > 1 {
            thread::sleep(Duration::from_millis(1));
        }
        let mut asked = vec![Instant::now()];
        let mut ask = |rank: usize| guards[rank].0.unreached(&mut asked, Duration::ZERO);
        assert!([ask(1), ask(0), ask(0), ask(0)].concat().is_empty());
        while !guards[0].0.exits.has_received(1, asked[1]) {
            thread::sleep(Duration::from_millis(1));
        }
        let mut ask = || guards[0].0.unreached(&mut asked, Duration::ZERO);
        assert_eq!([ask(), ask()], [vec![2], Vec::new()]);
    }
}
