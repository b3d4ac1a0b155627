//! Checks that all ranks make the same call before any rank makes it.
//!
//! MPI and gloo do not check this. If one rank sums 5 values and another rank 50, MPI and gloo write past the
//! end of a buffer, abort, or return a wrong sum. This module compares the calls first: kind, element type
//! and length.
//!
//! A comparison is itself a small all-gather, so comparing every call would double the latency of small
//! calls. It gathers a key of each rank. Only if the keys differ, a second all-gather collects what the error
//! names. Training repeats the same sequence of calls, step after step. Each rank therefore learns the
//! sequence and skips the comparison while its calls follow the sequence. The call that a rank expects next
//! depends only on the rank's calls so far, so ranks that made the same calls expect the same next call.
//!
//! A rank that leaves the sequence starts a comparison and waits for the other ranks. If all ranks leave the
//! sequence at this call, they compare their calls. If the calls are equal, the ranks make them. If not, all
//! ranks return an error. If some ranks still follow the sequence, those ranks skip the comparison and wait
//! in their expected call, while the other ranks wait in the comparison. At the deadline, the job ends with
//! an error that names both calls. In either case, two different calls never meet inside MPI or gloo.
//!
//! A message between two ranks is compared by these two ranks only, and only if its length differs from the
//! length of the previous message. A transport that can tell the length of a message before the rank receives
//! it, such as MPI, does not compare messages at all.

use std::collections::HashMap;

use super::pending::{ANNOUNCEMENTS, DETAILS, Launch, Link, Transfer};
use super::wire::Element;
use crate::calling::Announcement;
use crate::member::Member;
use crate::{Call, CommError, Operation, Primitives, SharedError, Wire};

/// Maximum number of remembered calls. Calls that repeat with a period up to half of it are not compared
/// again.
const MEMORY: usize = 4096;

/// Maximum number of recent calls that are matched against earlier ones to find the position in the sequence.
const CONTEXT: usize = 64;

/// The collective calls that this rank has made so far on one [`Checked`] transport. They predict the next
/// call.
#[derive(Default)]
pub(crate) struct Calls {
    /// Number of calls so far.
    made: u64,
    /// The remembered calls, oldest first.
    latest: Vec<Operation>,
    /// Index in `latest` of the call that is expected next.
    expected: usize,
}

impl Calls {
    /// Records the next call. Returns the announcement (a description of the call) that ranks have to compare
    /// first, or `None` if the call was expected.
    pub fn note(&mut self, operation: Operation, host: &str) -> Option<Announcement> {
        // Ranks may give the same operation different bucket numbers.
        let operation = Operation { bucket: operation.bucket.map(|_| 0), ..operation };
        let is_expected = self.latest.get(self.expected) == Some(&operation);
        if self.latest.len() == MEMORY {
            self.latest.drain(..MEMORY / 2);
            self.expected = self.expected.saturating_sub(MEMORY / 2);
        }
        self.latest.push(operation);
        self.made += 1;
        self.expected = if is_expected { self.expected + 1 } else { self.after_the_same() };
        (!is_expected)
            .then(|| Announcement::for_exchange(&format!("{operation}, call {}", self.made), self.made, host))
    }

    /// Returns the index in `latest` of the call to expect next: the earlier index before which most calls,
    /// at most [`CONTEXT`], equal the latest calls. Of several such indices, returns the last.
    fn after_the_same(&self) -> usize {
        let (now, before) = (self.latest.iter().rev(), self.latest.len() - 1);
        let same = |end: &usize| {
            let earlier = self.latest[..*end].iter().rev();
            now.clone().zip(earlier).take(CONTEXT).take_while(|(a, b)| a == b).count()
        };
        (1..=before).max_by_key(same).unwrap_or(before)
    }
}

/// The number of messages so far and the length of the last one, for each peer and direction.
#[derive(Default)]
pub(crate) struct Messages(HashMap<Call, (u64, usize)>);

impl Messages {
    /// Records the next message of `length` bytes. Returns the announcement that the sender and the receiver
    /// have to compare first, or `None` if the previous message had the same length.
    fn note(&mut self, call: Call, length: usize, host: &str) -> Option<Announcement> {
        let (number, last) = self.0.entry(call).or_insert((0, usize::MAX));
        *number += 1;
        let is_expected = std::mem::replace(last, length) == length;
        (!is_expected)
            .then(|| Announcement::for_exchange(&format!("message {number} ({length} bytes)"), *number, host))
    }
}

/// A comparison of calls in flight.
pub(super) struct Comparison<Q> {
    announcement: Announcement,
    bucket: Option<usize>,
    request: Q,
    /// Whether the keys differ, so that the announcements are gathered.
    differs: bool,
}

/// A transport that compares unexpected calls between ranks before it makes them. Implements [`Primitives`],
/// the blocking calls.
pub struct Checked<L> {
    pub(super) link: L,
    /// Name of the transport, such as `mpi`. For a rank's second and later [`Collective`](crate::Collective),
    /// the name contains its number, as in `mpi (collective 2)`.
    pub(super) label: String,
    /// The first error after which ranks may make different calls. Every later call returns this error.
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

    /// Records the next collective call. Returns the announcement to compare first, or `None` if the call was
    /// expected or there is only one rank.
    pub(super) fn note(&mut self, operation: Operation) -> Result<Option<Announcement>, CommError> {
        self.check_failed()?;
        let Member { size, host, .. } = self.link.member();
        Ok(if *size == 1 { None } else { self.calls.note(operation, host) })
    }

    /// Starts the comparison of `call`: an all-gather of the keys of all ranks.
    pub(super) fn announce(
        &mut self,
        announcement: Announcement,
        bucket: Option<usize>,
    ) -> Result<Comparison<L::Request>, CommError> {
        let request = self.gather(announcement.key().to_vec(), bucket, ANNOUNCEMENTS)?;
        Ok(Comparison { announcement, bucket, request, differs: false })
    }

    fn gather(
        &mut self,
        mine: Vec<u8>,
        bucket: Option<usize>,
        channel: usize,
    ) -> Result<L::Request, CommError> {
        let mine = Wire::Bytes(mine);
        let all = mine.zeros_like(mine.len() * self.link.member().size);
        let operation = Operation { bucket, ..Operation::all_gather(0, &mine, all.len()) };
        let transfer = self.link.transfer(operation, channel, all.len());
        self.link.start(Launch { transfer, announcement: None, buffers: (mine, all) })
    }

    /// Returns whether a comparison is complete, without waiting.
    ///
    /// # Errors
    /// If the transport fails. If the calls differ, all ranks return an error. Set `anew` if no rank sends
    /// data of this call before the comparison is complete: if all ranks have then made the same number of
    /// calls, the remembered calls are cleared, and ranks may make further calls. Otherwise, every later call
    /// returns the error.
    pub(super) fn is_compared(
        &mut self,
        comparison: &mut Comparison<L::Request>,
        anew: bool,
    ) -> Result<bool, CommError> {
        let Some((_, all)) = self.link.test(&mut comparison.request)? else { return Ok(false) };
        if !comparison.differs {
            if Announcement::are_equal(all.bytes()) {
                return Ok(true);
            }
            comparison.differs = true;
            let mine = comparison.announcement.bytes();
            comparison.request = self.gather(mine, comparison.bucket, DETAILS)?;
            return Ok(false);
        }
        let compared = Announcement::compare(all.bytes());
        match &compared {
            Err(_) if anew && Announcement::are_of_one_number(all.bytes()) => self.calls = Calls::default(),
            Err(error) => self.failed = Some(error.clone()),
            Ok(()) => {}
        }
        compared.map(|()| true)
    }

    /// Compares a message between its two ranks: the sender sends its announcement, and the receiver checks
    /// the announcement.
    fn compare_message(&mut self, message: Transfer, announcement: &Announcement) -> Result<(), CommError> {
        let (mine, call) = (announcement.bytes(), message.operation.call);
        let mut theirs = vec![0; mine.len()];
        let (from, to) = match call {
            Call::Send { .. } => (&mine[..], &mut [][..]),
            _ => (&[][..], &mut theirs[..]),
        };
        let (element, length) = (Element::Byte, Announcement::BYTES);
        let operation = Operation { element, length, ..message.operation };
        let comparison = self.link.transfer(operation, ANNOUNCEMENTS, length);
        self.link.call(comparison, from, to)?;
        let Call::Receive { from } = call else { return Ok(()) };
        // `compare` compares all announcements with the first one, here the sender's.
        Announcement::compare(&[theirs, mine].concat()).map_err(|error| match error {
            CommError::Shared(SharedError::OutOfStep { calls, others, .. }) => {
                let reason = format!("rank {from} sends {others}, but this rank receives {calls}");
                self.link.member().error(&message.started, reason)
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
        let transfer = self.link.check(call, element, from, to)?;
        let peer = if let Call::Send { .. } | Call::Receive { .. } = call { call.peer() } else { None };
        let announcement = match peer {
            Some(_) if member.size == 1 || L::PROBES_MESSAGES => None,
            Some(_) => self.messages.note(call, transfer.started.bytes, &member.host),
            None => self.note(transfer.operation)?,
        };
        if let Some(announcement) = announcement {
            let member = self.link.member();
            let _waiting = member.enter(&self.label, call.name(), None);
            member.activity.with(|state| state.what = announcement.wait_of(&self.label));
            if peer.is_some() {
                let compared = self.compare_message(transfer, &announcement);
                compared.inspect_err(|error| self.failed = Some(error.clone()))?;
            } else {
                let mut comparison = self.announce(announcement, None)?;
                self.link.pause()?;
                while !self.is_compared(&mut comparison, true)? {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reduction;

    fn sum(length: usize) -> Operation {
        Operation {
            bucket: None,
            ..Operation::all_reduce(0, &Wire::F32(vec![0.0; length]), Reduction::Native)
        }
    }

    /// Makes all-reduces of these lengths, and returns the indices of those that are compared.
    fn compared(lengths: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut calls = Calls::default();
        let is_new = |(_, length): &(usize, usize)| calls.note(sum(*length), "node0").is_some();
        lengths.into_iter().enumerate().filter(is_new).map(|(number, _)| number).collect()
    }

    #[test]
    fn what_repeats_itself_is_not_compared() {
        assert_eq!(compared([7; 100]), [0]);
        // The lengths of the buckets of one training step. Some lengths are equal.
        let step = [5, 9, 9, 9, 4, 9, 9, 3];
        let late = compared(step.into_iter().cycle().take(100 * step.len()));
        assert!(late.iter().all(|&number| number < 3 * step.len()), "{late:?}");
        // Every 250th call has a length that no earlier call had.
        let odd =
            (0..1000).map(|number| if number % 250 == 249 { 1000 + number } else { step[number % 250 % 8] });
        assert!(compared(odd).len() < 60);
        // There are more calls than are remembered.
        assert_eq!(compared((0..3 * MEMORY).map(|number| number / 2000)).len(), 7);
        assert_eq!(compared(0..2 * MEMORY).len(), 2 * MEMORY);
    }

    #[test]
    fn an_error_names_the_rank_and_both_calls() {
        let announced = |length, host| Calls::default().note(sum(length), host).expect("the first").bytes();
        let [five, same, fifty] = [announced(5, "node0"), announced(5, "node1"), announced(50, "node2")];
        assert!(Announcement::compare(&[&five[..], &same].concat()).is_ok());
        let all = [five.clone(), same, fifty].concat();
        let error = Announcement::compare(&all).unwrap_err().to_string();
        let line =
            "rank 2 on node2 is in all-reduce of 50 f32, call 1, and rank 0 in all-reduce of 5 f32, call 1:";
        assert!(error.starts_with(line), "{error}");
        let mut calls = Calls::default();
        calls.note(sum(1), "node1");
        let later = calls.note(sum(5), "node1").expect("another").bytes();
        assert!(Announcement::are_of_one_number(&all));
        assert!(!Announcement::are_of_one_number(&[five, later].concat()));
    }
}
