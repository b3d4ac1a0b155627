//! Small exchanges between ranks: job setup, and agreement on errors.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::activity;
use crate::calling::{Exchange, calling};
use crate::{CommError, Wire, World};

impl World {
    /// Gathers every rank's `mine`, all of one length, in rank order.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<u8>, CommError> {
        let mut all = vec![0; mine.len() * self.size()];
        self.control().borrow_mut().all_gather(mine, &mut all)?;
        Ok(all)
    }

    /// Every rank's length of what it sends next, in the exchange `name` of all ranks.
    ///
    /// # Errors
    /// On all ranks, [`CommError::OutOfStep`] if they are in different exchanges.
    fn lengths(&self, mine: usize, name: &str) -> Result<Vec<usize>, CommError> {
        let exchange = Exchange::of(name);
        let header = [(mine as u64).to_le_bytes(), exchange.tag().to_le_bytes()].concat();
        let all = self.all_gather(&header)?;
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let (lengths, tags): (Vec<usize>, Vec<u64>) =
            all.chunks_exact(16).map(|rank| (number(&rank[..8]) as usize, number(&rank[8..]))).unzip();
        let Some(rank) = tags.iter().position(|tag| *tag != tags[0]) else { return Ok(lengths) };
        let [calls, others] = Exchange::differing(&self.all_gather(&exchange.padded())?, rank);
        Err(CommError::OutOfStep { rank, host: self.host_of(rank), calls, others })
    }

    /// Broadcasts rank 0's bytes into every rank's `buffer`, of equal length on
    /// all.
    fn broadcast_into(&self, buffer: &mut [u8]) -> Result<(), CommError> {
        self.control().borrow_mut().broadcast(buffer, 0)
    }

    /// Gathers every rank's value, in rank order, on every rank.
    ///
    /// # Errors
    /// If the transport fails, or this rank's value cannot be written as JSON; on all ranks,
    /// [`CommError::OutOfStep`] if one is in another call of this crate.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>, CommError> {
        let mine = to_json(mine)?;
        let lengths = self.lengths(mine.len(), "gather")?;
        // Padded to the longest: the exchange is small, and one call is enough.
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut padded = mine;
        padded.resize(longest, 0);
        let all = self.all_gather(&padded)?;
        lengths
            .iter()
            .enumerate()
            .map(|(rank, &length)| self.decode(&all[rank * longest..rank * longest + length]))
            .collect()
    }

    /// Broadcasts rank 0's value; the other ranks' `value` is not read.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn broadcast<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<T, CommError> {
        let bytes = self.broadcast_bytes(if self.is_root() { to_json(value)? } else { Vec::new() })?;
        self.decode(&bytes)
    }

    /// Broadcasts rank 0's bytes.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn broadcast_bytes(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, CommError> {
        let exchange = Exchange::of("broadcast");
        let mut header = [(bytes.len() as u64).to_le_bytes(), exchange.tag().to_le_bytes()].concat();
        self.broadcast_into(&mut header)?;
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        if number(&header[8..]) != exchange.tag() {
            // The others go on; they learn it from this rank's exit.
            return Err(CommError::Unreadable {
                rank: self.rank(),
                host: self.host().to_owned(),
                reason: format!(
                    "rank 0 is in another call, and this rank in {}",
                    Exchange::name(&exchange.padded())
                ),
            });
        }
        bytes.resize(number(&header[..8]) as usize, 0);
        self.broadcast_into(&mut bytes)?;
        Ok(bytes)
    }

    /// Gathers every rank's bytes, in rank order, on rank 0; the others get none.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn gather_bytes(&self, mut mine: Vec<u8>) -> Result<Vec<Vec<u8>>, CommError> {
        let lengths = self.lengths(mine.len(), "gather_bytes")?;
        // Padded to the longest, since all send the same number of bytes.
        let longest = lengths.iter().copied().max().unwrap_or(0);
        mine.resize(longest, 0);
        let mut all = vec![0; if self.is_root() { longest * self.size() } else { 0 }];
        self.control().borrow_mut().gather(&mine, &mut all, 0)?;
        if !self.is_root() {
            return Ok(Vec::new());
        }
        let part = |(rank, &length): (usize, &usize)| all[rank * longest..rank * longest + length].to_vec();
        Ok(lengths.iter().enumerate().map(part).collect())
    }

    /// Overwrites `values` on every rank with rank 0's.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn broadcast_f32(&self, values: &mut [f32]) -> Result<(), CommError> {
        self.broadcast_into(bytemuck::cast_slice_mut(values))
    }

    /// Sums `values` over all ranks, in place.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn sum_f64(&self, values: &mut [f64]) -> Result<(), CommError> {
        let mut buffer = Wire::F64(values.to_vec());
        activity::named("sum", || self.control().borrow_mut().all_reduce(&mut buffer))?;
        if let Wire::F64(sums) = buffer {
            values.copy_from_slice(&sums);
        }
        Ok(())
    }

    /// Barrier: returns once every rank has called it.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.control().borrow_mut().barrier()
    }

    /// Returns one rank's failure on every rank: if any rank passes an error,
    /// all ranks return one that names the lowest such rank. So no rank waits
    /// for one that has left, and the job prints one line instead of one per
    /// rank.
    ///
    /// # Errors
    /// The first failing rank's error, or the transport's.
    pub fn agree<T, E: std::fmt::Display>(&self, mine: Result<T, E>) -> Result<T, CommError> {
        let _calling = calling("agree");
        let reason = mine.as_ref().err().map(|error| format!("{error:#}"));
        let all: Vec<Option<String>> = self.gather(&reason)?;
        let first = all.into_iter().enumerate().find_map(|(r, e)| Some((r, e?)));
        match (first, mine) {
            (None, Ok(value)) => Ok(value),
            (Some((rank, reason)), _) => Err(CommError::Elsewhere { rank, host: self.host_of(rank), reason }),
            (None, Err(error)) => Err(CommError::Start(error.to_string())),
        }
    }

    /// Checks that `mine` is the same text on every rank.
    ///
    /// # Errors
    /// [`CommError::Diverged`] names the first rank that differs from rank 0.
    pub fn check_equal(&self, what: &str, mine: &str) -> Result<(), CommError> {
        let _calling = calling(format!("check_equal of {what}"));
        let all: Vec<String> = self.gather(&mine.to_owned())?;
        match all.iter().position(|text| *text != all[0]) {
            None => Ok(()),
            Some(rank) => Err(self.diverged(what, rank, &all[rank], &all[0])),
        }
    }

    /// The error of a rank that differs from rank 0.
    pub(crate) fn diverged(
        &self,
        what: impl Into<String>,
        rank: usize,
        found: impl ToString,
        expected: impl ToString,
    ) -> CommError {
        let (host, found, expected) = (self.host_of(rank), found.to_string(), expected.to_string());
        CommError::Diverged { what: what.into(), rank, host, found, expected }
    }

    /// The host of a rank.
    pub(crate) fn host_of(&self, rank: usize) -> String {
        self.places()[rank].host.clone()
    }

    /// Checks that each rank has at least one of a data set's `samples`, equal on all ranks.
    #[cfg(feature = "data")]
    pub(crate) fn check_samples(&self, samples: usize) -> Result<(), CommError> {
        match samples < self.size() {
            true => Err(CommError::FewSamples {
                rank: samples,
                host: self.host_of(samples),
                samples,
                ranks: self.size(),
            }),
            false => Ok(()),
        }
    }

    fn decode<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, CommError> {
        serde_json::from_slice(bytes).map_err(|error| CommError::Unreadable {
            rank: self.rank(),
            host: self.host().to_owned(),
            reason: error.to_string(),
        })
    }
}

fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, CommError> {
    // Such as a path that is not UTF-8. The other ranks learn that this one has left.
    serde_json::to_vec(value)
        .map_err(|error| CommError::Start(format!("a value cannot be sent to the other ranks: {error}")))
}
