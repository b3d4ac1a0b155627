//! One communicator of NCCL with its stream and memory, and the operations in flight on it.

use std::rc::Rc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::NAME;
use super::call::Layout;
use super::cuda::{Cuda, Handle};
use super::gpu::{Chosen, Gpu, choose};
use super::library::{Comm, Datatype, Nccl};
use super::memory::Block;
use crate::collective::wire::Element;
use crate::guard::abortable::Abortable;
use crate::member::Member;
use crate::{Call, CommError, World};

/// How long a rank whose operation failed waits for its peer to send the reason.
const PEERS_WORD: Duration = Duration::from_secs(3);
/// How long NCCL may take to end a communicator; it may wait for peers that are gone.
const END: Duration = Duration::from_secs(5);

/// A communicator of all ranks. They call its operations in the same order.
pub(super) struct Communicator {
    member: Rc<Member>,
    cuda: &'static Cuda,
    pub(super) nccl: &'static Nccl,
    gpu: Gpu,
    /// `None` once ended.
    comm: Option<Comm>,
    stream: Handle,
    /// Blocks that no operation uses.
    free: Vec<Block>,
    /// Operations that were started and not collected.
    in_flight: usize,
    /// The error that ended the communicator, if any.
    broken: Option<String>,
}

/// An operation in flight.
pub(super) struct Pending {
    block: Block,
    /// First byte of the result.
    result: usize,
}

impl Communicator {
    /// Connects all ranks. All must call it; if one lacks a library or a GPU, all return the same
    /// error before any of them waits for NCCL.
    pub fn connect(world: &World, gpu: Option<usize>) -> Result<Self, CommError> {
        let Chosen { cuda, nccl, gpu } = choose(world, gpu)?;
        let stream = world.agree(gpu.enter().and_then(|_current| cuda.stream()))?;
        let id = if world.is_root() { nccl.unique_id() } else { Ok(Vec::new()) };
        let id = world.broadcast_bytes(world.agree(id)?)?;
        let member = Rc::clone(world.member());
        let started = member.now();
        let (free, in_flight, broken) = (Vec::new(), 0, None);
        let mut this = Self { member, cuda, nccl, gpu, comm: None, stream, free, in_flight, broken };
        let _waiting = Rc::clone(&this.member).enter(NAME, "communicator start", None);
        let connected = this.gpu.enter().and_then(|_current| {
            // SAFETY: the context is current.
            unsafe { nccl.connect(this.member.size, &id, this.member.rank) }
        });
        // Not agreed on: after an error here, other ranks may wait inside NCCL. They learn it from
        // this rank's exit.
        match connected {
            Ok(comm) => this.comm = Some(comm),
            Err(reason) => return Err(this.error("communicator start", 0, started, reason)),
        }
        log::debug!("nccl: rank {} on {}", this.member.rank, this.describe());
        Ok(this)
    }

    /// GPU and version.
    pub fn describe(&self) -> String {
        format!("{}, NCCL {}", self.gpu.name, self.nccl.version())
    }

    pub fn member(&self) -> &Rc<Member> {
        &self.member
    }

    pub fn rank(&self) -> usize {
        self.member.rank
    }

    pub fn size(&self) -> usize {
        self.member.size
    }

    pub(super) fn stream(&self) -> Handle {
        self.stream
    }

    /// The communicator, or null after its end.
    pub(super) fn comm(&self) -> Comm {
        self.comm.unwrap_or(std::ptr::null_mut())
    }

    /// Starts `call` on `count` elements of each rank, of which `mine` are this rank's; a part that
    /// is missing at the end counts as zeros.
    pub fn start(
        &mut self,
        call: Call,
        datatype: Datatype,
        count: usize,
        mine: &[u8],
    ) -> Result<Pending, String> {
        if let Some(reason) = &self.broken {
            return Err(format!("the communicator broke earlier: {reason}"));
        }
        let layout = Layout::of(call, count, self.rank(), self.size());
        let bytes = |elements: usize| elements * datatype.width;
        let range = |part: &std::ops::Range<usize>| bytes(part.start)..bytes(part.end);
        let (brings, returns) = (range(&layout.brings), range(&layout.returns));
        let _current = self.gpu.enter()?;
        // SAFETY: the context is current.
        let mut block = unsafe { self.block(bytes(layout.length)) }?;
        // SAFETY: no operation uses a block from `block`. From here on it is in flight, and nothing
        // writes or frees it before its event is complete; the range is inside, as the layout
        // has it. The context is current, and the communicator is not ended.
        let enqueued = unsafe {
            block.write(brings.clone(), mine);
            block
                .bring(self.cuda, &brings, self.stream)
                .and_then(|()| self.enqueue(call, datatype, count, block.device))
                .and_then(|()| block.fetch(self.cuda, &returns, self.stream))
        };
        match enqueued {
            Ok(()) => {
                self.in_flight += 1;
                Ok(Pending { block, result: returns.start })
            }
            // The block may be in use: it is leaked.
            Err(reason) => Err(self.fail(reason)),
        }
    }

    /// Whether an operation is complete.
    pub fn is_complete(&mut self, pending: &Pending) -> Result<bool, String> {
        let Some(comm) = self.comm else {
            return Err(self.broken.clone().unwrap_or_else(|| "the communicator has ended".into()));
        };
        let _current = self.gpu.enter()?;
        // SAFETY: the event is that of a block that is not freed, and the communicator is not ended.
        let state = unsafe {
            match self.cuda.is_complete(pending.block.event) {
                // Without this an operation whose peer is gone would never be complete.
                Ok(false) => self.nccl.check_progress(comm).map(|()| false),
                state => state,
            }
        };
        state.map_err(|reason| self.fail(reason))
    }

    /// Waits until an operation is complete. The guard has the communicator aborted if the wait
    /// exceeds the deadline.
    pub fn wait(&mut self, pending: &Pending) -> Result<(), String> {
        let abortable = Abortable::enter(&self.member.activity);
        while !self.is_complete(pending)? {
            self.pause(&abortable);
        }
        Ok(())
    }

    /// Runs `call` to its end.
    pub fn run(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let bytes = from.len().max(to.len());
        let member = Rc::clone(&self.member);
        let _waiting = member.begin(NAME, call, element, from, to)?;
        let (started, (rank, size)) = (member.now(), (member.rank, member.size));
        let part = if call == Call::Barrier { 1 } else { call.part(from.len(), to.len(), size) };
        let count = part / element.width();
        let Layout { brings, returns, .. } = Layout::of(call, count, rank, size);
        let result = match brings.is_empty() {
            true => self.start(call, Datatype::of(element), count, &[]),
            // In place.
            false if from.is_empty() => self.start(call, Datatype::of(element), count, to),
            false => self.start(call, Datatype::of(element), count, from),
        };
        let result = result.and_then(|pending| {
            self.wait(&pending)?;
            self.collect(pending, if returns.is_empty() { &mut [] } else { to });
            Ok(())
        });
        result.map_err(|reason| self.error(call.name(), bytes, started, reason))
    }

    /// Between two looks of a rank that waits.
    pub fn pause(&mut self, abortable: &Abortable) {
        if abortable.is_requested() {
            self.abort();
            abortable.aborted();
        }
        self.member.pause();
    }

    /// Takes the result of an operation that is complete: its first bytes into `into`.
    pub fn collect(&mut self, pending: Pending, into: &mut [u8]) {
        let Pending { block, result } = pending;
        // SAFETY: the operation is complete, so nothing else uses the block; its result was copied
        // there by the stream, or it has none and `into` is empty.
        unsafe { block.read(result, into) };
        self.in_flight -= 1;
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
                unsafe { block.free(self.cuda) };
            }
        }
        // SAFETY: the context is current.
        unsafe { Block::allocate(self.cuda, bytes) }
    }

    /// The error of an operation that failed, or was never started, for `reason`. A peer that has
    /// left tells its own reason, which is the one to report.
    pub fn error(&self, operation: &str, bytes: usize, started: Duration, reason: String) -> CommError {
        match self.member.activity.departed_peer(PEERS_WORD) {
            Some(departure) => departure.error(),
            None => self.member.error(NAME, operation, bytes, started, reason),
        }
    }

    /// Ends the communicator after an error, which every later operation then returns.
    fn fail(&mut self, reason: String) -> String {
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
                unsafe { block.free(self.cuda) };
            }
            // SAFETY: the stream is this communicator's, and nothing is in flight on it.
            unsafe { (self.cuda.stream_destroy)(self.stream) };
        }
    }
}
