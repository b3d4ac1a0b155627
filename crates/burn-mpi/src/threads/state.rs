//! The state of the hub: the inputs of calls, messages, and what each rank waits for. The hub connects ranks
//! that are threads of one process. This module also computes the results of calls.
//!
//! In a simulation, ranks take turns: only the rank that has the turn runs.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::activity::Departure;
use crate::collective::pending::CHANNELS;
use crate::collective::wire::Element;
use crate::{Call, CommError, Operation, Wire};

/// The state of the hub, under its lock.
#[derive(Default)]
pub(super) struct HubState {
    pub draw: Draw,
    pub ranks: Vec<Rank>,
    /// The ranks that may run now, in ascending order. Changes that make other ranks runnable must call
    /// [`refresh`](Self::refresh): no turn looks at all ranks, because a call of n ranks takes n turns.
    pub runnable: Vec<usize>,
    /// Number of ranks that have not begun to wait for their first turn.
    pub absent: usize,
    /// Number of ranks that have left.
    pub left: usize,
    /// No rank has an earlier next moment, at which time alone changes something.
    pub next_moment: Duration,
    /// The rank whose turn it is, if ranks take turns. Before the first turn, the value is `ranks.len()`.
    pub turn: usize,
    /// Number of turns so far.
    pub turns: u64,
    /// A rank that is held back: it runs only while no other rank can run. If no rank is held back, the value
    /// is `ranks.len()`.
    pub held: usize,
    pub calls: BTreeMap<Ticket, Rendezvous>,
    /// Messages, by sender and receiver.
    pub messages: BTreeMap<(usize, usize), Mailbox>,
    /// Nodes of parameters in the graph of autodiff, and the rank that owns each node.
    pub nodes: BTreeMap<u64, usize>,
    /// The error with which every wait ends from now on.
    pub ended: Option<CommError>,
    /// The first rank that left with an error, and its error.
    pub cause: Option<(usize, String)>,
    pub lines: Vec<String>,
}

/// Messages of one rank to another.
#[derive(Default)]
pub(super) struct Mailbox {
    /// Number of messages received so far.
    pub received: usize,
    pub on_the_way: VecDeque<Vec<u8>>,
}

/// Identifies a call of all ranks: its channel, and its number on that channel.
pub(crate) type Ticket = (u64, u64);

/// A call: the inputs of the ranks, and how many ranks have taken its result.
pub(super) struct Rendezvous {
    inputs: Vec<Option<Input>>,
    /// Number of inputs so far.
    posted: usize,
    taken: usize,
    /// The part of the result that is the same for all ranks, once a rank has taken it. A sum is computed
    /// once, not once for each rank.
    common: Option<Vec<u8>>,
}

struct Input {
    operation: Operation,
    bytes: Vec<u8>,
}

impl Rendezvous {
    pub fn new(ranks: usize) -> Self {
        Self { inputs: (0..ranks).map(|_| None).collect(), posted: 0, taken: 0, common: None }
    }

    /// Adds the input of `rank`. Returns whether some rank may have its result now.
    pub fn post(&mut self, rank: usize, operation: Operation, bytes: Vec<u8>) -> bool {
        self.inputs[rank] = Some(Input { operation, bytes });
        self.posted += 1;
        self.posted == self.inputs.len() || operation.call.peer() == Some(rank)
    }

    /// Returns whether the result of `rank` lacks the input of `other`. False if `rank` has not posted the
    /// call itself.
    pub fn lacks(&self, rank: usize, other: usize) -> bool {
        let needs = |input: &Input| needs(input.operation.call, rank, other);
        self.inputs[rank].as_ref().is_some_and(needs) && self.inputs[other].is_none()
    }

    /// Returns whether all inputs for the result of `rank` are there. True if `rank` has not posted the call
    /// itself.
    pub fn is_complete(&self, rank: usize) -> bool {
        let Some(Input { operation, .. }) = &self.inputs[rank] else { return true };
        match operation.call {
            Call::Broadcast { root } | Call::Scatter { root } => self.inputs[root].is_some(),
            Call::Gather { root } | Call::Reduce { root } if rank != root => true,
            _ => self.posted == self.inputs.len(),
        }
    }

    /// Writes the result of `rank` into `to`. Returns whether all ranks have taken their results.
    pub fn take(&mut self, rank: usize, to: &mut [u8]) -> bool {
        if let Some(operation) = self.inputs[rank].as_ref().map(|input| input.operation) {
            self.write(operation, rank, to);
        }
        self.taken += 1;
        self.taken == self.inputs.len()
    }

    fn write(&mut self, operation: Operation, rank: usize, to: &mut [u8]) {
        let size = self.inputs.len();
        let part_of = |whole: &[u8], rank: usize| {
            let part = whole.len() / size;
            rank * part..(rank + 1) * part
        };
        match operation.call {
            Call::Send { .. } | Call::Receive { .. } | Call::Barrier => {}
            Call::Reduce { root } | Call::Gather { root } if rank != root => {}
            Call::Broadcast { root } => to.copy_from_slice(self.bytes(root)),
            Call::Scatter { root } => {
                let all = self.bytes(root);
                to.copy_from_slice(&all[part_of(all, rank)]);
            }
            Call::AllToAll => {
                for (from, to) in to.chunks_mut((to.len() / size).max(1)).enumerate() {
                    let all = self.bytes(from);
                    to.copy_from_slice(&all[part_of(all, rank)]);
                }
            }
            Call::AllReduce | Call::Reduce { .. } | Call::AllGather | Call::Gather { .. } => {
                to.copy_from_slice(self.common(operation));
            }
            Call::ReduceScatter => {
                let sum = self.common(operation);
                to.copy_from_slice(&sum[part_of(sum, rank)]);
            }
        }
    }

    fn bytes(&self, rank: usize) -> &[u8] {
        self.inputs[rank].as_ref().map_or(&[], |input| &input.bytes)
    }

    /// Returns the sum of all inputs, or all inputs one after the other. Frees the inputs.
    fn common(&mut self, operation: Operation) -> &[u8] {
        self.common.get_or_insert_with(|| {
            let inputs = self.inputs.iter_mut().flatten();
            let inputs: Vec<Vec<u8>> = inputs.map(|input| std::mem::take(&mut input.bytes)).collect();
            if operation.call.sums() { sum(operation.element, inputs) } else { inputs.concat() }
        })
    }
}

pub(super) struct Rank {
    pub phase: Phase,
    /// Number of calls posted on each channel so far.
    pub posted: BTreeMap<u64, u64>,
    /// Calls that this rank has posted, and whose results it has not taken yet.
    pub open: Vec<Ticket>,
}

pub(super) enum Phase {
    /// The rank has not begun to wait for its first turn.
    Absent,
    /// The rank runs, or can run.
    Ready,
    Waiting(Wanted),
    Sleeping(Duration),
    Left(Departure),
}

/// What a rank waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    Call(Ticket),
    /// The result of at least one open call of the collective to which this channel belongs.
    Any(u64),
    Message {
        from: usize,
    },
    /// The receipt of this rank's first `number` messages by rank `to`.
    Received {
        to: usize,
        number: usize,
    },
}

impl HubState {
    pub fn departed(&self) -> impl Iterator<Item = &Departure> {
        self.ranks.iter().filter_map(|rank| match &rank.phase {
            Phase::Left(departure) => Some(departure),
            _ => None,
        })
    }

    /// Returns whether a rank may run at this time.
    pub fn is_runnable(&self, rank: usize, now: Duration) -> bool {
        match self.ranks[rank].phase {
            Phase::Ready => true,
            Phase::Sleeping(until) => until <= now,
            Phase::Waiting(wanted) => self.has(rank, wanted) || self.lost(rank, wanted).is_some(),
            Phase::Absent | Phase::Left(_) => false,
        }
    }

    /// Sets the phase of a rank.
    pub fn set_phase(&mut self, rank: usize, phase: Phase, now: Duration) {
        let before = std::mem::replace(&mut self.ranks[rank].phase, phase);
        self.absent -= usize::from(matches!(before, Phase::Absent));
        self.left += usize::from(matches!(self.ranks[rank].phase, Phase::Left(_)));
        self.refresh(rank, now);
    }

    /// Updates whether a rank may run. Returns whether it may run.
    pub fn refresh(&mut self, rank: usize, now: Duration) -> bool {
        let is_runnable = self.is_runnable(rank, now);
        match (self.runnable.binary_search(&rank), is_runnable) {
            (Ok(at), false) => _ = self.runnable.remove(at),
            (Err(at), true) => self.runnable.insert(at, rank),
            _ => {}
        }
        is_runnable
    }

    /// Draws the rank that has the next turn. `None` if no rank may run.
    pub fn draw_turn(&mut self) -> Option<usize> {
        if self.runnable.is_empty() {
            return None;
        }
        if self.draw.below(16) == 0 {
            self.held = self.draw.below(self.ranks.len() + 1);
        }
        let held = self.runnable.binary_search(&self.held).ok().filter(|_| self.runnable.len() > 1);
        let drawn = self.draw.below(self.runnable.len() - usize::from(held.is_some()));
        Some(self.runnable[drawn + usize::from(held.is_some_and(|held| drawn >= held))])
    }

    /// Returns whether `rank` has what it wants.
    pub fn has(&self, rank: usize, wanted: Wanted) -> bool {
        let arrived = |ticket: Ticket| self.calls.get(&ticket).is_none_or(|call| call.is_complete(rank));
        match wanted {
            Wanted::Call(ticket) => arrived(ticket),
            Wanted::Any(first) => self.open(rank, first).any(arrived),
            Wanted::Received { to, number } => {
                self.messages.get(&(rank, to)).is_some_and(|messages| messages.received >= number)
            }
            Wanted::Message { from } => {
                self.messages.get(&(from, rank)).is_some_and(|messages| !messages.on_the_way.is_empty())
            }
        }
    }

    /// Returns the open calls of `rank` in the collective that has the channel `first`.
    fn open(&self, rank: usize, first: u64) -> impl Iterator<Item = Ticket> {
        self.ranks[rank]
            .open
            .iter()
            .copied()
            .filter(move |(channel, _)| channel / CHANNELS as u64 == first / CHANNELS as u64)
    }

    /// Returns the error of `rank` if it waits for something that will never come, because the job has ended
    /// or a rank has left.
    pub fn lost(&self, rank: usize, wanted: Wanted) -> Option<CommError> {
        self.ended.clone().or_else(|| self.leaver(rank, wanted).map(Departure::error))
    }

    /// If a rank that `rank` waits for has left, returns the departure of that rank.
    pub fn leaver(&self, rank: usize, wanted: Wanted) -> Option<&Departure> {
        if self.left == 0 {
            return None;
        }
        let needs = |ticket: Ticket, other: usize| {
            self.calls.get(&ticket).is_some_and(|call| call.lacks(rank, other))
        };
        let is_needed = |other: usize| match wanted {
            Wanted::Call(ticket) => needs(ticket, other),
            Wanted::Any(first) => self.open(rank, first).all(|ticket| needs(ticket, other)),
            Wanted::Message { from } => from == other,
            Wanted::Received { to, .. } => to == other,
        };
        self.departed().find(|departure| is_needed(departure.rank))
    }
}

/// Random numbers from a seed: SplitMix64 (Steele et al., 2014).
#[derive(Default)]
pub(super) struct Draw(pub u64);

impl Draw {
    /// Draws a number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}

/// Returns whether `rank` needs the input of `other` for its result of `call`.
fn needs(call: Call, rank: usize, other: usize) -> bool {
    match call {
        Call::Broadcast { root } | Call::Scatter { root } => other == root,
        Call::Gather { root } | Call::Reduce { root } => rank == root,
        _ => true,
    }
}

/// Sums in reverse rank order, rounding after each addition. MPI and gloo do not sum in rank order either.
/// Tests thus notice code that relies on rank order.
fn sum(element: Element, terms: Vec<Vec<u8>>) -> Vec<u8> {
    let wires = terms.into_iter().rev().map(|bytes| {
        let mut wire = Wire::zeros(element, bytes.len() / element.width());
        wire.bytes_mut().copy_from_slice(&bytes);
        wire
    });
    let total = wires.reduce(|mut total, term| {
        total.add(&term);
        total
    });
    total.expect("a job has a rank").bytes().to_vec()
}
