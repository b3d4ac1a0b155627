//! Blocking operations whose calls are compared ([`announced`](super::announced)) before they are made.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::announced::{Calls, Signature};
use super::pending::{ANNOUNCEMENTS, Blocking, COMPARISON, Comparison, Link};
use super::wire::Element;
use crate::calling::Exchange;
use crate::member::Started;
use crate::{Call, CommError, Primitives, SharedError};

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

/// Blocking operations of a transport, compared before they are made.
pub struct Checked<L> {
    link: L,
    calls: Calls,
    messages: Messages,
    /// Why no call can be made any more: this rank's were not those of the others.
    failed: Option<CommError>,
}

impl<L: Link> Checked<L> {
    pub(crate) fn over(link: L) -> Self {
        Self { link, calls: Calls::default(), messages: Messages::default(), failed: None }
    }

    /// Compares a call that starts.
    fn compare(&mut self, call: Call, of: &Started, announcement: Exchange) -> Result<(), CommError> {
        let member = self.link.member();
        let (size, comparison) = (member.size, member.started(L::NAME, COMPARISON, Exchange::BYTES));
        let _waiting = member.enter(L::NAME, call.name(), None);
        member.activity.specify(announcement.wait_of(L::NAME));
        let mine = announcement.bytes();
        let mut announce = |call, from: &[u8], to: &mut [u8]| {
            self.link.call(Blocking {
                channel: ANNOUNCEMENTS,
                of: comparison,
                call,
                element: Element::Byte,
                from,
                to,
            })
        };
        let compared = match call {
            Call::Send { .. } => announce(call, &mine, &mut []),
            Call::Receive { from } => {
                let mut theirs = vec![0; mine.len()];
                let announced = announce(call, &[], &mut theirs);
                // As if the sender were rank 0, which others are compared with.
                let compared = announced.and_then(|()| Exchange::compare(&[theirs, mine].concat()));
                compared.map_err(|error| match error {
                    CommError::Shared(SharedError::OutOfStep { calls, others, .. }) => {
                        let reason = format!("rank {from} sends {others}, and this rank receives {calls}");
                        self.link.member().error(of, reason)
                    }
                    other => other,
                })
            }
            _ => {
                let mut all = vec![0; mine.len() * size];
                let announced = announce(Call::AllGather, &mine, &mut all);
                let compared = announced.and_then(|()| Exchange::compare(&all));
                if compared.as_ref().is_err_and(CommError::is_shared) && Exchange::are_of_one_number(&all) {
                    // Nothing was sent: all ranks begin anew.
                    self.calls = Calls::default();
                    return compared;
                }
                compared
            }
        };
        compared.inspect_err(|error| self.failed = Some(error.clone()))
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
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let member = self.link.member();
        let of = member.check(L::NAME, call, element, from, to)?;
        let peer = if let Call::Send { .. } | Call::Receive { .. } = call { call.peer() } else { None };
        let announcement = match peer {
            _ if member.size == 1 || L::COMPARISON == Comparison::Never => None,
            Some(_) if L::PROBES_MESSAGES => None,
            Some(_) => self.messages.note(call, of.bytes, &member.host),
            None => {
                let length = call.part(from.len(), to.len(), member.size) / element.width();
                self.calls.note(Signature { call, started: None, element, length }, &member.host)
            }
        };
        if let Some(announcement) = announcement {
            self.compare(call, &of, announcement)?;
        }
        let member = self.link.member();
        let _waiting = member.enter(L::NAME, call.name(), None);
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
