//! Inputs of ranks that are threads, results of their calls, and what each of them waits for.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::activity::Departure;
use crate::collective::pending::CHANNELS;
use crate::collective::wire::Element;
use crate::{Call, CommError, Operation, Wire};

/// What the hub knows.
#[derive(Default)]
pub(super) struct HubState {
    pub draw: Draw,
    pub ranks: Vec<Rank>,
    /// The rank that runs, if they take turns.
    pub turn: usize,
    /// Turns so far.
    pub turns: u64,
    /// A rank that runs only while no other can; their number if none is held back.
    pub held: usize,
    pub calls: BTreeMap<Ticket, Rendezvous>,
    /// Messages from and to.
    pub messages: BTreeMap<(usize, usize), Mailbox>,
    /// Graph nodes of parameters, and the rank that has them.
    pub nodes: BTreeMap<u64, usize>,
    /// The error with which every wait ends from now on.
    pub ended: Option<CommError>,
    /// The first rank that left with an error.
    pub cause: Option<(usize, String)>,
    pub lines: Vec<String>,
}

/// Messages of one rank to another.
#[derive(Default)]
pub(super) struct Mailbox {
    /// How many were received so far.
    pub received: usize,
    pub on_the_way: VecDeque<Vec<u8>>,
}

/// A call of all ranks: its channel, and its number on it.
pub(crate) type Ticket = (u64, u64);

/// The inputs of a call.
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
    /// Calls of each channel so far.
    pub posted: BTreeMap<u64, u64>,
    /// Calls that were posted and not taken.
    pub open: Vec<Ticket>,
}

pub(super) enum Phase {
    /// Before its first turn.
    Absent,
    /// It runs, or may.
    Ready,
    Waiting(Wanted),
    Sleeping(Duration),
    Left(Departure),
}

/// What a rank waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    Call(Ticket),
    /// Any of its open calls of the collective with this channel.
    Any(u64),
    Message {
        from: usize,
    },
    /// That its message of this number, from 1, was received.
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

    /// Whether a rank may run at this time.
    pub fn is_runnable(&self, rank: usize, now: Duration) -> bool {
        match self.ranks[rank].phase {
            Phase::Ready => true,
            Phase::Sleeping(until) => until <= now,
            Phase::Waiting(wanted) => self.has(rank, wanted) || self.lost(rank, wanted).is_some(),
            Phase::Absent | Phase::Left(_) => false,
        }
    }

    /// Whether all ranks have had their first turn, or never will.
    pub fn has_begun(&self) -> bool {
        !self.ranks.iter().any(|rank| matches!(rank.phase, Phase::Absent))
    }

    /// Ranks whose inputs `rank` needs for a call and that are missing.
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

    /// Whether `rank` has what it wants.
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

    /// The open calls of a rank of the collective with this channel.
    fn open(&self, rank: usize, first: u64) -> impl Iterator<Item = Ticket> {
        self.ranks[rank]
            .open
            .iter()
            .copied()
            .filter(move |(channel, _)| channel / CHANNELS as u64 == first / CHANNELS as u64)
    }

    /// The error of a wait for what will never come.
    pub fn lost(&self, rank: usize, wanted: Wanted) -> Option<CommError> {
        self.ended.clone().or_else(|| self.leaver(rank, wanted).map(Departure::error))
    }

    /// The rank that has left without what `rank` waits for.
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

/// Numbers drawn from a seed: SplitMix64 (Steele et al., 2014).
#[derive(Default)]
pub(super) struct Draw(pub u64);

impl Draw {
    /// A number below `limit`.
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

/// Ranks whose buffers `rank` needs for its result of `call`.
pub(super) fn needs(call: Call, rank: usize, other: usize) -> bool {
    match call {
        Call::Broadcast { root } | Call::Scatter { root } => other == root,
        Call::Gather { root } | Call::Reduce { root } => rank == root,
        _ => true,
    }
}

/// The sum in an order that is not that of the ranks, rounded after each addition, as MPI's and gloo's are.
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
