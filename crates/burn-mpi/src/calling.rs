//! What this rank is calling, so that ranks that call different things are told.

use std::cell::RefCell;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{CommError, SharedError};

thread_local! {
    /// Functions of this crate that this thread is in, from the outermost.
    static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A call, until dropped.
#[must_use = "the call ends when this is dropped"]
pub(crate) struct Calling(());

/// Begins the call of a function that has exchanges, under the name that a user knows.
pub(crate) fn calling(name: impl Into<String>) -> Calling {
    CALLS.with_borrow_mut(|calls| calls.push(name.into()));
    Calling(())
}

impl Drop for Calling {
    fn drop(&mut self) {
        CALLS.with_borrow_mut(Vec::pop);
    }
}

/// Between a call and the one inside it.
const WITHIN: &str = " > ";

/// A call of this rank, as it tells the others of it: an [`Operation`](crate::Operation) or an exchange, and the
/// functions around it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Announcement {
    /// Equal on ranks in the same exchange.
    pub tag: u64,
    /// Of the exchanges of its kind, if they are counted.
    number: u64,
    host: String,
    /// The calls from the outermost, or the last of them.
    pub name: String,
}

impl Announcement {
    /// Its bytes when it is sent.
    pub const BYTES: usize = 256;
    /// Those of a name, and of a host's.
    const ROOM: usize = 128;
    const HOST: usize = 64;

    /// The exchange `inner` of the current call, on this host.
    pub fn for_exchange(inner: &str, number: u64, host: &str) -> Self {
        let calls = CALLS.with_borrow(|calls| [&calls[..], &[inner.to_owned()]].concat()).join(WITHIN);
        let digest = Sha256::digest(calls.as_bytes());
        // The innermost call says most.
        let start = calls.ceil_char_boundary(calls.len().saturating_sub(Self::ROOM));
        Self {
            tag: u64::from_le_bytes(std::array::from_fn(|at| digest[at])),
            number,
            host: host[..host.floor_char_boundary(Self::HOST)].to_owned(),
            name: calls[start..].to_owned(),
        }
    }

    /// What a rank that waits in the comparison is in.
    pub fn wait_of(&self, transport: &str) -> String {
        format!("{transport} comparison of {}", self.name)
    }

    /// What is sent of it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        ciborium::into_writer(self, &mut bytes).expect("a vector takes numbers and strings");
        bytes.resize(Self::BYTES, 0);
        bytes
    }

    fn of_ranks(all: &[u8]) -> Vec<Self> {
        let read = |bytes: &[u8]| ciborium::from_reader(bytes).unwrap_or_default();
        all.chunks_exact(Self::BYTES).map(read).collect()
    }

    /// Whether all ranks have made as many calls: then none is left that others have not made.
    pub fn are_of_one_number(all: &[u8]) -> bool {
        Self::of_ranks(all).windows(2).all(|pair| pair[0].number == pair[1].number)
    }

    /// Compares those of all ranks.
    ///
    /// # Errors
    /// On all ranks, [`SharedError::OutOfStep`](crate::SharedError::OutOfStep) of the first rank whose call is not
    /// rank 0's. It names the outermost calls, with those inside if they are the same.
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
        assert_eq!(plain.tag, gather().tag, "calls that have ended are not in it");
        let long = calling("ü".repeat(200));
        let cut = Announcement::for_exchange("gather", u64::MAX, &"h".repeat(200));
        drop(long);
        assert!(cut.name.len() <= Announcement::ROOM && cut.name.ends_with("ü > gather"), "{}", cut.name);
        assert_eq!(cut.bytes().len(), Announcement::BYTES);
        assert!(Announcement::compare(&[cut.bytes(), cut.bytes()].concat()).is_ok());
    }
}
