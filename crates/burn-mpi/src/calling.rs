//! Detects that ranks are in different calls, such as `save_record` and `gather`, and names the calls in the
//! error.
//!
//! An exchange passes small values between all ranks. A function that makes exchanges, such as `save_record`,
//! puts its name on a stack of its thread. An exchange hashes the names on the stack and its own name into a
//! tag. Ranks whose tags differ are in different calls. All ranks then exchange [`Announcement`]s, which
//! contain the names.

use std::cell::RefCell;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{CommError, SharedError};

thread_local! {
    /// Functions of this crate that this thread is in, outermost first.
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A function's name on the stack, until dropped.
#[must_use = "the call ends when this is dropped"]
pub(crate) struct Calling(());

/// Puts the name of a function that makes exchanges on the stack, until the result is dropped. `name` is the
/// name that a user of the crate knows.
pub(crate) fn calling(name: impl Into<String>) -> Calling {
    CALLS.with_borrow_mut(|calls| calls.push(name.into()));
    Calling(())
}

impl Drop for Calling {
    fn drop(&mut self) {
        CALLS.with_borrow_mut(Vec::pop);
    }
}

/// Returns the name of the outermost function that this thread is in.
pub(crate) fn outermost() -> Option<String> {
    CALLS.with_borrow(|calls| calls.first().cloned())
}

/// Separates the name of a call from the name of the call inside it.
const WITHIN: &str = " > ";

/// A call of this rank as the other ranks receive it: an [`Operation`](crate::Operation) or an exchange, and
/// the functions that make the call.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Announcement {
    /// Hash of the names of the calls: equal on ranks in the same exchange.
    pub tag: u64,
    /// Number of the call among calls of its kind; 0 if calls of this kind are not counted.
    number: u64,
    host: String,
    /// Names of the calls, outermost first. If they are longer than `ROOM` bytes, `name` has only their end.
    pub name: String,
}

impl Announcement {
    /// Length of an encoded announcement, in bytes.
    pub const BYTES: usize = 256;
    /// Length of a key, in bytes. Ranks exchange keys first, and announcements only if the keys differ: each
    /// rank receives one from every rank, so their length counts.
    const KEY: usize = 16;
    /// Maximum number of bytes in `name`.
    const ROOM: usize = 128;
    /// Maximum number of bytes in `host`.
    const HOST: usize = 64;

    /// Describes the exchange named `inner` that the functions on this thread's stack make. `number` and
    /// `host` are copied into the announcement.
    pub fn for_exchange(inner: &str, number: u64, host: &str) -> Self {
        let calls = CALLS.with_borrow(|calls| [&calls[..], &[inner.to_owned()]].concat()).join(WITHIN);
        let digest = Sha256::digest(calls.as_bytes());
        // If the names are too long, keep the end: the innermost call is the most specific.
        let start = calls.ceil_char_boundary(calls.len().saturating_sub(Self::ROOM));
        Self {
            tag: u64::from_le_bytes(std::array::from_fn(|at| digest[at])),
            number,
            host: host[..host.floor_char_boundary(Self::HOST)].to_owned(),
            name: calls[start..].to_owned(),
        }
    }

    /// Returns the name of the operation in which a rank waits for the comparison of announcements.
    pub fn wait_of(&self, transport: &str) -> String {
        format!("{transport} comparison of {}", self.name)
    }

    /// Encodes the announcement, padded with zeros to [`BYTES`](Self::BYTES) bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        ciborium::into_writer(self, &mut bytes).expect("writing numbers and strings to a vector cannot fail");
        bytes.resize(Self::BYTES, 0);
        bytes
    }

    /// Returns the key of the announcement: two ranks make the same call if their keys are equal.
    pub fn key(&self) -> [u8; Self::KEY] {
        bytemuck::cast([self.tag, self.number])
    }

    /// Returns whether all ranks make the same call. `keys` are the keys of all ranks.
    pub fn are_equal(keys: &[u8]) -> bool {
        keys.chunks_exact(Self::KEY).all(|key| *key == keys[..Self::KEY])
    }

    fn of_ranks(all: &[u8]) -> Vec<Self> {
        let read = |bytes: &[u8]| ciborium::from_reader(bytes).unwrap_or_default();
        all.chunks_exact(Self::BYTES).map(read).collect()
    }

    /// Returns whether all ranks have made the same number of calls. If not, some rank has made a call that
    /// another rank has not made.
    pub fn are_of_one_number(all: &[u8]) -> bool {
        Self::of_ranks(all).windows(2).all(|pair| pair[0].number == pair[1].number)
    }

    /// Compares the announcements of all ranks, which `all` contains in rank order.
    ///
    /// # Errors
    /// On all ranks, [`SharedError::OutOfStep`](crate::SharedError::OutOfStep) with the lowest rank whose
    /// call differs from rank 0's call. The error names the outermost call of each of these two ranks; if the
    /// outermost calls have the same name, the error also names the calls inside them.
    pub fn compare(all: &[u8]) -> Result<(), CommError> {
        let ranks = Self::of_ranks(all);
        let differs = |other: &Self| (other.tag, other.number) != (ranks[0].tag, ranks[0].number);
        let Some(rank) = ranks.iter().position(differs) else { return Ok(()) };
        let names = [rank, 0].map(|rank| ranks[rank].name.clone());
        let outermost = names.clone().map(|name| name.split(WITHIN).next().unwrap_or_default().to_owned());
        let [calls, others] = if outermost[0] == outermost[1] { names } else { outermost };
        Err(CommError::Shared(SharedError::OutOfStep { rank, host: ranks[rank].host.clone(), calls, others }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_known_by_all_calls_around_it() {
        let gather = || Announcement::for_exchange("gather", 0, "node0");
        let plain = gather();
        let (outer, inner) = {
            let _outer = calling("save_record");
            let outer = gather();
            let _inner = calling("agree");
            (outer, gather())
        };
        assert_eq!(inner.name, "save_record > agree > gather");
        let differing =
            |sent: [&Announcement; 2]| match Announcement::compare(&sent.map(Announcement::bytes).concat()) {
                Err(CommError::Shared(SharedError::OutOfStep { rank: 1, calls, others, .. })) => {
                    [calls, others]
                }
                other => panic!("{other:?}"),
            };
        assert_eq!(differing([&plain, &outer]), ["save_record", "gather"]);
        assert_eq!(differing([&outer, &inner]), ["save_record > agree > gather", "save_record > gather"]);
        assert_eq!(plain.tag, gather().tag, "the tag must not contain calls that have ended");
        let long = calling("ü".repeat(200));
        let cut = Announcement::for_exchange("gather", u64::MAX, &"h".repeat(200));
        drop(long);
        assert!(cut.name.len() <= Announcement::ROOM && cut.name.ends_with("ü > gather"), "{}", cut.name);
        assert_eq!(cut.bytes().len(), Announcement::BYTES);
        assert!(Announcement::compare(&[cut.bytes(), cut.bytes()].concat()).is_ok());
        let equal =
            |calls: [&Announcement; 3]| Announcement::are_equal(&calls.map(Announcement::key).concat());
        assert!(equal([&plain, &gather(), &plain]) && !equal([&plain, &plain, &outer]));
        assert!(!equal([&plain, &Announcement { number: 1, ..gather() }, &plain]));
    }
}
