//! What this rank is calling, so that ranks that call different things are told.

use std::cell::RefCell;

use sha2::{Digest, Sha256};

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

/// Bytes of a name that is sent.
pub(crate) const ROOM: usize = 128;

/// Between a call and the one inside it.
const WITHIN: &str = " > ";

/// One exchange of this rank.
pub(crate) struct Exchange(String);

impl Exchange {
    /// The exchange `inner` of the current call.
    pub fn of(inner: &str) -> Self {
        let calls = CALLS.with_borrow(|calls| [&calls[..], &[inner.to_owned()]].concat());
        Self(calls.join(WITHIN))
    }

    /// Equal on ranks in the same exchange.
    pub fn tag(&self) -> u64 {
        let digest = Sha256::digest(self.0.as_bytes());
        u64::from_le_bytes(std::array::from_fn(|at| digest[at]))
    }

    /// The name, padded with zeros.
    pub fn padded(&self) -> Vec<u8> {
        let mut bytes = self.0.clone().into_bytes();
        // The innermost call says most.
        bytes.drain(..bytes.len().saturating_sub(ROOM));
        bytes.resize(ROOM, 0);
        bytes
    }

    /// Reads what [`padded`](Self::padded) has written.
    pub fn name(padded: &[u8]) -> String {
        String::from_utf8_lossy(padded).trim_end_matches('\0').to_owned()
    }

    /// What `rank` and rank 0 call, of the names that all ranks have sent: the outermost calls, with
    /// those inside if they are the same.
    pub fn differing(all: &[u8], rank: usize) -> [String; 2] {
        let names = [rank, 0].map(|rank| Self::name(&all[rank * ROOM..(rank + 1) * ROOM]));
        let outermost = names.clone().map(|name| name.split(WITHIN).next().unwrap_or_default().to_owned());
        if outermost[0] == outermost[1] { names } else { outermost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_known_by_all_calls_around_it() {
        let plain = Exchange::of("gather");
        let (outer, inner) = {
            let _outer = calling("save_record");
            let outer = Exchange::of("gather");
            let _inner = calling("agree");
            (outer, Exchange::of("gather"))
        };
        assert_eq!(Exchange::name(&inner.padded()), "save_record > agree > gather");
        let sent = [plain.padded(), outer.padded()].concat();
        assert_eq!(Exchange::differing(&sent, 1), ["save_record", "gather"]);
        let sent = [outer.padded(), inner.padded()].concat();
        assert_eq!(Exchange::differing(&sent, 1), ["save_record > agree > gather", "save_record > gather"]);
        assert!(plain.tag() != outer.tag() && outer.tag() != inner.tag());
        assert_eq!(plain.tag(), Exchange::of("gather").tag(), "calls that have ended are not in it");
        let long = calling("x".repeat(200));
        assert_eq!(Exchange::of("gather").padded().len(), ROOM);
        drop(long);
    }
}
