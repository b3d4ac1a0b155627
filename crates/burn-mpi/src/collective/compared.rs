//! Blocking operations whose calls are compared ([`announced`](super::announced)) before they are made.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::announced::{Calls, Signature};
use super::pending::{ANNOUNCEMENTS, BLOCKING, Blocking, COMPARISON, Comparison, Job, Link, Step};
use super::wire::Element;
use crate::calling::Exchange;
use crate::member::{Member, Started};
use crate::{Call, CommError, Operation, Primitives, SharedError, Wire};

/// Messages from or to each rank so far, and their last length.
#[derive(Default)]
pub(crate) struct Messages(HashMap<Call, (u64, usize)>);

impl Messages {
    /// Notes the next message of `length` bytes. Unless the one before had the same, returns what both ranks have
    /// to compare first.
    fn note(&mut self, call: Call, length: usize, host: &str) -> Option<Exchange> {
        let (number, last) = self.0.entry(call).or_insert((0, usize::MAX));
        *number += 1;
        let is_expected = std::mem::replace(last, length) == length;
        (!is_expected).then(|| Exchange::of(&format!("message {number} of {length} bytes"), *number, host))
    }
}

/// Calls of a transport that ranks compare before they make them, and blocking ones as [`Primitives`].
pub struct Checked<L> {
    pub(super) link: L,
    /// The transport, and which of the rank's collectives this is unless it is the first.
    pub(super) label: String,
    /// Why no call can be made any more: this rank's were not those of the others.
    pub(super) failed: Option<CommError>,
    calls: Calls,
    messages: Messages,
}

impl<L: Link> Checked<L> {
    pub(crate) fn over(link: L) -> Self {
        let (calls, messages) = (Calls::default(), Messages::default());
        Self { link, label: L::NAME.to_owned(), failed: None, calls, messages }
    }

    pub(super) fn check_failed(&self) -> Result<(), CommError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Notes the next call of all ranks; returns what has to be compared unless it is expected.
    pub(super) fn note(&mut self, signature: Signature) -> Result<Option<Exchange>, CommError> {
        self.check_failed()?;
        let Member { size, host, .. } = self.link.member();
        match *size == 1 || L::COMPARISON == Comparison::Never {
            true => Ok(None),
            false => Ok(self.calls.note(signature, host)),
        }
    }

    /// Starts a comparison.
    pub(super) fn announce(&mut self, call: &Exchange, bucket: usize) -> Result<L::Request, CommError> {
        let (mine, whole) = (Wire::Bytes(call.bytes()), Exchange::BYTES);
        let all = mine.zeros_like(whole * self.link.member().size);
        let operation = Operation::AllGather { length: all.len() };
        let step = Step { bucket, operation, whole, call: Call::AllGather, channel: ANNOUNCEMENTS };
        self.link.start(Job::new(self.link.member(), L::NAME, step, mine, all))
    }

    /// Whether an announcement is compared, without waiting. If nothing was sent, ranks that differ
    /// may begin anew.
    pub(super) fn is_compared(
        &mut self,
        request: &mut L::Request,
        restarts: bool,
    ) -> Result<bool, CommError> {
        let Some((_, all)) = self.link.test(request)? else { return Ok(false) };
        let compared = Exchange::compare(all.bytes());
        match &compared {
            Err(_) if restarts && Exchange::are_of_one_number(all.bytes()) => self.calls = Calls::default(),
            Err(error) => self.failed = Some(error.clone()),
            Ok(()) => {}
        }
        compared.map(|()| true)
    }

    /// Compares a message with what its other rank has of it.
    fn compare_message(&mut self, call: Call, of: &Started, message: &Exchange) -> Result<(), CommError> {
        let mine = message.bytes();
        let mut theirs = vec![0; mine.len()];
        let (from, to) = match call {
            Call::Send { .. } => (&mine[..], &mut [][..]),
            _ => (&[][..], &mut theirs[..]),
        };
        let comparison = self.link.member().started(L::NAME, COMPARISON, Exchange::BYTES);
        let (channel, element) = (ANNOUNCEMENTS, Element::Byte);
        self.link.call(Blocking { channel, of: comparison, call, element, from, to })?;
        let Call::Receive { from } = call else { return Ok(()) };
        // As if the sender were rank 0, which others are compared with.
        Exchange::compare(&[theirs, mine].concat()).map_err(|error| match error {
            CommError::Shared(SharedError::OutOfStep { calls, others, .. }) => {
                let reason = format!("rank {from} sends {others}, and this rank receives {calls}");
                self.link.member().error(of, reason)
            }
            other => other,
        })
    }
}

impl<L: Link> Primitives for Checked<L> {
    fn transport(&self) -> &str {
        L::NAME
    }

    fn rank(&self) -> usize {
        self.link.member().rank
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.check_failed()?;
        let member = self.link.member();
        let of = member.check(L::NAME, call, element, from, to)?;
        let peer = if let Call::Send { .. } | Call::Receive { .. } = call { call.peer() } else { None };
        let announcement = match peer {
            Some(_) if member.size == 1 || L::PROBES_MESSAGES => None,
            Some(_) => self.messages.note(call, of.bytes, &member.host),
            None => {
                let length = call.part(from.len(), to.len(), member.size) / element.width();
                self.note(Signature { call, started: None, element, length })?
            }
        };
        if let Some(announcement) = announcement {
            let member = self.link.member();
            let _waiting = member.enter(&self.label, call.name(), None);
            member.activity.specify(announcement.wait_of(&self.label));
            if peer.is_some() {
                let compared = self.compare_message(call, &of, &announcement);
                compared.inspect_err(|error| self.failed = Some(error.clone()))?;
            } else {
                let mut request = self.announce(&announcement, BLOCKING)?;
                self.link.pause()?;
                while !self.is_compared(&mut request, true)? {
                    self.link.pause()?;
                }
            }
        }
        let member = self.link.member();
        let _waiting = member.enter(&self.label, call.name(), None);
        member.activity.with(|state| state.peer = peer);
        self.link.make(call, element, from, to)
    }
}

/// Blocking operations that several owners use, on one thread.
#[derive(Clone)]
pub(crate) struct Shared {
    transport: &'static str,
    rank: usize,
    operations: Rc<RefCell<dyn Primitives>>,
}

impl Shared {
    pub fn over<L: Link + 'static>(link: L) -> Self {
        let (transport, rank) = (L::NAME, link.member().rank);
        Self { transport, rank, operations: Rc::new(RefCell::new(Checked::over(link))) }
    }
}

impl Primitives for Shared {
    fn transport(&self) -> &str {
        self.transport
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.operations.borrow_mut().call(call, element, from, to)
    }
}
