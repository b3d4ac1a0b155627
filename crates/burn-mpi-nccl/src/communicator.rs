//! An NCCL communicator with its CUDA stream and its memory. It starts operations, tests whether they are
//! complete, and collects their results.

use std::ffi::{c_int, c_void};
use std::iter::once_with;
use std::ops::Range;
use std::sync::mpsc::channel;
use std::time::Duration;

use burn_mpi::{Call, CommError, Element, World};

use crate::NAME;
use crate::cuda::{Block, DevicePointer, Handle, PAGE};
use crate::gpu::{Gpu, choose};
use crate::library::{Comm, Nccl, SUM, datatype};

/// The name that errors give to the start of a communicator.
const START: &str = "communicator start";
/// Maximum time to wait for NCCL to end a communicator. NCCL itself may wait forever for peers that are gone.
const END: Duration = Duration::from_secs(5);

/// A communicator of all ranks. All ranks must make its calls in the same order. Gather, scatter and
/// all-to-all are groups of NCCL's sends and receives.
pub struct Communicator {
    pub world: World,
    nccl: &'static Nccl,
    gpu: Gpu,
    /// `None` once the communicator has ended.
    comm: Option<Comm>,
    stream: Handle,
    /// Blocks that no operation uses.
    free: Vec<Block>,
    /// Number of operations that were started and not collected.
    in_flight: usize,
    /// The first error, which ended the communicator. `None` if no operation failed.
    broken: Option<String>,
}

/// An operation in flight.
pub struct Pending {
    block: Block,
    /// The range of the block's bytes that has the result.
    result: Range<usize>,
}

impl Pending {
    /// Number of bytes in the result.
    pub fn result_bytes(&self) -> usize {
        self.result.len()
    }
}

impl Communicator {
    /// Does the work of [`NcclCollective::connect`](crate::NcclCollective::connect).
    pub fn connect(world: &World, gpu: Option<usize>) -> Result<Self, CommError> {
        let (cuda, nccl, number) = choose(world, gpu)??;
        // Versions are compared here, because NCCL compares them only after ranks have begun to wait for each
        // other.
        world.check_equal("NCCL's version", &nccl.version())?;
        let gpu = world.agree(Gpu::open(cuda, number))?;
        let stream = world.agree(gpu.enter().and_then(|_current| gpu.cuda.stream()))?;
        let id = if world.is_root() { nccl.unique_id() } else { Ok(Vec::new()) };
        let id = world.broadcast_bytes(world.agree(id)?)?;
        let started = world.started(NAME, START, None, 0);
        let world = world.clone();
        let mut this =
            Self { world, nccl, gpu, comm: None, stream, free: Vec::new(), in_flight: 0, broken: None };
        let _waiting = this.world.watch(NAME, START, None);
        let connected = this.gpu.enter().and_then(|_current| {
            // SAFETY: the context is current.
            unsafe { nccl.connect(this.world.size(), &id, this.world.rank()) }
        });
        // `World::agree` is not used here, because after an error other ranks may wait inside NCCL. They
        // learn of the error when this rank exits.
        this.comm = Some(connected.map_err(|reason| this.world.broken(&started, reason))?);
        log::debug!("nccl: rank {} on {}", this.world.rank(), this.describe());
        Ok(this)
    }

    /// Returns the GPU and NCCL's version, for records and logs.
    pub fn describe(&self) -> String {
        format!("{}, NCCL {}", self.gpu.name, self.nccl.version())
    }

    /// Returns the communicator, unless it has ended.
    fn comm(&self) -> Result<Comm, String> {
        let reason = || self.broken.as_deref().unwrap_or("it was aborted");
        self.comm.ok_or_else(|| format!("the communicator broke earlier: {}", reason()))
    }

    /// Starts `call` on values of type `element`. The call reads `mine` and writes `written` bytes. An
    /// all-reduce and a broadcast overwrite the bytes that they read.
    pub fn start_call(
        &mut self,
        call: Call,
        element: Element,
        mine: &[u8],
        written: usize,
    ) -> Result<Pending, String> {
        let comm = self.comm()?;
        let rank = self.world.rank();
        let count = call.part(mine.len(), written, self.world.size()) / element.width();
        // The block has the bytes to read, followed by the bytes to write. They are the same bytes if the
        // call writes where it reads.
        let start = match call {
            Call::AllReduce | Call::Broadcast { .. } => 0,
            _ => mine.len().next_multiple_of(PAGE),
        };
        let result = match call {
            Call::Broadcast { root } if rank == root => 0..0,
            Call::Reduce { root } if rank != root => 0..0,
            _ => start..start + written,
        };
        let _current = self.gpu.enter()?;
        // SAFETY: the context is current.
        let mut block = unsafe { self.block(start + written) }?;
        let (from, to) = (block.device, block.device + start as u64);
        // SAFETY: no operation uses a block that `block` returns. From here on the block is in flight, and
        // nothing writes or frees it before its event is complete. The context is current, the stream belongs
        // to it, and the communicator is not ended.
        let enqueued = unsafe {
            block.write(mine);
            block
                .copy_to_device(mine.len(), self.stream)
                .and_then(|()| self.enqueue(comm, call, element, count, (from, to)))
                .and_then(|()| block.copy_to_host(&result, self.stream))
        };
        match enqueued {
            Ok(()) => {
                self.in_flight += 1;
                Ok(Pending { block, result })
            }
            // The GPU may still use the block, so the block is leaked.
            Err(reason) => Err(self.fail(reason)),
        }
    }

    /// Whether an operation is complete.
    pub fn is_complete(&mut self, pending: &Pending) -> Result<bool, String> {
        let comm = self.comm()?;
        let _current = self.gpu.enter()?;
        // SAFETY: the event belongs to a block that is not freed, its context is current, and the
        // communicator is not ended.
        let state = unsafe {
            match self.gpu.cuda.is_complete(pending.block.event) {
                // If a peer is gone, the operation never completes. This check then returns NCCL's error.
                Ok(false) => self.nccl.check_progress(comm).map(|()| false),
                state => state,
            }
        };
        state.map_err(|reason| self.fail(reason))
    }

    /// Yields the core before the caller tests again whether an operation is complete. If the job is ending,
    /// aborts the operations instead, and does not return.
    pub fn look_again(&mut self) {
        if self.world.is_ending() {
            self.abort();
            // This thread waits until burn-mpi's guard thread ends the process. If this rank returned an
            // error, the job would print a second line for the same cause.
            loop {
                std::thread::park();
            }
        }
        std::thread::yield_now();
    }

    /// Takes back the block of an operation that is complete. If the operation has a result on this rank,
    /// fills `into` with the first bytes of the result.
    pub fn collect(&mut self, pending: Pending, into: &mut [u8]) {
        let Pending { block, result } = pending;
        if !result.is_empty() {
            // SAFETY: the operation is complete, so nothing else uses the block, and the stream has copied
            // the result to the host's part of it.
            unsafe { block.read(result.start, into) };
        }
        self.in_flight -= 1;
        self.free.push(block);
    }

    /// Returns a block of at least `bytes` that no operation uses: the smallest one that is large enough, or
    /// a new one.
    ///
    /// # Safety
    /// The context of the GPU is current.
    unsafe fn block(&mut self, bytes: usize) -> Result<Block, String> {
        let fits = |(_, block): &(usize, &Block)| block.capacity >= bytes;
        let found = self.free.iter().enumerate().filter(fits).min_by_key(|(_, block)| block.capacity);
        if let Some((at, _)) = found {
            return Ok(self.free.swap_remove(at));
        }
        // Freeing memory waits for the GPU's operations, and an operation in flight may wait for other ranks.
        // So memory is freed only if nothing is in flight.
        if self.in_flight == 0 {
            for block in self.free.drain(..) {
                // SAFETY: the context is current, and no operation uses a free block.
                unsafe { block.free() };
            }
        }
        // SAFETY: the context is current.
        unsafe { Block::allocate(self.gpu.cuda, bytes) }
    }

    /// Ends the communicator after an error. Every later operation returns the first error.
    fn fail(&mut self, reason: String) -> String {
        self.abort();
        self.broken.get_or_insert(reason).clone()
    }

    /// Aborts the operations in flight, on the GPU and in NCCL's threads.
    fn abort(&mut self) {
        self.end(self.nccl.abort);
    }

    /// Ends the communicator with `how`, NCCL's function that aborts or destroys it. The function runs on a
    /// separate thread, because it may wait for ranks that are gone, and this rank must not wait for them.
    /// Returns false if the communicator did not end within [`END`], or had ended before.
    fn end(&mut self, how: unsafe extern "C" fn(Comm) -> c_int) -> bool {
        struct Handed(Comm);
        // SAFETY: a communicator may be used by any thread, one at a time. This thread has given it up.
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
            log::debug!(
                "NCCL did not end its communicator within {} s; continuing without waiting for it",
                END.as_secs()
            );
        }
        has_ended
    }

    /// Calls NCCL for `call`, which reads at `from` and writes at `to`.
    ///
    /// # Safety
    /// The context of the GPU is current, and the communicator is not ended. `from` and `to` are addresses of
    /// memory for `count` elements, or for `count` elements of each rank if NCCL reads or writes parts of all
    /// ranks. The memory stays allocated until the stream has passed this point.
    unsafe fn enqueue(
        &self,
        comm: Comm,
        call: Call,
        element: Element,
        count: usize,
        (from, to): (DevicePointer, DevicePointer),
    ) -> Result<(), String> {
        let (nccl, stream, kind) = (self.nccl, self.stream, datatype(element));
        let (rank, size) = (self.world.rank(), self.world.size());
        let part = |base: DevicePointer, part: usize| {
            (base as usize + part * count * element.width()) as *mut c_void
        };
        let (read, write) = (part(from, 0), part(to, 0));
        let of_root = |root| if rank == root { 0..size } else { 0..0 };
        // SAFETY: all parts are inside the memory that the caller promises. The stream and the communicator
        // belong to this value.
        let send = |at, to| unsafe { (nccl.send)(part(from, at), count, kind, to as c_int, comm, stream) };
        // SAFETY: as above.
        let receive =
            |at, from| unsafe { (nccl.receive)(part(to, at), count, kind, from as c_int, comm, stream) };
        // SAFETY: as above.
        let code = unsafe {
            match call {
                Call::AllReduce => (nccl.all_reduce)(read, write, count, kind, SUM, comm, stream),
                Call::Reduce { root } => {
                    (nccl.reduce)(read, write, count, kind, SUM, root as c_int, comm, stream)
                }
                Call::Broadcast { root } => {
                    (nccl.broadcast)(read, write, count, kind, root as c_int, comm, stream)
                }
                Call::ReduceScatter => (nccl.reduce_scatter)(read, write, count, kind, SUM, comm, stream),
                Call::AllGather => (nccl.all_gather)(read, write, count, kind, comm, stream),
                Call::Send { to } => send(0, to),
                Call::Receive { from } => receive(0, from),
                Call::AllToAll => {
                    let sends = (0..size).map(|peer| send(peer, peer));
                    nccl.group(sends.chain((0..size).map(|peer| receive(peer, peer))))
                }
                Call::Gather { root } => nccl
                    .group(once_with(|| send(0, root)).chain(of_root(root).map(|from| receive(from, from)))),
                Call::Scatter { root } => {
                    nccl.group(once_with(|| receive(0, root)).chain(of_root(root).map(|to| send(to, to))))
                }
                // NCCL has no barrier; `NcclCollective` sums a byte instead.
                other => return Err(format!("{} is not an operation of NCCL", other.name())),
            }
        };
        nccl.check(code, call.name())
    }
}

impl Drop for Communicator {
    /// Frees the blocks and the stream if there was no error or panic, nothing is in flight, and NCCL ends
    /// the communicator in time. Otherwise they are leaked, because the GPU may still use them.
    fn drop(&mut self) {
        if self.in_flight > 0 || std::thread::panicking() {
            return self.abort();
        }
        if self.end(self.nccl.destroy)
            && let Ok(_current) = self.gpu.enter()
        {
            for block in self.free.drain(..) {
                // SAFETY: the context is current, and no operation uses a free block.
                unsafe { block.free() };
            }
            // SAFETY: the stream is this communicator's, and nothing is in flight on it.
            unsafe { (self.gpu.cuda.stream_destroy)(self.stream) };
        }
    }
}
