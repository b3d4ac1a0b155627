//! Small exchanges between ranks: job setup, and agreement on errors.

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::activity;
use crate::calling::{Exchange, calling};
use crate::{CommError, SharedError, Wire, World};

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
    /// On all ranks, [`SharedError::OutOfStep`](crate::SharedError::OutOfStep) if they are in different exchanges.
    fn lengths(&self, mine: usize, name: &str) -> Result<Vec<usize>, CommError> {
        let exchange = Exchange::of(name);
        let mut all = vec![[0u64; 2]; self.size()];
        self.control().borrow_mut().all_gather(
            bytemuck::bytes_of(&[mine as u64, exchange.tag()]),
            bytemuck::cast_slice_mut(&mut all),
        )?;
        let Some(rank) = all.iter().position(|[_, tag]| *tag != all[0][1]) else {
            return Ok(all.iter().map(|[length, _]| *length as usize).collect());
        };
        let [calls, others] = Exchange::differing(&self.all_gather(&exchange.padded())?, rank);
        Err(CommError::Shared(SharedError::OutOfStep { rank, host: self.host_of(rank), calls, others }))
    }

    /// Every rank's bytes in rank order, where `send` returns those of all ranks one after the other.
    fn gathered(
        &self,
        mut mine: Vec<u8>,
        name: &str,
        send: impl FnOnce(&[u8]) -> Result<Vec<u8>, CommError>,
    ) -> Result<Vec<Vec<u8>>, CommError> {
        let lengths = self.lengths(mine.len(), name)?;
        // Padded to the longest: all send the same number of bytes, not 0, and one call is enough.
        let longest = lengths.iter().copied().fold(1, usize::max);
        mine.resize(longest, 0);
        let all = send(&mine)?;
        Ok(all.chunks(longest).zip(lengths).map(|(rank, length)| rank[..length].to_vec()).collect())
    }

    /// Gathers every rank's value, in rank order, on every rank. They are sent as CBOR, which has NaN,
    /// integers of 128 bits, bytes and maps with any keys; but `Some(())` and `Some(None)` arrive as `None`.
    ///
    /// # Errors
    /// If the transport fails. On all ranks: [`SharedError::Elsewhere`](crate::SharedError::Elsewhere) names the first whose value its
    /// `Serialize` refuses, such as a path that is not UTF-8; [`SharedError::OutOfStep`](crate::SharedError::OutOfStep) one that is in
    /// another call of this crate. [`CommError::Unreadable`] if `T` does not read what it has written.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, mine: &T) -> Result<Vec<T>, CommError> {
        let ranks = self.gathered(written(mine), "gather", |padded| self.all_gather(padded))?;
        ranks.iter().enumerate().map(|(rank, bytes)| self.read(rank, bytes)).collect()
    }

    /// Broadcasts rank 0's value; the other ranks' `value` is not read. It arrives as with
    /// [`gather`](Self::gather).
    ///
    /// # Errors
    /// If the transport fails, or those of [`gather`](Self::gather) about rank 0's value.
    pub fn broadcast<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<T, CommError> {
        let bytes = self.broadcast_bytes(if self.is_root() { written(value) } else { Vec::new() })?;
        self.read(0, &bytes)
    }

    /// Broadcasts rank 0's bytes.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn broadcast_bytes(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, CommError> {
        let exchange = Exchange::of("broadcast");
        let mut header = [bytes.len() as u64, exchange.tag()];
        self.control().borrow_mut().broadcast(bytemuck::bytes_of_mut(&mut header), 0)?;
        let [length, tag] = header;
        if tag != exchange.tag() {
            // The others go on; they learn it from this rank's exit.
            let name = Exchange::name(&exchange.padded());
            return Err(self.unreadable(format!("rank 0 is in another call, and this rank in {name}")));
        }
        bytes.resize(length as usize, 0);
        self.control().borrow_mut().broadcast(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Gathers every rank's bytes, in rank order, on rank 0; the others get none.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn gather_bytes(&self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, CommError> {
        self.gathered(mine, "gather_bytes", |padded| {
            let mut all = vec![0; if self.is_root() { padded.len() * self.size() } else { 0 }];
            self.control().borrow_mut().gather(padded, &mut all, 0)?;
            Ok(all)
        })
    }

    /// Overwrites `values` on every rank with rank 0's.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn broadcast_f32(&self, values: &mut [f32]) -> Result<(), CommError> {
        self.control().borrow_mut().broadcast(bytemuck::cast_slice_mut(values), 0)
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
    pub fn agree<T, E: Display>(&self, mine: Result<T, E>) -> Result<T, CommError> {
        let _calling = calling("agree");
        // On one line: it is part of one.
        let reason = mine.as_ref().err().map(|error| format!("{error:#}").replace('\n', " "));
        let all: Vec<Option<String>> = self.gather(&reason)?;
        match all.into_iter().enumerate().find_map(|(rank, reason)| Some((rank, reason?))) {
            Some((rank, reason)) => Err(self.elsewhere(rank, reason)),
            None => mine.map_err(|error| CommError::Start(error.to_string())),
        }
    }

    /// Rank 0's value of `body`, which only it calls, and the default elsewhere.
    ///
    /// # Errors
    /// On every rank, rank 0's failure, or the transport's.
    pub(crate) fn on_root<T: Default, E: Display>(
        &self,
        body: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, CommError> {
        self.agree(if self.is_root() { body() } else { Ok(T::default()) })
    }

    /// Prints the error with which this rank leaves, and records it for the other ranks.
    #[cfg(any(feature = "mpi", feature = "train"))]
    pub(crate) fn report(&self, error: &(dyn std::error::Error + 'static)) {
        let text = error.to_string();
        match error.downcast_ref::<CommError>() {
            // All ranks have a shared error, and the first prints it.
            Some(shared) if shared.is_shared() && !self.is_root() => {}
            // Errors between ranks already name their rank.
            Some(_) => crate::process::say(&text),
            None => crate::process::say(&format!("rank {} on {}: {text}", self.rank(), self.host())),
        }
        self.member().activity.with(|state| state.reason = text);
    }

    /// Checks that `mine` is the same text on every rank.
    ///
    /// # Errors
    /// [`SharedError::Diverged`](crate::SharedError::Diverged) names the first rank that differs from rank 0.
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
        CommError::Shared(SharedError::Diverged { what: what.into(), rank, host, found, expected })
    }

    /// The error of all ranks that one of them has failed.
    fn elsewhere(&self, rank: usize, reason: String) -> CommError {
        CommError::Shared(SharedError::Elsewhere { rank, host: self.host_of(rank), reason })
    }

    /// The host of a rank.
    pub(crate) fn host_of(&self, rank: usize) -> String {
        self.places()[rank].host.clone()
    }

    /// Checks that each rank has at least one of a data set's `samples`, equal on all ranks.
    #[cfg(feature = "data")]
    pub(crate) fn check_samples(&self, samples: usize) -> Result<(), CommError> {
        if samples >= self.size() {
            return Ok(());
        }
        let ranks = self.size();
        let reason = format!("gets no sample: the data set has {samples}, and there are {ranks} ranks");
        Err(self.elsewhere(samples, reason))
    }

    /// The value of `rank`, of what it has [`written`].
    fn read<T: DeserializeOwned>(&self, rank: usize, bytes: &[u8]) -> Result<T, CommError> {
        let sent = ciborium::from_reader::<Result<T, String>, _>(bytes);
        let sent = sent.map_err(|error| self.unreadable(format!("from rank {rank}: {error}")))?;
        sent.map_err(|reason| self.elsewhere(rank, reason))
    }

    fn unreadable(&self, reason: String) -> CommError {
        CommError::Unreadable { rank: self.rank(), host: self.host().to_owned(), reason }
    }
}

/// The bytes of `value`, or of the reason why it has none: no rank waits for one that has left.
fn written<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = ciborium::into_writer(&Ok::<_, String>(value), &mut bytes) {
        let reason = match error {
            ciborium::ser::Error::Value(reason) => reason,
            ciborium::ser::Error::Io(error) => error.to_string(),
        };
        bytes.clear();
        let refused = Err::<(), _>(format!("a value cannot be sent to the other ranks: {reason}"));
        ciborium::into_writer(&refused, &mut bytes).expect("a string has bytes, and a vector takes them");
    }
    bytes
}
