//! One communicator of NCCL: its stream and memory, its calls, and the operations in flight on it.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::collective::announced::Announcement;
use crate::collective::nccl::NAME;
use crate::collective::nccl::cuda::Block;
use crate::collective::nccl::cuda::{DevicePointer, Handle};
use crate::collective::nccl::gpu::{Gpu, choose};
use crate::collective::nccl::library::{Comm, Nccl, SUM, datatype};
use crate::collective::pending::{Comparison, PendingOps, Requests, Step};
use crate::collective::wire::Element;
use crate::guard::abortable::Abortable;
use crate::member::{Member, Started};
use crate::{Call, CommError, Operation, Primitives, Reduction, Wire, World};

/// How long a rank whose operation failed waits for its peer to send the reason.
const PEER_REASON_TIMEOUT: Duration = Duration::from_secs(3);
/// The start of a communicator, in errors.
const START: &str = "communicator start";
/// How long NCCL may take to end a communicator; it may wait for peers that are gone.
const END: Duration = Duration::from_secs(5);

/// A communicator of all ranks. They call its operations in the same order.
pub struct Communicator {
    pub(super) member: Rc<Member>,
    pub(super) nccl: &'static Nccl,
    gpu: Gpu,
    /// `None` once ended.
    comm: Option<Comm>,
    pub(super) stream: Handle,
    /// Blocks that no operation uses.
    free: Vec<Block>,
    /// Operations that were started and not collected.
    in_flight: usize,
    /// While this rank waits for an operation.
    waiting: Option<Abortable>,
    /// The error that ended the communicator, if any.
    broken: Option<String>,
}

/// An operation in flight.
pub struct Pending {
    block: Block,
    /// The bytes of the result.
    result: Range<usize>,
}

impl Communicator {
    /// Connects all ranks of `world`, each with the GPU of number `gpu` or, if it is `None`, with
    /// the first one that no lower rank of its machine uses. All ranks must call it.
    ///
    /// # Errors
    /// [`SharedError::NoNccl`](crate::SharedError::NoNccl) if a rank lacks the driver, NCCL or a GPU of its own; all ranks then
    /// return the same error, before any of them waits for NCCL. [`CommError::Operation`] if NCCL fails.
    pub fn connect(world: &World, gpu: Option<usize>) -> Result<Self, CommError> {
        let (nccl, gpu) = choose(world, gpu)?;
        let stream = world.agree(gpu.enter().and_then(|_current| gpu.cuda.stream()))?;
        let id = if world.is_root() { nccl.unique_id() } else { Ok(Vec::new()) };
        let id = world.broadcast_bytes(world.agree(id)?)?;
        let member = Rc::clone(world.member());
        let started = member.started(NAME, START, 0);
        let mut this = Self {
            member,
            nccl,
            gpu,
            comm: None,
            stream,
            free: Vec::new(),
            in_flight: 0,
            waiting: None,
            broken: None,
        };
        let _waiting = this.member.enter(NAME, START, None);
        let connected = this.gpu.enter().and_then(|_current| {
            // SAFETY: the context is current.
            unsafe { nccl.connect(this.member.size, &id, this.member.rank) }
        });
        // Not agreed on: after an error here, other ranks may wait inside NCCL. They learn it from
        // this rank's exit.
        this.comm = Some(connected.map_err(|reason| this.error(&started, reason))?);
        log::debug!("nccl: rank {} on {}", this.member.rank, this.describe());
        Ok(this)
    }

    /// GPU and version.
    pub(super) fn describe(&self) -> String {
        format!("{}, NCCL {}", self.gpu.name, self.nccl.version())
    }

    /// The communicator, or null after its end.
    pub(super) fn comm(&self) -> Comm {
        self.comm.unwrap_or(std::ptr::null_mut())
    }

    /// Starts `call` on `count` elements of each rank, of which `mine` are this rank's, if it sends any; a
    /// part that is missing at the end counts as zeros.
    pub(super) fn start_call(
        &mut self,
        call: Call,
        element: Element,
        count: usize,
        mine: &[u8],
    ) -> Result<Pending, String> {
        if let Some(reason) = &self.broken {
            return Err(format!("the communicator broke earlier: {reason}"));
        }
        let layout = Layout::of(call, count, self.member.rank, self.member.size);
        let bytes = |elements: usize| elements * element.width();
        let range = |part: &Range<usize>| bytes(part.start)..bytes(part.end);
        let (input, output) = (range(&layout.input), range(&layout.output));
        let mine = if input.is_empty() { &[] } else { mine };
        let _current = self.gpu.enter()?;
        // SAFETY: the context is current.
        let mut block = unsafe { self.block(bytes(layout.length)) }?;
        // SAFETY: no operation uses a block from `block`. From here on it is in flight, and nothing
        // writes or frees it before its event is complete; the range is inside, as the layout
        // has it. The context is current, and the communicator is not ended.
        let enqueued = unsafe {
            block.write(input.clone(), mine);
            block
                .copy_to_device(self.gpu.cuda, &input, self.stream)
                .and_then(|()| self.enqueue(call, element, count, block.device))
                .and_then(|()| block.copy_to_host(self.gpu.cuda, &output, self.stream))
        };
        match enqueued {
            Ok(()) => {
                self.in_flight += 1;
                Ok(Pending { block, result: output })
            }
            // The block may be in use: it is leaked.
            Err(reason) => Err(self.fail(reason)),
        }
    }

    /// Whether an operation is complete.
    pub(super) fn is_complete(&mut self, pending: &Pending) -> Result<bool, String> {
        let Some(comm) = self.comm else {
            return Err(self.broken.clone().unwrap_or_else(|| "the communicator has ended".into()));
        };
        let _current = self.gpu.enter()?;
        // SAFETY: the event is that of a block that is not freed, and the communicator is not ended.
        let state = unsafe {
            match self.gpu.cuda.is_complete(pending.block.event) {
                // Without this an operation whose peer is gone would never be complete.
                Ok(false) => self.nccl.check_progress(comm).map(|()| false),
                state => state,
            }
        };
        state.map_err(|reason| self.fail(reason))
    }

    /// Between two looks of a rank that waits. The guard has the communicator aborted if the wait exceeds the
    /// deadline.
    pub(super) fn pause(&mut self) {
        let waiting = self.waiting.get_or_insert_with(|| Abortable::enter(&self.member.activity));
        if waiting.is_requested() {
            self.abort();
            Abortable::aborted(&self.member.activity);
        }
        self.member.pause();
    }

    /// Takes the result of an operation that is complete, if it has one: its first bytes into `into`.
    pub(super) fn collect(&mut self, pending: Pending, into: &mut [u8]) {
        let Pending { block, result } = pending;
        if !result.is_empty() {
            // SAFETY: the operation is complete, so nothing else uses the block, and the stream has copied the
            // result there.
            unsafe { block.read(result.start, into) };
        }
        self.in_flight -= 1;
        self.waiting = None;
        self.free.push(block);
    }

    /// A block of at least `bytes` that no operation uses: the smallest one that is large enough.
    ///
    /// # Safety
    /// The context of the GPU is current.
    unsafe fn block(&mut self, bytes: usize) -> Result<Block, String> {
        let fits = |(_, block): &(usize, &Block)| block.capacity >= bytes;
        let found = self.free.iter().enumerate().filter(fits).min_by_key(|(_, block)| block.capacity);
        if let Some((at, _)) = found {
            return Ok(self.free.swap_remove(at));
        }
        // Freeing waits for the GPU: not while an operation waits there for other ranks.
        if self.in_flight == 0 {
            for block in self.free.drain(..) {
                // SAFETY: the context is current, and no operation uses a free block.
                unsafe { block.free(self.gpu.cuda) };
            }
        }
        // SAFETY: the context is current.
        unsafe { Block::allocate(self.gpu.cuda, bytes) }
    }

    /// The error of an operation that failed, or was never started, for `reason`. A peer that has
    /// left tells its own reason, which is the one to report.
    pub(super) fn error(&self, of: &Started, reason: String) -> CommError {
        match self.member.activity.departed_peer(PEER_REASON_TIMEOUT) {
            Some(departure) => departure.error(),
            None => self.member.error(of, reason),
        }
    }

    /// Ends the communicator after an error, which every later operation then returns.
    fn fail(&mut self, reason: String) -> String {
        self.waiting = None;
        self.abort();
        self.broken.get_or_insert(reason).clone()
    }

    /// Aborts the operations in flight, on the GPU and in NCCL's threads.
    fn abort(&mut self) {
        self.end(self.nccl.abort);
    }

    /// Ends the communicator by `how`, on a thread of its own: NCCL may wait for ranks that are
    /// gone, and a rank that leaves must not. Returns whether it has ended.
    fn end(&mut self, how: unsafe extern "C" fn(Comm) -> std::ffi::c_int) -> bool {
        struct Handed(Comm);
        // SAFETY: a communicator may be used by any thread, one at a time. This one has given it up.
        unsafe impl Send for Handed {}
        let Some(comm) = self.comm.take().map(Handed) else { return false };
        let (done, ended) = channel();
        let end = move || {
            let Handed(comm) = { comm };
            // SAFETY: the communicator is neither aborted nor destroyed, and nobody else has it.
            unsafe { how(comm) };
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("nccl-end".into()).spawn(end);
        let has_ended = thread.is_ok() && ended.recv_timeout(END).is_ok();
        if !has_ended {
            log::debug!("NCCL has not ended its communicator after {} s; leaving it", END.as_secs());
        }
        has_ended
    }

    /// Calls NCCL for `call` on the block at `base`.
    ///
    /// # Safety
    /// The context of the GPU is current, the communicator is not ended, and `base` is the address
    /// of a block of [`Layout::of`]'s length that stays allocated until the stream has passed this
    /// point.
    pub(super) unsafe fn enqueue(
        &self,
        call: Call,
        element: Element,
        count: usize,
        base: DevicePointer,
    ) -> Result<(), String> {
        let (nccl, comm, stream, kind) = (self.nccl, self.comm(), self.stream, datatype(element));
        let (rank, size) = (self.member.rank, self.member.size);
        let at = |part: usize| (base as usize + part * count * element.width()) as *mut c_void;
        let one = |code: c_int, name: &str| nccl.check(code, name);
        // SAFETY: as the caller promises; a part of the block is the whole block of a message.
        let message =
            |call, part| unsafe { self.enqueue(call, element, count, at(part).addr() as DevicePointer) };
        let parts = |root| if rank == root { 0..size } else { 0..0 };
        // SAFETY: all addresses are inside the block, with room for `count` elements after each
        // (times `size` where NCCL reads or writes those of all ranks), as `Layout::of` has them;
        // stream and communicator are this one's.
        unsafe {
            match call {
                Call::AllReduce | Call::Barrier => {
                    one((nccl.all_reduce)(at(0), at(0), count, kind, SUM, comm, stream), "ncclAllReduce")
                }
                Call::Reduce { root } => {
                    let root = root as c_int;
                    one((nccl.reduce)(at(0), at(0), count, kind, SUM, root, comm, stream), "ncclReduce")
                }
                Call::Broadcast { root } => {
                    let root = root as c_int;
                    one((nccl.broadcast)(at(0), at(0), count, kind, root, comm, stream), "ncclBroadcast")
                }
                Call::ReduceScatter => {
                    let code = (nccl.reduce_scatter)(at(0), at(rank), count, kind, SUM, comm, stream);
                    one(code, "ncclReduceScatter")
                }
                Call::AllGather => {
                    one((nccl.all_gather)(at(rank), at(0), count, kind, comm, stream), "ncclAllGather")
                }
                Call::Send { to } => {
                    one((nccl.send)(at(0), count, kind, to as c_int, comm, stream), "ncclSend")
                }
                Call::Receive { from } => {
                    one((nccl.receive)(at(0), count, kind, from as c_int, comm, stream), "ncclRecv")
                }
                Call::AllToAll => grouped(nccl, || {
                    (0..size).try_for_each(|peer| {
                        message(Call::Send { to: peer }, peer)?;
                        message(Call::Receive { from: peer }, size + peer)
                    })
                }),
                Call::Gather { root } => grouped(nccl, || {
                    message(Call::Send { to: root }, size)?;
                    parts(root).try_for_each(|from| message(Call::Receive { from }, from))
                }),
                Call::Scatter { root } => grouped(nccl, || {
                    message(Call::Receive { from: root }, size)?;
                    parts(root).try_for_each(|to| message(Call::Send { to }, to))
                }),
            }
        }
    }
}

impl Drop for Communicator {
    /// Frees everything after a life without an error. Otherwise memory is leaked: the GPU may
    /// still use it.
    fn drop(&mut self) {
        if self.in_flight > 0 || std::thread::panicking() {
            return self.abort();
        }
        if self.end(self.nccl.destroy)
            && let Ok(_current) = self.gpu.enter()
        {
            for block in self.free.drain(..) {
                // SAFETY: the context is current, and no operation uses a free block.
                unsafe { block.free(self.gpu.cuda) };
            }
            // SAFETY: the stream is this communicator's, and nothing is in flight on it.
            unsafe { (self.gpu.cuda.stream_destroy)(self.stream) };
        }
    }
}

/// The layout of a block, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub length: usize,
    /// What is copied to the GPU.
    pub input: Range<usize>,
    /// What is copied back.
    pub output: Range<usize>,
}

impl Layout {
    /// The layout of the block of `rank` of `size` for a call on `count` elements of each rank, or of each
    /// pair of ranks. Operations are in place wherever NCCL allows it: a part of the block is then both read
    /// and written.
    pub fn of(call: Call, count: usize, rank: usize, size: usize) -> Self {
        let (all, none) = (0..count * size, 0..0);
        let part = |number: usize| number * count..(number + 1) * count;
        let only = |at: bool, range: Range<usize>| if at { range } else { 0..0 };
        let (parts, input, output) = match call {
            Call::AllReduce | Call::Barrier => (1, part(0), part(0)),
            Call::Reduce { root } => (1, part(0), only(rank == root, part(0))),
            Call::Broadcast { root } => (1, only(rank == root, part(0)), only(rank != root, part(0))),
            Call::ReduceScatter => (size, all, part(rank)),
            Call::AllGather => (size, part(rank), all),
            Call::AllToAll => (2 * size, all, count * size..2 * count * size),
            // This rank's part follows those of all ranks.
            Call::Gather { root } => (size + 1, part(size), only(rank == root, all)),
            Call::Scatter { root } => (size + 1, only(rank == root, all), part(size)),
            Call::Send { .. } => (1, part(0), none),
            Call::Receive { .. } => (1, none, part(0)),
        };
        Self { length: parts * count, input, output }
    }
}

/// Makes calls in one group, which is ended even if one fails. A group runs its messages at once; one after
/// the other, ranks would wait for each other.
fn grouped(nccl: &Nccl, calls: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    // SAFETY: groups may be begun at any time, and are ended below.
    nccl.check(unsafe { (nccl.group_start)() }, "ncclGroupStart")?;
    let made = calls();
    // SAFETY: the group was begun above.
    let ended = nccl.check(unsafe { (nccl.group_end)() }, "ncclGroupEnd");
    made.and(ended)
}

/// [`Collective`](crate::Collective) over NCCL, between GPUs.
///
/// Operations run on the GPU by themselves, in a stream of their own, so
/// [`poll`](crate::Collective::poll) is not needed to overlap them. Sums in rank order gather the buffers
/// of all ranks, which takes as many times the memory as there are ranks, and are computed by the processor.
///
/// It is `!Send` and `!Sync`, as is any type that holds it:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::NcclCollective>();
/// ```
///
/// ```compile_fail,E0277
/// fn is_used_by_several_threads<T: Sync>() {}
/// is_used_by_several_threads::<burn_mpi::NcclCollective>();
/// ```
pub type NcclCollective = PendingOps<Communicator>;

impl NcclCollective {
    /// Connects all ranks of `world`, each with the GPU of number `gpu` or, if it is `None`, with
    /// the first one that no lower rank of its machine uses. All ranks must call it.
    ///
    /// # Errors
    /// [`SharedError::NoNccl`](crate::SharedError::NoNccl) if a rank lacks the driver, NCCL or a GPU of its own; all ranks then
    /// return the same error. [`CommError::Operation`] if NCCL fails.
    pub fn connect(world: &World, gpu: Option<usize>) -> Result<Self, CommError> {
        Ok(Self::over(world, Communicator::connect(world, gpu)?))
    }
}

/// [`Primitives`] over NCCL, between GPUs. Those between a root and all, and between all pairs, are groups
/// of its sends and receives. It is `!Send` and `!Sync`:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::lab::NcclPrimitives>();
/// ```
pub type NcclPrimitives = Communicator;

/// A call in flight.
pub struct NcclRequest {
    started: Started,
    operation: Operation,
    /// `None` once complete.
    buffers: Option<(Pending, Wire, Wire)>,
}

impl Requests for Communicator {
    type Request = NcclRequest;

    const NAME: &'static str = NAME;

    const SUMS_IN_ORDER: bool = true;

    const COMPARISON: Comparison = Comparison::Never;

    fn member(&self) -> &Member {
        &self.member
    }

    fn connection(&self) -> Option<String> {
        Some(self.describe())
    }

    fn start(
        &mut self,
        step: Step,
        _: Option<Announcement>,
        from: Wire,
        to: Wire,
    ) -> Result<NcclRequest, CommError> {
        let Step { operation, .. } = step;
        let call = match operation {
            // All terms come to the rank that sums them.
            Operation::AllReduce(Reduction::Ordered) => Call::AllGather,
            Operation::ReduceScatter(Reduction::Ordered) => Call::AllToAll,
            _ => step.call,
        };
        let (element, count) = (to.element(), step.call.part(from.len(), to.len(), self.member.size));
        let mine = if from.is_empty() { to.bytes() } else { from.bytes() };
        let started = step.started(&self.member, NAME, &from, &to);
        // NCCL connects ranks in the first call that needs it, and then waits for them. A blocking call is
        // in a wait already.
        let _waiting = started.bucket.map(|bucket| self.member.enter(NAME, "launch", Some(bucket)));
        let pending = self.start_call(call, element, count, mine);
        let pending = pending.map_err(|reason| self.error(&started, reason))?;
        Ok(NcclRequest { started, operation, buffers: Some((pending, from, to)) })
    }

    fn test(&mut self, request: &mut NcclRequest) -> Result<Option<(Wire, Wire)>, CommError> {
        let Some((pending, ..)) = &request.buffers else { return Ok(None) };
        let is_complete = self.is_complete(pending).map_err(|reason| self.error(&request.started, reason))?;
        let Some((pending, from, mut to)) = request.buffers.take_if(|_| is_complete) else { return Ok(None) };
        match request.operation {
            Operation::AllReduce(Reduction::Ordered) | Operation::ReduceScatter(Reduction::Ordered) => {
                let mut terms = to.zeros_like(to.len() * self.member.size);
                self.collect(pending, terms.bytes_mut());
                to.sum_of_chunks(&terms);
            }
            _ => self.collect(pending, to.bytes_mut()),
        }
        Ok(Some((from, to)))
    }

    fn pause(&mut self) -> Result<(), CommError> {
        self.pause();
        Ok(())
    }

    fn blocking(&mut self) -> &mut dyn Primitives {
        self
    }
}

impl Primitives for Communicator {
    fn transport(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.member.rank
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let (_waiting, started) = self.member.begin(NAME, call, element, from, to)?;
        if started.bytes == 0 && call.has_parts() {
            return Ok(());
        }
        let part = if call == Call::Barrier { 1 } else { call.part(from.len(), to.len(), self.member.size) };
        let mine = if from.is_empty() { &*to } else { from };
        let result = self.start_call(call, element, part / element.width(), mine).and_then(|pending| {
            while !self.is_complete(&pending)? {
                self.pause();
            }
            self.collect(pending, to);
            Ok(())
        });
        result.map_err(|reason| self.error(&started, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_is_inside_the_block() {
        let root = 1;
        for call in [
            Call::AllReduce,
            Call::Reduce { root },
            Call::Broadcast { root },
            Call::ReduceScatter,
            Call::AllGather,
            Call::AllToAll,
            Call::Gather { root },
            Call::Scatter { root },
            Call::Send { to: root },
            Call::Receive { from: root },
        ] {
            for size in 2..5 {
                for rank in 0..size {
                    let Layout { length, input, output } = Layout::of(call, 7, rank, size);
                    assert!(input.end <= length && output.end <= length, "{call:?} on {rank} of {size}");
                }
            }
        }
    }

    #[test]
    fn a_rank_copies_only_what_it_sends_and_what_it_gets() {
        let layout = |call: Call, rank| Layout::of(call, 5, rank, 3);
        assert_eq!(layout(Call::ReduceScatter, 2), Layout { length: 15, input: 0..15, output: 10..15 });
        assert_eq!(layout(Call::AllGather, 1), Layout { length: 15, input: 5..10, output: 0..15 });
        assert_eq!(layout(Call::Gather { root: 0 }, 2), Layout { length: 20, input: 15..20, output: 0..0 });
        assert_eq!(layout(Call::Scatter { root: 2 }, 2), Layout { length: 20, input: 0..15, output: 15..20 });
        assert_eq!(layout(Call::Broadcast { root: 2 }, 2), Layout { length: 5, input: 0..5, output: 0..0 });
    }
}
