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

/// The inputs of a call, by rank, and how many ranks have taken the result of the call.
pub(super) struct Rendezvous {
    pub inputs: Vec<Option<Input>>,
    pub taken: usize,
}

pub(super) struct Input {
    pub operation: Operation,
    pub bytes: Vec<u8>,
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

    /// Returns whether turns can begin: every rank has begun to wait for its first turn, or has left.
    pub fn has_begun(&self) -> bool {
        !self.ranks.iter().any(|rank| matches!(rank.phase, Phase::Absent))
    }

    /// Returns the ranks that have not yet posted an input that `rank` needs for a call. Empty if `rank` has
    /// not posted the call itself.
    pub fn missing(&self, rank: usize, ticket: Ticket) -> impl Iterator<Item = usize> {
        let rendezvous = self.calls.get(&ticket);
        let call = rendezvous.and_then(|rendezvous| Some(rendezvous.inputs[rank].as_ref()?.operation.call));
        let is_missing = move |other: &usize| match (rendezvous, call) {
            (Some(rendezvous), Some(call)) => {
                needs(call, rank, *other) && rendezvous.inputs[*other].is_none()
            }
            _ => false,
        };
        (0..self.ranks.len()).filter(is_missing)
    }

    /// Returns whether `rank` has what it wants.
    pub fn has(&self, rank: usize, wanted: Wanted) -> bool {
        let arrived = |ticket: Ticket| self.missing(rank, ticket).next().is_none();
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
        let needs = |ticket: Ticket, other: usize| self.missing(rank, ticket).any(|missing| missing == other);
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

/// Writes the result of `operation` on `rank` into `to`, from the input of each rank.
pub(super) fn result(operation: Operation, rank: usize, inputs: &[&[u8]], to: &mut [u8]) {
    let mine = |from: usize| {
        let part = inputs[from].len() / inputs.len();
        &inputs[from][rank * part..(rank + 1) * part]
    };
    let terms = match operation.call {
        Call::Send { .. } | Call::Receive { .. } | Call::Barrier => return,
        Call::Reduce { root } | Call::Gather { root } if rank != root => return,
        Call::Broadcast { root } => vec![inputs[root]],
        Call::Scatter { root } => vec![mine(root)],
        Call::ReduceScatter | Call::AllToAll => (0..inputs.len()).map(mine).collect(),
        _ => inputs.to_vec(),
    };
    if operation.call.sums() {
        sum(operation.element, &terms, to);
    } else {
        to.copy_from_slice(&terms.concat());
    }
}

/// Returns whether `rank` needs the input of `other` for its result of `call`.
pub(super) fn needs(call: Call, rank: usize, other: usize) -> bool {
    match call {
        Call::Broadcast { root } | Call::Scatter { root } => other == root,
        Call::Gather { root } | Call::Reduce { root } => rank == root,
        _ => true,
    }
}

/// Sums in reverse rank order, rounding after each addition. MPI and gloo do not sum in rank order either.
/// Tests thus notice code that relies on rank order.
fn sum(element: Element, terms: &[&[u8]], to: &mut [u8]) {
    let wires = terms.iter().rev().map(|bytes| {
        let mut wire = Wire::zeros(element, bytes.len() / element.width());
        wire.bytes_mut().copy_from_slice(bytes);
        wire
    });
    let total = wires.reduce(|mut total, term| {
        total.add(&term);
        total
    });
    to.copy_from_slice(total.expect("a job has a rank").bytes());
}
