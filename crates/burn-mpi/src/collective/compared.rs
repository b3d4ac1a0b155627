//! Blocking operations whose calls are compared ([`announced`](super::announced)) before they are made.

use std::collections::HashMap;

use super::announced::{Announcement, Calls, Signature};
use super::wire::Element;
use crate::member::{Member, Started};
use crate::{Call, CommError, Primitives, SharedError};

/// Messages from or to each rank so far, and their last length.
#[derive(Default)]
pub(crate) struct Messages(HashMap<Call, (u64, usize)>);

impl Messages {
    /// Notes the next message of `length` bytes. Unless the one before had the same, returns what both ranks have
    /// to compare first.
    fn note(&mut self, call: Call, length: usize, host: &str) -> Option<Announcement> {
        let (number, last) = self.0.entry(call).or_insert((0, usize::MAX));
        *number += 1;
        let is_expected = std::mem::replace(last, length) == length;
        (!is_expected)
            .then(|| Announcement::of(&format!("message {number} of {length} bytes"), *number, host))
    }
}

/// Blocking operations of a transport that trusts its callers, with a second channel of them.
pub trait Unchecked: Primitives {
    /// The transport's name.
    const NAME: &'static str;

    /// Whether it looks at the length of a message before it receives it.
    const PROBES_MESSAGES: bool = false;

    fn member(&self) -> &Member;

    /// An all-gather of bytes, a send or a receive, of which no other call reads the messages.
    fn announce(&mut self, call: Call, from: &[u8], to: &mut [u8]) -> Result<(), CommError>;
}

/// Blocking operations that are compared before they are made.
pub struct Checked<P> {
    raw: P,
    calls: Calls,
    messages: Messages,
    /// Why no call can be made any more: this rank's were not those of the others.
    failed: Option<CommError>,
}

impl<P: Unchecked> Checked<P> {
    pub(crate) fn over(raw: P) -> Self {
        Self { raw, calls: Calls::default(), messages: Messages::default(), failed: None }
    }

    /// Compares a call that starts.
    fn compare(&mut self, call: Call, of: &Started, announcement: Announcement) -> Result<(), CommError> {
        let member = self.raw.member();
        let size = member.size;
        let _waiting = member.enter(P::NAME, call.name(), None);
        member.activity.specify(announcement.wait_of(P::NAME));
        let mine = announcement.into_bytes();
        let compared = match call {
            Call::Send { .. } => self.raw.announce(call, &mine, &mut []),
            Call::Receive { from } => {
                let mut theirs = vec![0; mine.len()];
                let announced = self.raw.announce(call, &[], &mut theirs);
                // As if the sender were rank 0, which others are compared with.
                let compared = announced.and_then(|()| Announcement::compare(&[theirs, mine].concat()));
                compared.map_err(|error| match error {
                    CommError::Shared(SharedError::OutOfStep { calls, others, .. }) => {
                        let reason = format!("rank {from} sends {others}, and this rank receives {calls}");
                        self.raw.member().error(of, reason)
                    }
                    other => other,
                })
            }
            _ => {
                let mut all = vec![0; mine.len() * size];
                let announced = self.raw.announce(Call::AllGather, &mine, &mut all);
                let compared = announced.and_then(|()| Announcement::compare(&all));
                if compared.as_ref().is_err_and(CommError::is_shared) && Announcement::are_of_one_number(&all)
                {
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

impl<P: Unchecked> Primitives for Checked<P> {
    fn transport(&self) -> &str {
        P::NAME
    }

    fn rank(&self) -> usize {
        self.raw.rank()
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let member = self.raw.member();
        let started = member.check(P::NAME, call, element, from, to)?;
        let announcement = match call {
            _ if member.size == 1 => None,
            Call::Send { .. } | Call::Receive { .. } if P::PROBES_MESSAGES => None,
            Call::Send { .. } | Call::Receive { .. } => self.messages.note(call, started.bytes, &member.host),
            _ => {
                let length = call.part(from.len(), to.len(), member.size) / element.width();
                self.calls.note(Signature { call, started: None, element, length }, &member.host)
            }
        };
        if let Some(announcement) = announcement {
            self.compare(call, &started, announcement)?;
        }
        self.raw.call(call, element, from, to)
    }
}
