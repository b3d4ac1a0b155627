//! Operations in flight, over each transport's non-blocking calls: which there are, their progress, and the
//! waits for them.
//!
//! Where a transport has no sums in rank order, one takes two calls ([`wire`](super::wire)): chunks are
//! exchanged, and their sums gathered. Calls of one channel are matched by the order in which ranks start
//! them, so the two stages use separate channels, and second stages start in the order of the first ones:
//! whichever first stage completes first on a rank, the order is the same on all.

use super::compared::{Checked, Signature};
use crate::calling::Exchange;
use crate::collective::wire::{Element, chunk_range};
use crate::member::{Member, Started};
use crate::{Call, Collective, CommError, Operation, Primitives, Reduction, Wire, World};

/// A call that is to be started, and the operation that it is part of.
#[derive(Clone, Copy)]
pub struct Step {
    pub bucket: usize,
    pub operation: Operation,
    /// Elements of the operation, before they are padded to equal parts.
    pub whole: usize,
    /// An all-reduce (in place, in the second buffer), a reduce-scatter, an all-to-all or an all-gather.
    pub call: Call,
    /// Below [`CHANNELS`].
    pub channel: usize,
}

/// A non-blocking call, which reads `from` and writes `to`.
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "threads compare before, and name no bytes"))]
pub struct Job {
    pub step: Step,
    pub of: Started,
    /// What to compare first, if that is [within](Comparison::Within) the call.
    pub announcement: Option<Exchange>,
    pub from: Wire,
    pub to: Wire,
}

impl Job {
    /// One that starts now.
    pub fn new(member: &Member, transport: &'static str, step: Step, from: Wire, to: Wire) -> Self {
        let is_announcement = step.channel == ANNOUNCEMENTS;
        let operation = if is_announcement { COMPARISON } else { step.operation.name() };
        let bucket = (step.bucket != BLOCKING).then_some(step.bucket);
        let bytes = from.bytes().len().max(to.bytes().len());
        let of = Started { bucket, ..member.started(transport, operation, bytes) };
        Self { step, of, announcement: None, from, to }
    }
}

/// A blocking call, on buffers that [`Call::check`] has checked, and not all of them empty.
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "errors of threads say by themselves of what"))]
pub struct Blocking<'a> {
    pub channel: usize,
    pub of: Started,
    pub call: Call,
    pub element: Element,
    pub from: &'a [u8],
    pub to: &'a mut [u8],
}

/// A comparison of calls, in errors.
pub const COMPARISON: &str = "comparison of calls";

/// Channels of a collective: of first stages, of second ones, and of announcements.
pub const CHANNELS: usize = 3;

/// The channel of announcements.
pub const ANNOUNCEMENTS: usize = 2;

/// How a transport compares calls that are not expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "gloo"), expect(dead_code, reason = "gloo alone compares within its calls"))]
pub enum Comparison {
    /// By an all-gather on the last channel; then they are started.
    Before,
    /// As part of each call: a transport that runs one call after the other cannot go on with a second one
    /// on some ranks while others wait for the first.
    Within,
}

/// A transport's calls between ranks on [`CHANNELS`], each of which matches its own.
pub trait Link {
    /// A non-blocking call in flight, with its buffers.
    type Request;

    /// The transport's name.
    const NAME: &'static str;

    /// Whether an all-reduce and a reduce-scatter are in rank order if their operation is.
    const SUMS_IN_ORDER: bool = false;

    /// How ranks compare calls before they make them.
    const COMPARISON: Comparison = Comparison::Before;

    /// Whether it looks at the length of a message before it receives it.
    const PROBES_MESSAGES: bool = true;

    /// The rank.
    fn member(&self) -> &Member;

    /// As [`Collective::connection`].
    fn connection(&self) -> Option<String> {
        None
    }

    /// Makes a blocking call.
    fn call(&mut self, blocking: Blocking<'_>) -> Result<(), CommError>;

    /// Starts a non-blocking one.
    fn start(&mut self, job: Job) -> Result<Self::Request, CommError>;

    /// Both buffers, once the call is complete. All calls in flight are tested in the order of their start.
    fn test(&mut self, request: &mut Self::Request) -> Result<Option<(Wire, Wire)>, CommError>;

    /// Between two tests of a rank that waits.
    fn pause(&mut self) -> Result<(), CommError>;

    /// Makes a blocking call on channel 0, which may follow calls in flight, and which ranks have compared.
    fn make(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let of = self.member().check(Self::NAME, call, element, from, to)?;
        // Open MPI treats two empty buffers as aliased, which is an error.
        if of.bytes == 0 && call.has_parts() {
            return Ok(());
        }
        self.call(Blocking { channel: 0, of, call, element, from, to })
    }
}

/// A [`Collective`] of a transport's non-blocking calls.
pub struct PendingOps<L: Link> {
    // Dropped first: the transport knows then which are complete.
    ops: Vec<PendingOp<L::Request>>,
    checked: Checked<L>,
    /// Whether two ranks on two machines exchange and sum halves. Open MPI's own non-blocking all-reduce
    /// (coll/libnbc, in place) sends all to one rank and back, so a link is idle in one direction.
    halves: bool,
}

struct PendingOp<Q> {
    step: Step,
    /// Elements of the result.
    length: usize,
    stage: Stage<Q>,
}

enum Stage<Q> {
    /// Not started: ranks compare it, or one before it.
    Announced { announcement: Option<Q>, job: Job },
    /// One call is the whole operation, or the last one of it, and has its result in the second buffer.
    Whole(Q),
    /// The all-to-all of chunks is in flight; the sums of an all-reduce are gathered afterwards.
    Exchange(Q),
    /// Exchanged and summed; waits for an earlier operation to start its all-gather.
    Exchanged { sum: Wire, all: Wire },
    /// The result.
    Done(Wire),
}

/// The bucket number of blocking calls; no caller uses it.
pub(crate) const BLOCKING: usize = usize::MAX;

impl<Q> PendingOp<Q> {
    fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done(_))
    }

    fn is_announced(&self) -> bool {
        matches!(self.stage, Stage::Announced { .. })
    }

    fn finish(&mut self, mut result: Wire) {
        result.resize(self.length);
        self.stage = Stage::Done(result);
    }

    /// Moves the operation on, without waiting. All-gathers start in the order of the operations: after one that
    /// is to start its own, there are none.
    fn advance<L: Link<Request = Q>>(&mut self, link: &mut L, gathers: &mut bool) -> Result<(), CommError> {
        match &mut self.stage {
            Stage::Whole(request) => {
                if let Some((_, result)) = link.test(request)? {
                    self.finish(result);
                }
            }
            Stage::Exchange(request) => {
                if let Some((all, chunks)) = link.test(request)? {
                    let mut sum = chunks.zeros_like(chunks.len() / link.member().size);
                    sum.sum_of_chunks(&chunks);
                    match self.step.operation {
                        Operation::AllReduce(_) => self.stage = Stage::Exchanged { sum, all },
                        _ => self.finish(sum),
                    }
                }
            }
            Stage::Announced { .. } | Stage::Exchanged { .. } | Stage::Done(_) => {}
        }
        if let Stage::Exchanged { sum, all } = &mut self.stage
            && *gathers
        {
            let [sum, all] = [sum, all].map(|buffer| std::mem::replace(buffer, Wire::Bytes(Vec::new())));
            let step = Step { call: Call::AllGather, channel: 1, ..self.step };
            self.stage = Stage::Whole(link.start(Job::new(link.member(), L::NAME, step, sum, all))?);
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
        Self { ops: Vec::new(), checked, halves }
    }

    /// The operation of a bucket that was started and not returned to the caller.
    fn operation_of(&self, bucket: usize) -> Option<Operation> {
        self.ops.iter().find(|op| op.step.bucket == bucket).map(|op| op.step.operation)
    }

    /// Starts the operations that are compared, in the order in which all ranks start them.
    fn start_announced(&mut self) -> Result<(), CommError> {
        self.checked.check_failed()?;
        while let Some(at) = self.ops.iter().position(PendingOp::is_announced) {
            let stage = std::mem::replace(&mut self.ops[at].stage, Stage::Done(Wire::Bytes(Vec::new())));
            let Stage::Announced { mut announcement, job } = stage else { unreachable!("found above") };
            if let Some(request) = &mut announcement
                && !self.checked.is_compared(request, false)?
            {
                self.ops[at].stage = Stage::Announced { announcement, job };
                return Ok(());
            }
            // An operation that could not be started has no result.
            let begun = self.begin(job);
            self.ops[at].stage = begun.inspect_err(|error| self.checked.failed = Some(error.clone()))?;
        }
        Ok(())
    }

    /// Starts the first stage of an operation.
    fn begin(&mut self, job: Job) -> Result<Stage<L::Request>, CommError> {
        Ok(match job.step.call {
            _ if job.step.whole == 0 && job.announcement.is_none() => Stage::Done(job.to),
            Call::AllToAll => Stage::Exchange(self.checked.link.start(job)?),
            _ => Stage::Whole(self.checked.link.start(job)?),
        })
    }

    fn link(&self) -> &L {
        &self.checked.link
    }

    /// Waits for the operation of `bucket` and makes progress on all others: another rank may wait
    /// for them first.
    fn complete(&mut self, bucket: usize) -> Result<Wire, CommError> {
        loop {
            self.poll()?;
            let done = |op: &PendingOp<L::Request>| op.step.bucket == bucket && op.is_done();
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

    fn start(&mut self, bucket: usize, operation: Operation, mut buffer: Wire) -> Result<(), CommError> {
        assert!(self.operation_of(bucket).is_none(), "bucket {bucket} is in flight");
        self.link().member().check_operation(L::NAME, operation, &buffer)?;
        let Member { rank, size, .. } = *self.link().member();
        let (whole, length) = match operation {
            Operation::AllReduce(_) => (buffer.len(), buffer.len()),
            Operation::ReduceScatter(_) => (buffer.len(), chunk_range(buffer.len(), size, rank).len()),
            Operation::AllGather { length } => (length, length),
        };
        let call = match operation {
            Operation::AllReduce(Reduction::Native) if !self.halves => Call::AllReduce,
            Operation::ReduceScatter(Reduction::Native) => Call::ReduceScatter,
            Operation::AllReduce(_) if L::SUMS_IN_ORDER => Call::AllReduce,
            Operation::ReduceScatter(_) if L::SUMS_IN_ORDER => Call::ReduceScatter,
            // A native all-reduce of two ranks has the same bits.
            Operation::AllReduce(_) | Operation::ReduceScatter(_) => Call::AllToAll,
            Operation::AllGather { .. } => Call::AllGather,
        };
        let chunk = whole.div_ceil(size);
        let (from, to) = match call {
            Call::AllReduce => (buffer.zeros_like(0), buffer),
            _ => {
                buffer.resize(if call == Call::AllGather { chunk } else { chunk * size });
                let to = buffer.zeros_like(if call == Call::ReduceScatter { chunk } else { chunk * size });
                (buffer, to)
            }
        };
        let step = Step { bucket, operation, whole, call, channel: 0 };
        let signature = Signature { call, started: Some(operation), element: to.element(), length: whole };
        let job = Job::new(self.link().member(), L::NAME, step, from, to);
        let stage = match self.checked.note(signature)? {
            Some(announcement) if L::COMPARISON == Comparison::Before => {
                Stage::Announced { announcement: Some(self.checked.announce(&announcement, bucket)?), job }
            }
            None if self.ops.iter().any(PendingOp::is_announced) => {
                Stage::Announced { announcement: None, job }
            }
            announcement => self.begin(Job { announcement, ..job })?,
        };
        self.ops.push(PendingOp { step, length, stage });
        Ok(())
    }

    fn poll(&mut self) -> Result<usize, CommError> {
        self.start_announced()?;
        let mut gathers = true;
        for op in &mut self.ops {
            let advanced = op.advance(&mut self.checked.link, &mut gathers);
            advanced.inspect_err(|error| {
                if error.is_shared() {
                    self.checked.failed = Some(error.clone());
                }
            })?;
        }
        Ok(self.ops.iter().filter(|op| !op.is_done()).count())
    }

    fn is_done(&self, bucket: usize) -> bool {
        self.ops.iter().any(|op| op.step.bucket == bucket && op.is_done())
    }

    fn wait(&mut self, bucket: usize) -> Result<Wire, CommError> {
        let Some(operation) = self.operation_of(bucket) else {
            panic!("bucket {bucket} is waited for without having been started")
        };
        let _waiting = self.link().member().enter(&self.checked.label, operation.name(), Some(bucket));
        self.complete(bucket)
    }

    fn all_reduce(&mut self, buffer: &mut Wire, how: Reduction) -> Result<(), CommError> {
        if how == Reduction::Native {
            // After all operations that were started before have begun.
            if self.ops.iter().any(PendingOp::is_announced) {
                // Not counted: on another rank they may have begun.
                let _waiting = self.link().member().enter(&self.checked.label, "launch", None);
                while self.ops.iter().any(PendingOp::is_announced) {
                    self.checked.link.pause()?;
                    self.poll()?;
                }
            }
            return self.checked.call(Call::AllReduce, buffer.element(), &[], buffer.bytes_mut());
        }
        let _waiting = self.link().member().enter(&self.checked.label, "all-reduce", None);
        self.link().member().check_operation(L::NAME, Operation::AllReduce(how), buffer)?;
        let taken = std::mem::replace(buffer, Wire::Bytes(Vec::new()));
        self.start(BLOCKING, Operation::AllReduce(how), taken)?;
        let reduced = self.complete(BLOCKING);
        // One that has failed is not waited for again.
        self.ops.retain(|op| op.step.bucket != BLOCKING);
        *buffer = reduced?;
        Ok(())
    }
}
