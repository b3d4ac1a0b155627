//! [`PendingOps`]: a [`Collective`] that keeps several operations in flight and makes progress on all of
//! them. A transport, such as MPI or gloo, provides the calls through [`Link`].
//!
//! If a transport cannot sum in rank order, an all-reduce in rank order has two stages, each of which is one
//! call ([`wire`](super::wire)): an all-to-all exchanges chunks, and an all-gather collects their sums. A
//! channel is an independent sequence of calls: the n-th call of one rank is matched with the n-th call of
//! every other rank. The two stages use separate channels, and second stages start in the order of the first
//! stages. The order of the calls on a channel is then the same on all ranks, although first stages may
//! complete in any order.

use super::compared::{Checked, Comparison};
use super::operation::BLOCKING;
use crate::calling::Announcement;
use crate::collective::spare::Spare;
use crate::collective::wire::Element;
use crate::member::{Member, Started};
use crate::{Call, Collective, CommError, Operation, Primitives, Reduction, Wire, World};

/// One call of a transport: a whole operation, one stage of an operation, or a comparison.
#[derive(Clone, Copy)]
pub struct Transfer {
    /// The operation. Its `call` is the call of this transfer, which may be one stage of the whole operation.
    /// Non-blocking calls are all-reduce (in place, in the second buffer), reduce-scatter, all-to-all and
    /// all-gather.
    pub operation: Operation,
    /// Number of the channel, below [`CHANNELS`].
    pub channel: usize,
    /// The whole operation, as errors name it.
    pub started: Started,
}

impl Transfer {
    /// Returns this transfer with another call.
    pub fn by(self, call: Call) -> Self {
        Self { operation: Operation { call, ..self.operation }, ..self }
    }
}

/// A non-blocking transfer to start.
pub struct Launch {
    pub transfer: Transfer,
    /// The announcement (a description of an unexpected call) to compare first, if the transport compares
    /// [within](Link::COMPARES_WITHIN) its calls. `None` if the transport has nothing to compare.
    pub announcement: Option<Announcement>,
    /// The buffer to read, and the buffer to write.
    pub buffers: (Wire, Wire),
}

/// Name of a comparison of calls in errors.
pub const COMPARISON: &str = "comparison of calls";

/// Number of channels of a collective: 0 for first stages, 1 for second stages, 2 and 3 for comparisons.
pub const CHANNELS: usize = 4;

/// The channel of the keys of announcements.
pub const ANNOUNCEMENTS: usize = 2;

/// The channel of the announcements whose keys differ. They have a separate channel, because a rank may have
/// started the comparison of a later call when it sees that keys differ, and another rank may not.
pub const DETAILS: usize = 3;

/// A transport's calls on [`CHANNELS`] channels. Ranks match a call only with calls of the same channel.
pub trait Link {
    /// A non-blocking call in flight, with its buffers.
    type Request;

    /// The transport's name.
    const NAME: &'static str;

    /// Whether the transport itself can sum in rank order, in an all-reduce and a reduce-scatter.
    const SUMS_IN_ORDER: bool = false;

    /// If true, the transport compares an unexpected call as the first part of that call. If false, an
    /// all-gather on the channel [`ANNOUNCEMENTS`] compares the call, and the call starts afterwards. A
    /// transport that runs its calls one after the other has to compare within the call. With separate
    /// comparisons, one rank could run an operation while another rank runs the next comparison, and both
    /// would wait for each other.
    const COMPARES_WITHIN: bool = false;

    /// Whether the transport reads the length of a message before it receives the message. If true, messages
    /// are not compared.
    const PROBES_MESSAGES: bool = true;

    /// This rank.
    fn member(&self) -> &Member;

    /// Returns what [`Collective::connection`] returns.
    fn connection(&self) -> Option<String> {
        None
    }

    /// Makes a blocking call. [`check`](Self::check) has checked the buffers. Unless the call is a message or
    /// a barrier, at least one buffer is not empty.
    fn call(&mut self, transfer: Transfer, from: &[u8], to: &mut [u8]) -> Result<(), CommError>;

    /// Starts a non-blocking call.
    fn start(&mut self, launch: Launch) -> Result<Self::Request, CommError>;

    /// Returns both buffers if the call is complete, and `None` if it is in flight. Callers test all calls in
    /// flight in the order in which they were started.
    fn test(&mut self, request: &mut Self::Request) -> Result<Option<(Wire, Wire)>, CommError>;

    /// Pauses between two tests, while this rank waits.
    fn pause(&mut self) -> Result<(), CommError>;

    /// Describes a call of `operation` on `channel` that starts now. `bytes` is the length of the longer
    /// buffer.
    fn transfer(&self, operation: Operation, channel: usize, bytes: usize) -> Transfer {
        let name = if channel >= ANNOUNCEMENTS { COMPARISON } else { operation.call.name() };
        let bucket = operation.bucket.filter(|&bucket| bucket != BLOCKING);
        let started = Started { bucket, ..self.member().started(Self::NAME, name, bytes) };
        Transfer { operation, channel, started }
    }

    /// Checks the buffers of a blocking call, and describes the call, which starts now on channel 0.
    fn check(&self, call: Call, element: Element, from: &[u8], to: &[u8]) -> Result<Transfer, CommError> {
        let member = self.member();
        let length = call.part(from.len(), to.len(), member.size) / element.width();
        let operation = Operation { call, order: Reduction::Native, element, length, bucket: None };
        let transfer = self.transfer(operation, 0, from.len().max(to.len()));
        let checked = call.check(element, from, to, member.rank, member.size);
        checked.map(|()| transfer).map_err(|reason| member.error(&transfer.started, reason))
    }

    /// Checks the buffer of an operation that is about to start.
    fn check_buffer(&self, operation: Operation, buffer: &Wire) -> Result<(), CommError> {
        let member = self.member();
        operation.check(buffer, member.rank, member.size).map_err(|reason| {
            member.error(&member.started(Self::NAME, operation.call.name(), buffer.bytes().len()), reason)
        })
    }

    /// Makes a blocking call that is expected or that ranks have already compared. Other calls may be in
    /// flight.
    fn make(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let transfer = self.check(call, element, from, to)?;
        // A call without data is skipped: Open MPI treats two empty buffers as aliased, which is an error.
        if transfer.started.bytes == 0 && call.has_parts() {
            return Ok(());
        }
        self.call(transfer, from, to)
    }
}

/// A [`Collective`] over the non-blocking calls of a transport.
pub struct PendingOps<L: Link> {
    // Dropped before `checked`, which owns the transport of these requests.
    ops: Vec<PendingOp<L::Request>>,
    checked: Checked<L>,
    /// Whether the job is two ranks on two machines. Such ranks make a non-blocking all-reduce by exchanging
    /// halves of the buffer and summing them. Open MPI's own algorithm (coll/libnbc, in place) sends the
    /// whole buffer to one rank and back, so one direction of the network link is always idle.
    halves: bool,
    spare: Spare,
}

struct PendingOp<Q> {
    operation: Operation,
    stage: Stage<Q>,
}

enum Stage<Q> {
    /// Not started, because ranks still compare this operation or an earlier one.
    Announced { comparison: Option<Box<Comparison<Q>>>, launch: Launch },
    /// The only or the last call of the operation is in flight. Its result is in the second buffer.
    Whole(Q),
    /// The all-to-all of chunks is in flight. An all-reduce then gathers the sums of the chunks.
    Exchange(Q),
    /// Chunks are exchanged and summed. The all-gather starts after the all-gathers of all earlier
    /// operations.
    Exchanged { sum: Wire, all: Wire },
    /// Complete, with the result.
    Done(Wire),
}

impl<Q> PendingOp<Q> {
    fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done(_))
    }

    fn is_announced(&self) -> bool {
        matches!(self.stage, Stage::Announced { .. })
    }

    fn finish(&mut self, mut result: Wire, member: &Member) {
        result.resize(self.operation.result_length(member.rank, member.size));
        self.stage = Stage::Done(result);
    }

    /// Makes progress on the operation, without waiting. All-gathers start in the order of the operations. An
    /// operation that has not yet started its all-gather sets `gathers` to false, so that no later operation
    /// starts one.
    ///
    /// Puts the buffers that a complete call no longer needs into `spare`.
    fn advance<L: Link<Request = Q>>(
        &mut self,
        link: &mut L,
        gathers: &mut bool,
        spare: &mut Spare,
    ) -> Result<(), CommError> {
        match &mut self.stage {
            Stage::Whole(request) => {
                if let Some((from, result)) = link.test(request)? {
                    spare.put(from);
                    self.finish(result, link.member());
                }
            }
            Stage::Exchange(request) => {
                if let Some((all, chunks)) = link.test(request)? {
                    let sum = Wire::sum_of(&chunks, chunks.len() / link.member().size);
                    spare.put(chunks);
                    if self.operation.call == Call::AllReduce {
                        self.stage = Stage::Exchanged { sum, all };
                    } else {
                        spare.put(all);
                        self.finish(sum, link.member());
                    }
                }
            }
            Stage::Announced { .. } | Stage::Exchanged { .. } | Stage::Done(_) => {}
        }
        if let Stage::Exchanged { sum, all } = &mut self.stage
            && *gathers
        {
            let [sum, all] = [sum, all].map(|buffer| std::mem::replace(buffer, Wire::Bytes(Vec::new())));
            let transfer = link.transfer(self.operation, 1, all.bytes().len()).by(Call::AllGather);
            let launch = Launch { transfer, announcement: None, buffers: (sum, all) };
            self.stage = Stage::Whole(link.start(launch)?);
        }
        *gathers &= !matches!(self.stage, Stage::Exchange(_) | Stage::Exchanged { .. });
        Ok(())
    }
}

impl<L: Link> PendingOps<L> {
    pub(crate) fn over(world: &World, link: L) -> Self {
        let halves = matches!(world.places(), [one, other] if one.host != other.host);
        let number = world.member().activity.with(|state| {
            state.collectives += 1;
            state.collectives
        });
        let mut checked = Checked::over(link);
        if number > 1 {
            checked.label = format!("{} (collective {number})", L::NAME);
        }
        Self { ops: Vec::new(), checked, halves, spare: Spare::default() }
    }

    /// Returns the operation of `bucket`; `None` if no such operation was started, or if its result was
    /// returned to the caller.
    fn operation_of(&self, bucket: Option<usize>) -> Option<Operation> {
        self.ops.iter().map(|op| op.operation).find(|operation| operation.bucket == bucket)
    }

    /// Starts announced operations (those that wait for a comparison), in order. Stops at the first operation
    /// whose comparison is not complete.
    fn start_announced(&mut self) -> Result<(), CommError> {
        self.checked.check_failed()?;
        while let Some(at) = self.ops.iter().position(PendingOp::is_announced) {
            let stage = std::mem::replace(&mut self.ops[at].stage, Stage::Done(Wire::Bytes(Vec::new())));
            let Stage::Announced { mut comparison, launch } = stage else { unreachable!("found above") };
            if let Some(comparing) = &mut comparison
                && !self.checked.is_compared(comparing, false)?
            {
                self.ops[at].stage = Stage::Announced { comparison, launch };
                return Ok(());
            }
            // An operation that fails to start never has a result, so every later call returns its error.
            let begun = self.begin(launch);
            self.ops[at].stage = begun.inspect_err(|error| self.checked.failed = Some(error.clone()))?;
        }
        Ok(())
    }

    /// Starts the first stage of an operation.
    fn begin(&mut self, launch: Launch) -> Result<Stage<L::Request>, CommError> {
        let Operation { call, length, .. } = launch.transfer.operation;
        Ok(match call {
            _ if length == 0 && launch.announcement.is_none() => Stage::Done(launch.buffers.1),
            Call::AllToAll => Stage::Exchange(self.checked.link.start(launch)?),
            _ => Stage::Whole(self.checked.link.start(launch)?),
        })
    }

    fn link(&self) -> &L {
        &self.checked.link
    }

    /// Waits for the operation of `bucket`. Meanwhile, makes progress on all other operations, because
    /// another rank may wait for them first.
    fn complete(&mut self, bucket: usize) -> Result<Wire, CommError> {
        loop {
            self.poll()?;
            let done = |op: &PendingOp<L::Request>| op.operation.bucket == Some(bucket) && op.is_done();
            if let Some(at) = self.ops.iter().position(done)
                && let Stage::Done(result) = self.ops.remove(at).stage
            {
                return Ok(result);
            }
            self.checked.link.pause()?;
        }
    }
}

impl<L: Link> Collective for PendingOps<L> {
    fn transport(&self) -> &str {
        L::NAME
    }

    fn connection(&self) -> Option<String> {
        self.link().connection()
    }

    fn world_size(&self) -> usize {
        self.link().member().size
    }

    fn start(&mut self, operation: Operation, mut buffer: Wire) -> Result<(), CommError> {
        let Operation { order, element, length, bucket, .. } = operation;
        let number = bucket.unwrap_or(BLOCKING);
        assert!(
            self.operation_of(bucket).is_none(),
            "bucket {number} is in flight already: wait for it before starting it again"
        );
        self.link().check_buffer(operation, &buffer)?;
        let size = self.link().member().size;
        let call = match operation.call {
            sum @ (Call::AllReduce | Call::ReduceScatter) => {
                // For two ranks, the exchange gives the same bits as a native all-reduce. Open MPI's own
                // non-blocking reduce-scatter sums whole buffers on one rank, which sends and stores several
                // times as much as the exchange of chunks.
                let exchanges = order == Reduction::Ordered || self.halves || sum == Call::ReduceScatter;
                if exchanges && !L::SUMS_IN_ORDER { Call::AllToAll } else { sum }
            }
            Call::AllGather => Call::AllGather,
            other => {
                let (operation, transport) = (other.name(), L::NAME.to_owned());
                return Err(CommError::Unsupported { operation, transport });
            }
        };
        let chunk = length.div_ceil(size);
        let (from, to) = match call {
            Call::AllReduce => (buffer.zeros_like(0), buffer),
            Call::AllGather => {
                buffer.resize(chunk);
                (buffer, self.spare.take(element, chunk * size))
            }
            _ => {
                buffer.resize(chunk * size);
                let length = if call == Call::ReduceScatter { chunk } else { chunk * size };
                (buffer, self.spare.take(element, length))
            }
        };
        let bytes = from.bytes().len().max(to.bytes().len());
        let transfer = self.link().transfer(operation, 0, bytes).by(call);
        let mut launch =
            Launch { transfer, announcement: self.checked.note(operation)?, buffers: (from, to) };
        let comparison = match launch.announcement.take_if(|_| !L::COMPARES_WITHIN) {
            Some(announcement) => Some(Box::new(self.checked.announce(announcement, bucket)?)),
            None => None,
        };
        let stage = if comparison.is_some() || self.ops.iter().any(PendingOp::is_announced) {
            Stage::Announced { comparison, launch }
        } else {
            self.begin(launch)?
        };
        self.ops.push(PendingOp { operation, stage });
        Ok(())
    }

    fn poll(&mut self) -> Result<usize, CommError> {
        self.start_announced()?;
        let mut gathers = true;
        for op in &mut self.ops {
            let advanced = op.advance(&mut self.checked.link, &mut gathers, &mut self.spare);
            advanced.inspect_err(|error| {
                if error.is_shared() {
                    self.checked.failed = Some(error.clone());
                }
            })?;
        }
        Ok(self.ops.iter().filter(|op| !op.is_done()).count())
    }

    fn is_done(&self, bucket: usize) -> bool {
        self.ops.iter().any(|op| op.operation.bucket == Some(bucket) && op.is_done())
    }

    fn buffer(&mut self, element: Element, length: usize) -> Wire {
        self.spare.take(element, length)
    }

    fn recycle(&mut self, buffer: Wire) {
        self.spare.put(buffer);
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let Some(Operation { call, .. }) = self.operation_of(Some(bucket)) else {
            panic!("cannot wait for bucket {bucket}: it was not started")
        };
        let _waiting = self.link().member().enter(&self.checked.label, call.name(), Some(bucket));
        self.complete(bucket)
    }

    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        if how == Reduction::Native {
            // Earlier operations that wait for a comparison have to begin first.
            if self.ops.iter().any(PendingOp::is_announced) {
                // A wait with the name "launch" is not counted as a collective. It must not be counted,
                // because another rank may not have to wait here.
                let _waiting = self.link().member().enter(&self.checked.label, "launch", None);
                while self.ops.iter().any(PendingOp::is_announced) {
                    self.checked.link.pause()?;
                    self.poll()?;
                }
            }
            return self.checked.call(Call::AllReduce, buffer.element(), &[], buffer.bytes_mut());
        }
        let _waiting = self.link().member().enter(&self.checked.label, "all-reduce", None);
        let operation = Operation::all_reduce(BLOCKING, buffer, how);
        self.link().check_buffer(operation, buffer)?;
        self.start(operation, std::mem::replace(buffer, Wire::Bytes(Vec::new())))?;
        let reduced = self.complete(BLOCKING);
        // An operation that has failed is still in the list. It is removed, because no call waits for it
        // again.
        self.ops.retain(|op| op.operation.bucket != Some(BLOCKING));
        *buffer = reduced?;
        Ok(())
    }
}
