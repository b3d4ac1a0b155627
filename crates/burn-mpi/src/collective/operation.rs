//! [`Operation`] describes a collective operation or a message between two ranks. Ranks compare these
//! descriptions, transports execute them, and errors name them.

use std::fmt;

use super::wire::{Element, chunk_range};
use crate::{Reduction, Wire};

/// The bucket number of blocking operations of a [`Collective`](crate::Collective). Callers number their
/// operations in flight, and must not use this number.
pub(crate) const BLOCKING: usize = usize::MAX;

/// The reason why a sum of bytes is rejected.
const BYTES_SUMMED: &str = "bytes cannot be summed; use f32, f64, bf16 or f16";

/// Kind of an [`Operation`]. Each variant is documented at the method of
/// [`Primitives`](crate::Primitives) with the same name. If a call divides a buffer among the ranks, all
/// parts have the same length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the methods of Primitives with these names say it")]
pub enum Call {
    Send { to: usize },
    Receive { from: usize },
    Broadcast { root: usize },
    AllReduce,
    Reduce { root: usize },
    AllGather,
    Gather { root: usize },
    Scatter { root: usize },
    ReduceScatter,
    AllToAll,
    Barrier,
}

impl Call {
    /// The name of the operation in errors, such as `reduce-scatter`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send { .. } => "send",
            Self::Receive { .. } => "receive",
            Self::Broadcast { .. } => "broadcast",
            Self::AllReduce => "all-reduce",
            Self::Reduce { .. } => "reduce",
            Self::AllGather => "all-gather",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
            Self::Barrier => "barrier",
        }
    }

    /// Returns the length in bytes of one rank's part of the buffers. The call has `size` ranks; this rank
    /// reads `from` bytes and writes `to` bytes.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn part(self, from: usize, to: usize, size: usize) -> usize {
        match self {
            Self::Gather { .. } => from,
            Self::Scatter { .. } => to,
            Self::AllGather | Self::AllToAll | Self::ReduceScatter => from.max(to) / size,
            _ => from.max(to),
        }
    }

    /// Returns the root, or the other rank of a message; `None` if the call has neither.
    pub(crate) fn peer(self) -> Option<usize> {
        match self {
            Self::Send { to: peer }
            | Self::Receive { from: peer }
            | Self::Broadcast { root: peer }
            | Self::Reduce { root: peer }
            | Self::Gather { root: peer }
            | Self::Scatter { root: peer } => Some(peer),
            _ => None,
        }
    }

    /// Checks the buffers that `rank` of `size` ranks passes to
    /// [`Primitives::call`](crate::Primitives::call). A transport checks them before it reads all of
    /// `from` and writes all of `to`, because a caller may pass buffers of any length.
    ///
    /// # Errors
    /// The reason of a [`CommError::Operation`](crate::CommError::Operation): a sum of bytes, or a rank that
    /// does not exist.
    ///
    /// # Panics
    /// If a buffer has a wrong length, or its values are not aligned.
    pub fn check(
        self,
        element: Element,
        from: &[u8],
        to: &[u8],
        rank: usize,
        size: usize,
    ) -> Result<(), String> {
        if self.sums() && element == Element::Byte {
            return Err(BYTES_SUMMED.to_owned());
        }
        if let Some(peer) = self.peer()
            && peer >= size
        {
            return Err(format!("there is no rank {peer}, only 0 to {}", size - 1));
        }
        let (read, written) = (from.len(), to.len());
        let fits = match self {
            Self::Send { .. } => written == 0,
            Self::Receive { .. } | Self::Broadcast { .. } | Self::AllReduce => read == 0,
            Self::Reduce { .. } => read == written,
            Self::AllGather => read * size == written,
            Self::Gather { root } => written == if rank == root { read * size } else { 0 },
            Self::Scatter { root } => read == if rank == root { written * size } else { 0 },
            Self::ReduceScatter => read == written * size,
            Self::AllToAll => read == written && read.is_multiple_of(size * element.width()),
            Self::Barrier => read == 0 && written == 0,
        };
        assert!(
            fits,
            "{}: the lengths of the buffers do not match: {read} bytes to read, {written} bytes to write, {size} ranks",
            self.name()
        );
        let is_whole = |bytes: &[u8]| {
            let width = element.width();
            bytes.len().is_multiple_of(width)
                && (bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(width))
        };
        assert!(
            is_whole(from) && is_whole(to),
            "{}: a buffer is not aligned to its element type, or does not contain whole elements",
            self.name()
        );
        Ok(())
    }

    /// Returns whether the call has nothing to do if the parts of all ranks are empty. False for messages and
    /// for the barrier.
    pub(crate) fn has_parts(self) -> bool {
        !matches!(self, Self::Send { .. } | Self::Receive { .. } | Self::Barrier)
    }

    /// Returns whether the call sums values of the ranks.
    pub(crate) fn sums(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce { .. } | Self::ReduceScatter)
    }
}

/// One operation of all ranks, or a message between two ranks. In an operation of all ranks, every field
/// except `bucket` must be equal on all ranks.
///
/// The constructors make the operations that [`Collective::start`](crate::Collective::start) accepts. Later
/// versions may add operations: a transport returns [`CommError::Unsupported`](crate::CommError::Unsupported)
/// for a call that it does not implement.
///
/// ```
/// use burn_mpi::{Operation, Reduction, Wire};
///
/// let sum = Operation::all_reduce(2, &Wire::F32(vec![1.0; 5]), Reduction::Ordered);
/// assert_eq!(sum.to_string(), "non-blocking all-reduce (ordered) of 5 f32");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// Kind of operation, with its root or peer.
    pub call: Call,
    /// The order of a sum; [`Reduction::Native`] if the operation sums nothing.
    pub order: Reduction,
    /// The type of the values.
    pub element: Element,
    /// Number of elements: of the whole buffer if a [`Collective`](crate::Collective) starts the operation,
    /// of each rank's part in a call of [`Primitives`](crate::Primitives).
    pub length: usize,
    /// The number that identifies the operation in flight, which may differ between ranks. `None` in a call
    /// of [`Primitives`](crate::Primitives).
    pub bucket: Option<usize>,
}

impl Operation {
    /// The sum of all ranks' buffers, which have equal lengths. Every rank gets the sum.
    pub fn all_reduce(bucket: usize, buffer: &Wire, order: Reduction) -> Self {
        let (element, length) = (buffer.element(), buffer.len());
        Self { call: Call::AllReduce, order, element, length, bucket: Some(bucket) }
    }

    /// The sum of all ranks' buffers, which have equal lengths. Each rank gets its [`chunk_range`] of the
    /// sum.
    pub fn reduce_scatter(bucket: usize, buffer: &Wire, order: Reduction) -> Self {
        Self { call: Call::ReduceScatter, ..Self::all_reduce(bucket, buffer, order) }
    }

    /// Gathers the chunks of all ranks into a buffer of `length` elements. Every rank gets this gathered
    /// buffer. `buffer` is this rank's [`chunk_range`] of the gathered buffer. `length` must be equal on all
    /// ranks.
    pub fn all_gather(bucket: usize, buffer: &Wire, length: usize) -> Self {
        Self { call: Call::AllGather, length, ..Self::all_reduce(bucket, buffer, Reduction::Native) }
    }

    /// Returns the number of elements of the result on `rank` of `ranks`, for an operation that a
    /// [`Collective`](crate::Collective) starts.
    ///
    /// # Panics
    /// If `ranks` is 0.
    pub fn result_length(self, rank: usize, ranks: usize) -> usize {
        match self.call {
            Call::ReduceScatter => chunk_range(self.length, ranks, rank).len(),
            _ => self.length,
        }
    }

    /// Checks the buffer that `rank` of `ranks` passes to [`Collective::start`](crate::Collective::start). A
    /// transport calls this before it sends anything.
    ///
    /// # Errors
    /// The reason of a [`CommError::Operation`](crate::CommError::Operation): a sum of bytes, or a chunk of a
    /// wrong length.
    ///
    /// # Panics
    /// If `ranks` is 0, or the operation was made for a buffer of another type or length.
    pub fn check(self, buffer: &Wire, rank: usize, ranks: usize) -> Result<(), String> {
        let Self { call, element, length, .. } = self;
        let (found, is_gather) = (buffer.len(), call == Call::AllGather);
        let is_made_for_it = buffer.element() == element && (is_gather || found == length);
        assert!(is_made_for_it, "{self}: this operation was made for a buffer of another type or length");
        if call.sums() && element == Element::Byte {
            return Err(BYTES_SUMMED.to_owned());
        }
        let expected = chunk_range(length, ranks, rank).len();
        if is_gather && found != expected {
            return Err(format!(
                "this rank passes {found} elements, but its chunk has {expected}: {length} elements are divided among {ranks} ranks"
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, order, element, length, bucket } = self;
        let way = if bucket.is_some() { "non-blocking " } else { "" };
        write!(f, "{way}{}", call.name())?;
        if bucket.is_some() && call.sums() {
            write!(f, " ({order})")?;
        }
        if *call != Call::Barrier {
            write!(f, " of {length} {element}")?;
        }
        match call {
            Call::Broadcast { root: peer } | Call::Scatter { root: peer } => write!(f, " from rank {peer}"),
            Call::Reduce { root: peer } | Call::Gather { root: peer } => write!(f, " to rank {peer}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{Options, run};
    use crate::{Backend, CommError, Transport, connect};

    #[test]
    fn bytes_are_gathered_and_not_summed() {
        let refused = run(2, &Options::default(), |world| {
            let mut collective = connect(world, Backend::Mpi, &Transport::default())?;
            let bytes = Wire::Bytes(vec![1, 2]);
            let sum = Operation::reduce_scatter(0, &bytes, Reduction::Native);
            let sum = collective.start(sum, bytes.clone()).unwrap_err().to_string();
            let gather = Operation::all_gather(0, &bytes, 3);
            assert_eq!(gather.check(&bytes, 0, 2), Ok(()));
            Ok::<_, CommError>([sum, gather.check(&bytes, 1, 2).unwrap_err()])
        });
        let [sum, gather] = &refused.unwrap()[0];
        assert!(
            sum.contains("rank 0 on node0: ") && sum.contains(" reduce-scatter of 2 bytes failed"),
            "{sum}"
        );
        assert!(sum.ends_with(BYTES_SUMMED), "{sum}");
        let [passed, length, ranks, expected] = ["2 elements", "3 elements", "2 ranks", "has 1"];
        for fact in [passed, length, ranks, expected] {
            assert!(gather.contains(fact), "{fact}: {gather}");
        }
    }

    #[test]
    #[should_panic(expected = "non-blocking all-reduce (native) of 2 f32: ")]
    fn an_operation_is_of_one_buffer() {
        let made = Operation::all_reduce(0, &Wire::F32(vec![0.0; 2]), Reduction::Native);
        let _ = made.check(&Wire::F32(vec![0.0; 3]), 0, 1);
    }
}
