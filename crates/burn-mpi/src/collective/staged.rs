//! Operations made of a transport's non-blocking calls, over MPI as between threads.
//!
//! A sum in rank order takes two of them ([`ordered`](super::ordered)): chunks are exchanged, and their
//! sums gathered. Calls of one channel are matched by the order in which ranks start them, so the two
//! stages use separate channels, and second stages start in the order of the first ones: whichever
//! first stage completes first on a rank, the order is the same on all.

use super::ordered::chunk_range;
use super::pending::Engine;
use crate::member::Member;
use crate::{Call, CommError, Operation, Primitives, Reduction, Wire, World};

/// Non-blocking calls of all ranks.
pub trait Requests {
    /// A call in flight, with its buffers.
    type Request;

    /// The transport's name.
    const NAME: &'static str;

    /// The rank.
    fn member(&self) -> &Member;

    /// Starts an all-reduce (in place, in `to`), a reduce-scatter, an all-to-all or an all-gather on
    /// channel 0 or 1, of an operation on `whole` elements before they are padded to equal parts.
    fn start(
        &mut self,
        channel: usize,
        call: Call,
        whole: usize,
        from: Wire,
        to: Wire,
    ) -> Result<Self::Request, CommError>;

    /// Both buffers, once the call is complete.
    fn test(&mut self, request: &mut Self::Request) -> Result<Option<(Wire, Wire)>, CommError>;

    /// Between two tests of a rank that waits.
    fn pause(&mut self) -> Result<(), CommError>;

    /// Blocking calls on channel 0.
    fn blocking(&mut self) -> &mut dyn Primitives;
}

/// The engine.
pub struct Staged<R> {
    requests: R,
    /// Whether two ranks on two machines exchange and sum halves. Open MPI's own non-blocking all-reduce
    /// (coll/libnbc, in place) sends all to one rank and back, so a link is idle in one direction.
    halves: bool,
    /// Sums in rank order so far, and those of them whose second stage has started.
    sums: u64,
    gathers: u64,
}

/// An operation in flight.
pub struct Stages<Q> {
    stage: Stage<Q>,
    /// Elements of the result.
    length: usize,
}

enum Stage<Q> {
    /// One call is the whole operation, and has its result in the second buffer.
    Whole(Q),
    /// The all-to-all of chunks is in flight; the sums of `gather`, its number, are gathered afterwards.
    Exchange { request: Q, sum: Wire, gather: Option<u64> },
    /// Exchanged and summed; waits for an earlier operation to start its all-gather.
    Exchanged { sum: Wire, all: Wire, number: u64 },
    /// The result, which is taken once.
    Done(Option<Wire>),
}

impl<R: Requests> Staged<R> {
    pub(crate) fn new(world: &World, requests: R) -> Self {
        let halves = matches!(world.places(), [one, other] if one.host != other.host);
        Self { requests, halves, sums: 0, gathers: 0 }
    }
}

impl<R: Requests> Engine for Staged<R> {
    type Op = Stages<R::Request>;

    const NAME: &'static str = R::NAME;

    fn member(&self) -> &Member {
        self.requests.member()
    }

    fn start(&mut self, _: usize, operation: Operation, mut buffer: Wire) -> Result<Self::Op, CommError> {
        let Member { rank, size, .. } = *self.member();
        let whole = match operation {
            Operation::AllGather { length } => length,
            _ => buffer.len(),
        };
        let length = match operation {
            Operation::ReduceScatter(_) => chunk_range(whole, size, rank).len(),
            _ => whole,
        };
        let chunk = whole.div_ceil(size);
        let stage = match operation {
            _ if whole == 0 => Stage::Done(Some(buffer)),
            Operation::AllReduce(how) if how == Reduction::Native && !self.halves => {
                Stage::Whole(self.requests.start(0, Call::AllReduce, whole, buffer.zeros_like(0), buffer)?)
            }
            // Of two ranks, with the same bits.
            Operation::AllReduce(_) | Operation::ReduceScatter(Reduction::Ordered) => {
                buffer.resize(chunk * size);
                let (sum, chunks) = (buffer.zeros_like(chunk), buffer.zeros_like(chunk * size));
                let gathers = matches!(operation, Operation::AllReduce(_));
                let gather = gathers.then_some(self.sums);
                self.sums += u64::from(gathers);
                Stage::Exchange {
                    request: self.requests.start(0, Call::AllToAll, whole, buffer, chunks)?,
                    sum,
                    gather,
                }
            }
            Operation::ReduceScatter(Reduction::Native) => {
                buffer.resize(chunk * size);
                let part = buffer.zeros_like(chunk);
                Stage::Whole(self.requests.start(0, Call::ReduceScatter, whole, buffer, part)?)
            }
            Operation::AllGather { .. } => {
                buffer.resize(chunk);
                let all = buffer.zeros_like(chunk * size);
                Stage::Whole(self.requests.start(0, Call::AllGather, whole, buffer, all)?)
            }
        };
        Ok(Stages { stage, length })
    }

    fn advance(&mut self, op: &mut Self::Op) -> Result<Option<Wire>, CommError> {
        let finished = |mut result: Wire, length| {
            result.resize(length);
            Ok(Some(result))
        };
        match &mut op.stage {
            Stage::Done(result) => return Ok(result.take()),
            Stage::Whole(request) => {
                return match self.requests.test(request)? {
                    Some((_, result)) => finished(result, op.length),
                    None => Ok(None),
                };
            }
            Stage::Exchange { request, sum, gather } => {
                let Some((all, chunks)) = self.requests.test(request)? else { return Ok(None) };
                sum.sum_of_chunks(&chunks);
                let sum = std::mem::replace(sum, Wire::Bytes(Vec::new()));
                match *gather {
                    Some(number) => op.stage = Stage::Exchanged { sum, all, number },
                    None => return finished(sum, op.length),
                }
            }
            Stage::Exchanged { .. } => {}
        }
        if let Stage::Exchanged { sum, all, number } = &mut op.stage
            && *number == self.gathers
        {
            let [sum, all] = [sum, all].map(|buffer| std::mem::replace(buffer, Wire::Bytes(Vec::new())));
            self.gathers += 1;
            op.stage = Stage::Whole(self.requests.start(1, Call::AllGather, op.length, sum, all)?);
        }
        Ok(None)
    }

    fn pause(&mut self) -> Result<(), CommError> {
        self.requests.pause()
    }

    fn blocking(&mut self) -> Result<&mut dyn Primitives, CommError> {
        Ok(self.requests.blocking())
    }
}
