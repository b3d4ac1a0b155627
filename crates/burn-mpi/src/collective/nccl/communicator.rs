//! One communicator of NCCL with its stream and memory, and the operations in flight on it.

use std::ops::Range;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::NAME;
use super::call::Layout;
use super::cuda::Handle;
use super::gpu::{Gpu, choose};
use super::library::{Comm, Nccl};
use super::memory::Block;
use crate::collective::wire::Element;
use crate::guard::abortable::Abortable;
use crate::member::{Member, Started};
use crate::{Call, CommError, World};

/// How long a rank whose operation failed waits for its peer to send the reason.
const PEERS_WORD: Duration = Duration::from_secs(3);
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

    /// Starts `call` on `count` elements of each rank, of which `mine` are this rank's, if it brings any; a
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
        let (brings, returns) = (range(&layout.brings), range(&layout.returns));
        let mine = if brings.is_empty() { &[] } else { mine };
        let _current = self.gpu.enter()?;
        // SAFETY: the context is current.
        let mut block = unsafe { self.block(bytes(layout.length)) }?;
        // SAFETY: no operation uses a block from `block`. From here on it is in flight, and nothing
        // writes or frees it before its event is complete; the range is inside, as the layout
        // has it. The context is current, and the communicator is not ended.
        let enqueued = unsafe {
            block.write(brings.clone(), mine);
            block
                .bring(self.gpu.cuda, &brings, self.stream)
                .and_then(|()| self.enqueue(call, element, count, block.device))
                .and_then(|()| block.fetch(self.gpu.cuda, &returns, self.stream))
        };
        match enqueued {
            Ok(()) => {
                self.in_flight += 1;
                Ok(Pending { block, result: returns })
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
        match self.member.activity.departed_peer(PEERS_WORD) {
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
