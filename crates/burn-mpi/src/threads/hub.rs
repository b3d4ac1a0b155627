//! Ranks can be threads of one process instead of processes. The hub connects these threads: it carries their
//! calls and messages, and in a simulation it gives them turns and keeps virtual time.
//!
//! In a simulation, one rank has the turn and runs; every other rank waits on its condition variable. At each
//! exchange (a call, a message or a wait), the hub draws the next rank at random from the ranks that can run
//! ([`Hub::hand_over`]). If no rank can run, the hub moves the clock to the next moment at which time alone
//! changes something: the end of a sleep, a stall warning or a deadline. Outside a simulation there are no
//! turns: ranks run concurrently in real time, and every change wakes the ranks that wait.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::NAME;
use super::Options;
use super::state::{Draw, HubState, Phase, Rank, Rendezvous, Ticket, Wanted};
use crate::activity::{Activity, Departure, LONGEST};
use crate::cause::Wait;
use crate::clock::Clock;
use crate::host::Place;
use crate::member::Member;
use crate::process::print_line;
use crate::{Call, CommError, Operation};

/// All ranks of one job.
pub(crate) struct Hub {
    pub members: Vec<Member>,
    hosts: Vec<String>,
    /// Where each rank pretends to run. All ranks share it.
    pub places: Arc<[Place]>,
    /// Virtual time in ns; `None` without turns.
    time: Option<Arc<AtomicU64>>,
    state: Mutex<HubState>,
    /// Maximum real time of a turn. If a turn takes longer, a line reports it.
    long_turn: Duration,
    /// For each rank, the condition variable that wakes it.
    changed: Vec<Condvar>,
}

/// Virtual time that a test of an incomplete call takes: about the time that operators compute between two
/// tests. If a test took no time, the clock would stand still while a rank only tests. If a test took more
/// time, a rank that computes between its tests would keep the other ranks waiting longer than in reality.
const LOOK: Duration = Duration::from_micros(50);

/// Maximum bytes of a message that is sent without waiting for its receiver, as over MPI.
const EAGER: usize = 4096;

/// Default of [`Hub::long_turn`].
const LONG_TURN: Duration = Duration::from_secs(60);

impl Hub {
    pub fn new(ranks: usize, options: &Options) -> Self {
        let hosts: Vec<String> =
            (0..ranks).map(|rank| format!("node{}", rank * options.hosts.min(ranks) / ranks)).collect();
        let time = options.turns.then(Arc::default);
        let clock = time.clone().map_or_else(Clock::system, Clock::Simulated);
        let member = |(rank, host): (usize, &String)| {
            let activity = Activity::new(clock.clone(), options.deadline, options.stall_warning);
            Member::new(rank, ranks, host.clone(), activity)
        };
        let rank = || Rank { phase: Phase::Absent, posted: BTreeMap::new(), open: Vec::new() };
        let state = HubState {
            draw: Draw(options.seed),
            ranks: (0..ranks).map(|_| rank()).collect(),
            absent: ranks,
            next_moment: Duration::MAX,
            turn: ranks,
            held: ranks,
            ..HubState::default()
        };
        Self {
            members: hosts.iter().enumerate().map(member).collect(),
            changed: (0..ranks).map(|_| Condvar::new()).collect(),
            state: Mutex::new(state),
            long_turn: LONG_TURN,
            places: places(&hosts),
            hosts,
            time,
        }
    }

    /// Waits for the first turn of `rank`. Turns begin once every rank has called this function or has left.
    pub fn begin(&self, rank: usize) {
        let mut state = self.state.lock();
        self.set_phase(&mut state, rank, Phase::Ready);
        if self.time.is_none() {
            return;
        }
        self.hand_over(&mut state);
        self.await_turn(&mut state, rank);
    }

    /// Adds the input of `rank` to its next call on `channel`, and returns the ticket of this call. An
    /// all-reduce and a broadcast are in place, and read their input from `to`; other calls read it from
    /// `from`.
    ///
    /// # Errors
    /// If the job has ended.
    pub fn post(
        &self,
        rank: usize,
        channel: u64,
        operation: Operation,
        from: &[u8],
        to: &[u8],
    ) -> Result<Ticket, CommError> {
        let mut state = self.at_exchange(rank);
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        let number = state.ranks[rank].posted.entry(channel).or_default();
        let ticket = (channel, *number);
        *number += 1;
        let size = self.members.len();
        let bytes =
            if matches!(operation.call, Call::AllReduce | Call::Broadcast { .. }) { to } else { from };
        let rendezvous = state.calls.entry(ticket).or_insert_with(|| Rendezvous::new(size));
        let completes = rendezvous.post(rank, operation, bytes.to_vec());
        state.ranks[rank].open.push(ticket);
        if completes {
            self.refresh(&mut state, 0..size);
        }
        Ok(ticket)
    }

    /// Returns whether the result of a call has arrived at `rank`. In a simulation, half of the tests after
    /// the arrival return false, chosen at random, as if the result were late.
    ///
    /// # Errors
    /// If the result will never arrive.
    pub fn test(&self, rank: usize, ticket: Ticket) -> Result<bool, CommError> {
        let mut state = self.state.lock();
        if !state.has(rank, Wanted::Call(ticket)) {
            self.check_lost(&mut state, rank, Wanted::Call(ticket))?;
            if let Some(time) = &self.time {
                time.fetch_add(LOOK.as_nanos() as u64, Ordering::Relaxed);
                let now = self.members[rank].now();
                if state.next_moment <= now {
                    for other in 0..self.members.len() {
                        if self.next_moment(&state, other, now).is_some_and(|moment| moment <= now) {
                            self.expire(&mut state, other);
                        }
                    }
                    self.pass(&mut state, now);
                }
            }
            self.exchange(&mut state, rank);
            return Ok(false);
        }
        Ok(self.time.is_none() || state.draw.below(2) == 0)
    }

    /// Writes the result of a call into `to`. Call it after the result has arrived.
    pub fn take(&self, rank: usize, ticket: Ticket, to: &mut [u8]) {
        let mut state = self.state.lock();
        state.ranks[rank].open.retain(|open| *open != ticket);
        if state.calls.get_mut(&ticket).is_some_and(|call| call.take(rank, to)) {
            state.calls.remove(&ticket);
        }
    }

    /// Sends a message. Messages from one rank to another arrive in order. The sender of a message of more
    /// than [`EAGER`] bytes waits until the message is received, as over MPI and gloo.
    ///
    /// # Errors
    /// If the job has ended.
    pub fn send(&self, rank: usize, to: usize, bytes: &[u8]) -> Result<(), CommError> {
        let mut state = self.at_exchange(rank);
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        let messages = state.messages.entry((rank, to)).or_default();
        messages.on_the_way.push_back(bytes.to_vec());
        let number = messages.received + messages.on_the_way.len();
        self.refresh(&mut state, to..to + 1);
        drop(state);
        if bytes.len() > EAGER { self.wait(rank, Wanted::Received { to, number }) } else { Ok(()) }
    }

    /// Waits for the next message of rank `from`.
    ///
    /// # Errors
    /// If the message has another length than `into`, or will never arrive.
    pub fn receive(&self, rank: usize, from: usize, into: &mut [u8]) -> Result<(), CommError> {
        self.wait(rank, Wanted::Message { from })?;
        let mut state = self.state.lock();
        let messages = state.messages.entry((from, rank)).or_default();
        let message = messages.on_the_way.pop_front().unwrap_or_default();
        messages.received += 1;
        self.refresh(&mut state, from..from + 1);
        drop(state);
        if message.len() != into.len() {
            let reason =
                format!("the message has {} bytes, but this rank receives {}", message.len(), into.len());
            let member = &self.members[rank];
            return Err(member.error(&member.started(NAME, "receive", into.len()), reason));
        }
        into.copy_from_slice(&message);
        Ok(())
    }

    /// Waits until `rank` has what `wanted` describes.
    ///
    /// # Errors
    /// If `rank` will never have what `wanted` describes.
    pub fn wait(&self, rank: usize, wanted: Wanted) -> Result<(), CommError> {
        let mut state = self.at_exchange(rank);
        loop {
            if state.has(rank, wanted) {
                return Ok(());
            }
            self.check_lost(&mut state, rank, wanted)?;
            self.set_phase(&mut state, rank, Phase::Waiting(wanted));
            match self.time {
                Some(_) => self.exchange(&mut state, rank),
                None => self.await_change(&mut state, rank),
            }
            self.set_phase(&mut state, rank, Phase::Ready);
        }
    }

    /// Sleeps on `rank`: in virtual time if ranks take turns, otherwise in real time.
    pub fn sleep(&self, rank: usize, time: Duration) {
        if self.time.is_none() {
            return std::thread::sleep(time);
        }
        let mut state = self.state.lock();
        let until = self.members[rank].now() + time.min(LONGEST);
        self.set_phase(&mut state, rank, Phase::Sleeping(until));
        self.exchange(&mut state, rank);
        self.set_phase(&mut state, rank, Phase::Ready);
    }

    /// Records that `rank` has left with exit code `status`. If this is not 0, the other ranks end at their
    /// next exchange.
    pub fn leave(&self, rank: usize, status: i32, reason: String) {
        let mut state = self.state.lock();
        let (member, host) = (&self.members[rank], self.hosts[rank].clone());
        let entered = member.activity.now().entered;
        let departure =
            Departure { rank, host, status, entered, reason: reason.clone(), since: member.now() };
        if status != 0 && state.cause.is_none() {
            let whose = format!("rank {rank} on {}", self.hosts[rank]);
            // The error of an exchange already names a rank.
            let names = |(rank, host): (usize, &String)| {
                reason.contains(&format!("rank {rank} on {host}"))
                    || reason.contains(&format!("rank {rank} ({host})"))
            };
            let named = if reason.starts_with("panicked") {
                format!("{whose} {reason}")
            } else if self.hosts.iter().enumerate().any(names) {
                reason
            } else {
                format!("{whose}: {reason}")
            };
            state.cause = Some((rank, named));
            state.ended.get_or_insert(departure.error());
        }
        self.set_phase(&mut state, rank, Phase::Left(departure));
        self.refresh(&mut state, 0..self.members.len());
        self.hand_over(&mut state);
    }

    /// Returns the first rank that left with an error, its error, and the printed lines. The first value is
    /// `None` if no rank left with an error.
    pub fn outcome(&self) -> (Option<(usize, String)>, Vec<String>) {
        let state = self.state.lock();
        (state.cause.clone(), state.lines.clone())
    }

    /// Returns another rank that owns one of these graph nodes; `None` if no other rank owns one. Nodes
    /// without an owner belong to `rank` from now on.
    pub fn other_owner(&self, rank: usize, nodes: impl Iterator<Item = u64>) -> Option<usize> {
        let mut state = self.state.lock();
        let mut owner = None;
        for node in nodes {
            let found = *state.nodes.entry(node).or_insert(rank);
            owner = owner.or(Some(found).filter(|&found| found != rank));
        }
        owner
    }

    /// Fails if `rank` waits for something that will never come. If the reason is that a rank left without an
    /// error, that rank is recorded as the cause of the failure.
    fn check_lost(&self, state: &mut HubState, rank: usize, wanted: Wanted) -> Result<(), CommError> {
        let Some(error) = state.lost(rank, wanted) else { return Ok(()) };
        if let (None, Some(left)) = (&state.ended, state.leaver(rank, wanted).map(|left| left.rank)) {
            let what = self.members[rank].activity.now().what;
            let line = format!("{error}; rank {rank} on {} waits for it in {what}", self.hosts[rank]);
            state.cause.get_or_insert((left, line));
        }
        if state.ended.is_none() {
            state.ended = Some(error.clone());
            self.refresh(state, 0..self.members.len());
        }
        Err(state.ended.clone().unwrap_or(error))
    }

    /// Begins an exchange, and returns the locked state. If ranks take turns, other ranks may run first.
    fn at_exchange(&self, rank: usize) -> MutexGuard<'_, HubState> {
        let mut state = self.state.lock();
        self.exchange(&mut state, rank);
        state
    }

    /// If ranks take turns, hands over the turn, and waits until `rank` has the turn again. The hub may give
    /// the turn to `rank` at once.
    fn exchange(&self, state: &mut MutexGuard<'_, HubState>, rank: usize) {
        if self.time.is_some() {
            self.hand_over(state);
            self.await_turn(state, rank);
        }
    }

    /// Draws the rank that runs next. If no rank can run, moves the clock first. Does nothing without turns.
    fn hand_over(&self, state: &mut HubState) {
        if self.time.is_none() || state.absent > 0 {
            return;
        }
        loop {
            let now = self.members[0].now();
            debug_assert!(
                (0..self.members.len())
                    .filter(|&rank| state.is_runnable(rank, now))
                    .eq(state.runnable.iter().copied())
            );
            let Some(turn) = state.draw_turn() else {
                if self.advance_clock(state, now) { continue } else { return }
            };
            state.turn = turn;
            state.turns += 1;
            self.changed[turn].notify_one();
            return;
        }
    }

    /// Sets the phase of a rank.
    fn set_phase(&self, state: &mut HubState, rank: usize, phase: Phase) {
        let now = self.members[rank].now();
        state.set_phase(rank, phase, now);
        if let Some(moment) = self.next_moment(state, rank, now) {
            state.next_moment = state.next_moment.min(moment);
        }
    }

    /// Updates whether these ranks may run, after a change that concerns them. Without turns, also wakes those
    /// that may run.
    fn refresh(&self, state: &mut HubState, ranks: Range<usize>) {
        let now = self.members[0].now();
        for rank in ranks {
            if state.refresh(rank, now) && self.time.is_none() {
                self.changed[rank].notify_all();
            }
        }
    }

    /// Updates the state after the clock has reached a rank's next moment.
    fn pass(&self, state: &mut HubState, now: Duration) {
        self.refresh(state, 0..self.members.len());
        let moments = (0..self.members.len()).filter_map(|rank| self.next_moment(state, rank, now));
        state.next_moment = moments.min().unwrap_or(Duration::MAX);
    }

    /// Waits for the turn of `rank`.
    fn await_turn(&self, state: &mut MutexGuard<'_, HubState>, rank: usize) {
        let mut before = state.turns;
        while state.turn != rank {
            let timeout = self.changed[rank].wait_for(state, self.long_turn);
            if timeout.timed_out() && state.turns == before && state.turn < self.hosts.len() {
                let line = format!(
                    "rank {} has had the turn for {} s: it is computing, or it waits for a lock that a waiting rank \
                     holds",
                    state.turn,
                    self.long_turn.as_secs_f64()
                );
                print_line(&line);
                state.lines.push(line);
                // Count this turn twice: the other ranks that wait then see another turn, and do not report
                // this turn again.
                state.turns += 1;
            }
            before = state.turns;
        }
    }

    /// Without turns: waits until the state has changed, or the next moment of this rank has come.
    fn await_change(&self, state: &mut MutexGuard<'_, HubState>, rank: usize) {
        let now = self.members[rank].now();
        let next = self.next_moment(state, rank, now).unwrap_or(Duration::MAX);
        let patience = next.saturating_sub(now).min(Duration::from_secs(3600));
        if self.changed[rank].wait_for(state, patience).timed_out() {
            self.expire(state, rank);
            self.refresh(state, 0..self.members.len());
        }
    }

    /// Moves the clock to the earliest next moment of all ranks. Returns false if no rank has a next moment.
    fn advance_clock(&self, state: &mut HubState, now: Duration) -> bool {
        let moment = |rank| Some((self.next_moment(state, rank, now)?, rank));
        let Some((moment, rank)) = (0..self.members.len()).filter_map(moment).min() else { return false };
        if let Some(time) = &self.time {
            time.store(u64::try_from(moment.max(now).as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        self.expire(state, rank);
        self.pass(state, moment.max(now));
        true
    }

    /// Returns the next moment at which time alone changes something for a rank: the end of its sleep, its
    /// stall warning or its deadline. Returns `None` if time changes nothing for the rank.
    fn next_moment(&self, state: &HubState, rank: usize, now: Duration) -> Option<Duration> {
        match state.ranks[rank].phase {
            Phase::Sleeping(until) => Some(until),
            Phase::Waiting(_) => {
                let activity = &self.members[rank].activity;
                let since = now.saturating_sub(activity.now().waited.unwrap_or_default());
                let (stall, deadline) = activity.with(|state| (state.stall_warning, state.deadline));
                let is_warned =
                    activity.with(|state| state.warned_below >= state.entered) || stall >= deadline;
                Some(since.saturating_add(if is_warned { deadline } else { stall }))
            }
            _ => None,
        }
    }

    /// Acts on the next moment of a waiting rank, if it has come: prints a stall warning, or ends the job.
    fn expire(&self, state: &mut HubState, rank: usize) {
        if !matches!(state.ranks[rank].phase, Phase::Waiting(_)) || state.ended.is_some() {
            return;
        }
        let member = &self.members[rank];
        let seen = member.activity.now();
        let waited = seen.waited.unwrap_or(Duration::MAX);
        let departed: Vec<Departure> = state.departed().cloned().collect();
        let answers: Vec<_> = (0..self.members.len())
            .map(|rank| match state.ranks[rank].phase {
                Phase::Left(_) => None,
                _ => Some(self.members[rank].activity.now()),
            })
            .collect();
        let wait = Wait {
            member,
            hosts: &self.hosts,
            seen: &seen,
            answers: &answers,
            silent: Duration::ZERO,
            departed: &departed,
        };
        let (stall, deadline) = member.activity.with(|state| (state.stall_warning, state.deadline));
        if waited >= deadline {
            state.ended = Some(wait.deadline(waited));
        } else if waited >= stall && wait.deadlock().is_some() {
            state.ended = wait.deadlock();
        } else if waited >= stall {
            let line = wait.stall(waited);
            print_line(&line);
            state.lines.push(line);
            // Record the warning on all ranks, so that no other rank warns about the same collective.
            for member in &self.members {
                member.activity.with(|state| state.warned_below = state.warned_below.max(seen.entered));
            }
        }
    }
}

/// Returns where ranks on these hosts pretend to run.
fn places(hosts: &[String]) -> Arc<[Place]> {
    let here = Place::of_this_process(0);
    let place = |(rank, host): (usize, &String)| {
        let boot_id = format!("{} {host}", here.boot_id);
        Place { rank, host: host.clone(), boot_id, ..here.clone() }
    };
    hosts.iter().enumerate().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_does_not_end_is_told() {
        let hub = Hub { long_turn: Duration::from_millis(20), ..Hub::new(2, &Options::default()) };
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let hub = &hub;
                scope.spawn(move || {
                    hub.begin(rank);
                    // The rank that has the turn keeps it until the other rank has reported the long turn.
                    while hub.outcome().1.is_empty() {
                        std::thread::yield_now();
                    }
                    hub.leave(rank, 0, String::new());
                });
            }
        });
        let (_, lines) = hub.outcome();
        assert!(lines[0].contains("0.02 s"), "{lines:?}");
    }
}
