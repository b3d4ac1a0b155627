//! Gathers values of all ranks for a [`World`].
//!
//! Ranks first gather the length and a digest of each value. Most values that ranks compare, such as options
//! and the shapes of a module, are equal on all ranks. Equal values are sent once or not at all: a rank of
//! 1,024 ranks would otherwise receive 1,024 copies.

use std::collections::HashSet;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::calling::{Announcement, calling};
use crate::world::written;
use crate::{CommError, World};

/// What a rank sends of its value first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Header {
    length: usize,
    digest: u64,
}

fn longest(headers: &[Header]) -> usize {
    headers.iter().map(|header| header.length).fold(1, usize::max)
}

/// Pads a value to the longest one: every rank then sends the same number of bytes in a single call.
fn padded(mut mine: Vec<u8>, headers: &[Header]) -> Vec<u8> {
    mine.resize(longest(headers), 0);
    mine
}

impl World {
    /// Gathers the length and a digest of every rank's value, in rank order. `mine` is this rank's value.
    ///
    /// # Errors
    /// On all ranks, [`SharedError::OutOfStep`](crate::SharedError::OutOfStep) if ranks are in different
    /// exchanges.
    fn headers(&self, mine: &[u8]) -> Result<Vec<Header>, CommError> {
        let exchange = Announcement::for_exchange("lengths", 0, self.host());
        let digest = Sha256::digest(mine);
        let digest = u64::from_le_bytes(std::array::from_fn(|at| digest[at]));
        let mut all = vec![[0u64; 3]; self.size()];
        self.control().borrow_mut().all_gather(
            bytemuck::bytes_of(&[mine.len() as u64, digest, exchange.tag]),
            bytemuck::cast_slice_mut(&mut all),
        )?;
        if all.iter().any(|[.., tag]| *tag != all[0][2]) {
            Announcement::compare(&self.all_gather_bytes(&exchange.bytes())?)?;
        }
        Ok(all.into_iter().map(|[length, digest, _]| Header { length: length as usize, digest }).collect())
    }

    /// Gathers every rank's value in rank order. `send` gets this rank's encoded value, padded to the length
    /// of the longest one. `send` returns the padded values of all ranks, one after the other, or an empty
    /// vector on a rank that gets no values. If the values of all ranks are equal, nothing is sent, and every
    /// rank gets the values.
    pub(crate) fn gathered<T: Serialize + DeserializeOwned>(
        &self,
        mine: &T,
        name: &str,
        send: impl FnOnce(&[u8]) -> Result<Vec<u8>, CommError>,
    ) -> Result<Vec<T>, CommError> {
        let _calling = calling(name);
        let mine = written(mine);
        let headers = self.headers(&mine)?;
        if headers.iter().all(|header| *header == headers[0]) {
            return headers.iter().map(|_| self.read(0, &mine)).collect();
        }
        let all = send(&padded(mine, &headers))?;
        let ranks = all.chunks(longest(&headers)).zip(headers).enumerate();
        ranks.map(|(rank, (bytes, header))| self.read(rank, &bytes[..header.length])).collect()
    }

    /// Gathers the different values of all ranks, each with the lowest rank that has it, in the order of these
    /// ranks. Most values that ranks exchange are equal on nearly all ranks. They are sent once, so a rank
    /// needs no memory for the values of all ranks.
    pub(crate) fn gather_distinct<T: Serialize + DeserializeOwned>(
        &self,
        mine: &T,
    ) -> Result<Vec<(usize, T)>, CommError> {
        /// Maximum number of values that are broadcast one after the other.
        const FEW: usize = 4;
        let _calling = calling("gather");
        let mine = written(mine);
        let headers = self.headers(&mine)?;
        let mut seen = HashSet::new();
        let is_first =
            |&rank: &usize| rank == 0 || (headers[rank] != headers[0] && seen.insert(headers[rank]));
        let ranks: Vec<usize> = (0..headers.len()).filter(is_first).collect();
        let values: Vec<Vec<u8>> = if ranks.len() == 1 {
            vec![mine]
        } else if ranks.len() <= FEW {
            let value = |&rank: &usize| {
                let mut bytes = vec![0; headers[rank].length];
                if rank == self.rank() {
                    bytes.copy_from_slice(&mine);
                }
                self.control().borrow_mut().broadcast(&mut bytes, rank).map(|()| bytes)
            };
            ranks.iter().map(value).collect::<Result<_, _>>()?
        } else {
            let all = self.all_gather_bytes(&padded(mine, &headers))?;
            let start = |rank: usize| rank * longest(&headers);
            ranks.iter().map(|&rank| all[start(rank)..][..headers[rank].length].to_vec()).collect()
        };
        let read = |(rank, bytes): (usize, Vec<u8>)| Ok((rank, self.read(rank, &bytes)?));
        ranks.into_iter().zip(values).map(read).collect()
    }
}
