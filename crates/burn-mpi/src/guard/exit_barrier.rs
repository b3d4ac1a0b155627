//! Exit barrier of all ranks, after MPI has ended and before any of them exits.
//!
//! Ranks leave MPI_Finalize at different times: Open MPI's waits for the others at its beginning, and
//! then takes some milliseconds. A rank that is stopped there, when the others have exited, would keep
//! the launcher waiting for ever, and nobody could tell. So each rank tells rank 0 that MPI has ended,
//! and rank 0 tells all when it has the message of each. Each confirms that, and exits when rank 0 has the
//! confirmation; rank 0 exits when it has all of them. Guards carry the messages, each of which is
//! sent again until it is answered, and end the job if a rank falls silent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Guard;
use crate::guard::Message;

/// How often a message is sent again that has had no answer.
const RESEND: Duration = Duration::from_millis(20);
/// How long one is sent to a rank that may have exited, with its answer lost, or that does not receive it.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// What a rank knows of the others.
pub(super) struct ExitBarrier {
    state: Mutex<BarrierState>,
    changed: Condvar,
    linger: Duration,
}

#[derive(Default)]
struct BarrierState {
    /// When the last message of a rank arrived, for those that the network lets through.
    received: BTreeMap<usize, Instant>,
    /// Ranks in which MPI has ended.
    finalized: BTreeSet<usize>,
    /// Ranks that know that it has ended in all, and may have exited.
    acknowledged: BTreeSet<usize>,
    /// Whether it has ended in all, or this rank exits without waiting for that.
    all: bool,
    /// Whether rank 0 knows that this rank knows.
    confirmed: bool,
}

impl BarrierState {
    /// Whether `ranks` are all from which a message has arrived.
    fn is_everyone(&self, ranks: &BTreeSet<usize>) -> bool {
        self.received.keys().all(|rank| ranks.contains(rank))
    }
}

impl ExitBarrier {
    pub(super) fn new(linger: Duration) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), linger }
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

    /// Whether a message of this rank has arrived since then.
    pub(super) fn has_received(&self, rank: usize, since: Instant) -> bool {
        self.state.lock().received.get(&rank).is_some_and(|&at| at >= since)
    }

    /// Counts silence from now on: questions that a rank must answer begin.
    pub(super) fn begin_to_listen(&self) {
        self.state.lock().received.values_mut().for_each(|at| *at = Instant::now());
    }

    /// Ranks whose messages arrived before, but not for `limit`, and that have not exited as they should.
    pub(super) fn silent(&self, limit: Duration) -> Vec<usize> {
        let state = self.state.lock();
        // Those that have ended all exit, and this one soon.
        let silent = state.received.iter().filter(|(_, at)| !state.all && at.elapsed() > limit);
        silent.map(|(&rank, _)| rank).filter(|rank| !state.acknowledged.contains(rank)).collect()
    }

    /// Calls `send` at once and then again and again, until the state is `reached` or the time is over.
    fn wait_until(&self, limit: Duration, reached: impl Fn(&BarrierState) -> bool, send: impl Fn()) {
        let began = Instant::now();
        let mut state = self.state.lock();
        while !reached(&state) && began.elapsed() < limit {
            // The guard's thread may take it meanwhile.
            MutexGuard::unlocked(&mut state, &send);
            self.changed.wait_while_for(&mut state, |state| !reached(state), RESEND);
        }
    }
}

impl Guard {
    /// Waits until MPI has ended in all ranks that can be reached. To be called after it has in this
    /// one, while the guard's thread runs, which ends the job if one of them is stopped.
    pub(super) fn exit_together(&self) {
        if self.member.rank == 0 {
            self.exit_as_root()
        } else {
            self.exit_as_other()
        }
        self.exits.state.lock().all = true;
    }

    fn exit_as_root(&self) {
        self.exits.wait_until(Duration::MAX, |state| state.is_everyone(&state.finalized), || ());
        let tell = || self.announce(&Message::AllFinalized);
        // Once at least: some may receive this rank's messages while theirs do not arrive.
        tell();
        self.exits.wait_until(Duration::MAX, |state| state.is_everyone(&state.acknowledged), tell);
    }

    fn exit_as_other(&self) {
        let tell = |message| self.send(&message, &self.peers[0]);
        let receives = self.exits.state.lock().received.contains_key(&0);
        let limit = if receives { Duration::MAX } else { self.exits.linger };
        self.exits.wait_until(limit, |state| state.all, || tell(Message::Finalized));
        if !receives {
            // The others need not wait for an answer of this rank any more.
            self.announce(&Message::Acknowledged);
        }
        self.exits.wait_until(self.exits.linger, |state| state.confirmed, || tell(Message::Acknowledged));
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

    /// As long as a test may take: a message that is lost is seen in the state after it.
    fn limit() -> Duration {
        Duration::from_secs(include_str!("limit_s").trim().parse().expect("seconds"))
    }

    /// Guards of so many ranks of this process, whose threads receive messages until `stopped`.
    fn guards(size: usize, linger: Duration) -> Vec<(Arc<Guard>, Arc<AtomicBool>)> {
        let bind = |_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        let sockets: Vec<UdpSocket> = (0..size).map(bind).collect();
        let peers: Vec<_> =
            sockets.iter().map(|socket| vec![socket.local_addr().expect("an address")]).collect();
        let hosts = vec!["here".to_owned(); size];
        let guard = |(rank, socket): (usize, UdpSocket)| {
            socket.set_read_timeout(Some(Duration::from_millis(5))).expect("a timeout");
            let exits = ExitBarrier::new(linger);
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

    /// Waits until `guard` has had the message of these ranks that MPI has ended in them.
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
            // Rank 0 tells itself nothing.
            let ended: Vec<usize> = (1..4).filter(|&rank| rank != last).collect();
            await_ends(&guards[0].0, &ended);
            assert!(early.iter().all(|rank| !rank.is_finished()), "one does not wait for rank {last}");
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
        // Rank 1 has said that MPI has ended, and then neither hears nor answers.
        guards[1].1.store(true, Ordering::Relaxed);
        guards[1].0.send(&Message::Finalized, &guards[1].0.peers[0]);
        await_ends(&guards[0].0, &[1]);
        let [first, other] = [0, 2].map(|rank| exit_on_a_thread(&guards[rank].0));
        other.join().expect("no panic");
        assert!(guards[2].0.exits.state.lock().confirmed, "a message is lost");
        // The confirmation is on its way before rank 0 has noted what it confirms.
        while !guards[0].0.exits.state.lock().acknowledged.contains(&2) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!first.is_finished(), "rank 0 does not wait for rank 1");
        assert_eq!(guards[0].0.exits.silent(Duration::ZERO), [1]);
        guards[0].0.exits.note(1, &Message::Acknowledged);
        first.join().expect("no panic");
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
        // Until its thread has ended.
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
