//! Collectives over TCP with the gloo library, as a safe layer over the C functions of `shim.cc`.
//!
//! gloo transfers bytes over TCP on its own thread, and each call blocks its caller. A [`Context`] has one
//! connection between each pair of ranks. After an error, every further operation on the context returns an
//! error.

mod interface;
pub mod sys;

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::calling::Announcement;
use crate::collective::connect::GlooAlgorithm;
use crate::collective::gloo::sys::{Mesh, Run, adder_of};
use crate::collective::pending::{ANNOUNCEMENTS, DETAILS, Launch, Link, PendingOps, Transfer};
use crate::collective::wire::Element;
use crate::member::Member;
use crate::{Call, CommError, Operation, Reduction, Wire, World};

/// The transport's name.
const NAME: &str = "gloo";

/// Tag of messages between two ranks. A rank sends or receives one message at a time, so one tag is enough.
const MESSAGE: u32 = 0;

/// A bit in the tags of announcements. An announcement describes an operation that ranks compare before they
/// run it. The bit keeps gloo from matching the announcement with the operation itself.
const ANNOUNCED: u32 = 1 << 31;

/// Connections to all other ranks. All ranks run the same operations in the same order, with buffers of equal
/// length. Any thread may run an operation, one thread at a time.
struct Context {
    mesh: Mesh,
    member: Member,
    /// Interface and address that this rank listens on.
    address: interface::Address,
    algorithm: GlooAlgorithm,
    /// Tags of the last operation and of the last announcement. Each operation and each announcement gets a
    /// new tag, so gloo never mixes the messages of two operations.
    tags: [u32; 2],
    /// The error that broke the connections; `None` while they work.
    broken: Option<String>,
}

impl Context {
    /// Connects all ranks of `world` over the network interface `interface`, or, if it is `None`, over an
    /// interface that reaches all ranks. No operation waits longer than `timeout` for another rank. All ranks
    /// must call this function, and all return an error if one rank fails.
    pub fn connect(world: &World, interface: Option<&str>, timeout: Duration) -> Result<Self, CommError> {
        let address = interface::choose(world, interface)?;
        let (rank, size) = (world.rank(), world.size());
        let mesh = Mesh::listen(&address.ip.to_string(), rank, size, timeout);
        let mesh = world.agree(mesh.map_err(|reason| with_advice(&reason, size)))?;
        let mine = world.agree(mesh.addresses(size))?;
        // The address on which each peer listens for this rank. A rank needs one address of each peer, and
        // not the addresses on which the peers listen for each other.
        let mut peers = vec![0; mine.len()];
        world.control().borrow_mut().all_to_all(&mine, &mut peers)?;
        let started = Instant::now();
        world.agree(mesh.connect(&peers, size).map_err(|reason| {
            let elapsed = started.elapsed().as_secs_f64();
            format!(
                "gloo did not connect all ranks over {address}, and gave up after {elapsed:.1} s: {}",
                with_advice(&reason, size)
            )
        }))?;
        log::debug!("gloo: rank {rank} on {address}");
        let (member, algorithm) = (Member::clone(world.member()), GlooAlgorithm::Ring);
        Ok(Self { mesh, member, address, algorithm, tags: [0; 2], broken: None })
    }

    /// Returns gloo's transport, with the interface and the address of this rank, such as
    /// `tcp over eth0 (10.0.0.1)`.
    pub fn connection(&self) -> String {
        format!("tcp over {}", self.address)
    }

    /// Compares the call of an operation with the calls of the other ranks.
    fn compare(&mut self, transfer: Transfer, announcement: &Announcement) -> Result<(), CommError> {
        let operation = Operation { call: Call::AllGather, element: Element::Byte, ..transfer.operation };
        let mut gather = |mine: &[u8]| {
            let mut all = vec![0; mine.len() * self.member.size];
            self.run(Transfer { operation, channel: ANNOUNCEMENTS, ..transfer }, mine, &mut all)?;
            Ok::<_, CommError>(all)
        };
        if Announcement::are_equal(&gather(&announcement.key())?) {
            return Ok(());
        }
        Announcement::compare(&gather(&announcement.bytes())?)
    }

    /// Runs an operation that every rank runs at this point. If the operation has an announcement, ranks
    /// compare it first. An all-reduce in rank order runs as two calls: in a reduce-scatter, each rank sums
    /// one chunk of all ranks' buffers, and an all-gather then collects the sums. The buffer is padded to
    /// equal chunks.
    fn launch(&mut self, launch: Launch) -> Result<(Wire, Wire), CommError> {
        let Launch { transfer, announcement, buffers: (from, mut to) } = launch;
        if let Some(announcement) = announcement {
            self.compare(transfer, &announcement)?;
        }
        let Operation { call, order, length, .. } = transfer.operation;
        if length == 0 {
            // Nothing to do.
        } else if (call, order) != (Call::AllReduce, Reduction::Ordered) {
            self.run(transfer, from.bytes(), to.bytes_mut())?;
        } else {
            let chunk = to.len().div_ceil(self.member.size);
            to.resize(chunk * self.member.size);
            let mut sum = to.zeros_like(chunk);
            self.run(transfer.by(Call::ReduceScatter), to.bytes(), sum.bytes_mut())?;
            self.run(transfer.by(Call::AllGather), sum.bytes(), to.bytes_mut())?;
        }
        Ok((from, to))
    }

    /// Runs one call. A reduce-scatter runs as gloo's all-to-all, followed by a sum.
    fn run(&mut self, transfer: Transfer, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let Transfer { operation: Operation { call, element, .. }, channel, started } = transfer;
        if let Call::Reduce { .. } = call {
            // gloo reduces in place. On ranks other than the root, the content of `to` is undefined
            // afterwards.
            to.copy_from_slice(from);
        }
        let number = match call {
            Call::AllReduce | Call::Reduce { .. } if self.member.size == 1 => return Ok(()),
            Call::Send { to: peer } | Call::Receive { from: peer } if peer == self.member.rank => {
                return Err(self.member.error(&started, "gloo cannot send a message from a rank to itself"));
            }
            Call::Broadcast { .. } => 0,
            Call::AllReduce => 1,
            Call::Reduce { .. } => 2,
            Call::AllGather => 3,
            Call::Gather { .. } => 4,
            Call::Scatter { .. } => 5,
            Call::AllToAll => 6,
            Call::Barrier => 7,
            Call::Send { .. } => 8,
            Call::Receive { .. } => 9,
            // gloo has no reduce-scatter: an all-to-all and a sum in rank order replace it. Each rank
            // receives only the values that it sums, as in a ring.
            Call::ReduceScatter => {
                let mut chunks = Wire::zeros(element, from.len() / element.width());
                self.run(transfer.by(Call::AllToAll), from, chunks.bytes_mut())?;
                let mut sum = Wire::zeros(element, to.len() / element.width());
                sum.sum_of_chunks(&chunks);
                to.copy_from_slice(sum.bytes());
                return Ok(());
            }
        };
        if let Some(reason) = &self.broken {
            return Err(self.member.broken(
                &started,
                Duration::ZERO,
                format!("the connections broke earlier: {reason}"),
            ));
        }
        // Messages between two ranks share one tag. All ranks make all other calls, so all ranks count the
        // same tags for these calls.
        let is_message = matches!(call, Call::Send { .. } | Call::Receive { .. });
        let announces = matches!(channel, ANNOUNCEMENTS | DETAILS);
        let tag = &mut self.tags[usize::from(announces)];
        *tag = (*tag + u32::from(!is_message)) % ANNOUNCED;
        let tag = if is_message { MESSAGE } else { *tag } | if announces { ANNOUNCED } else { 0 };
        let run = Run {
            call: number,
            root: call.peer().unwrap_or(0) as c_int,
            algorithm: self.algorithm as c_int,
            tag,
            width: element.width(),
            from: from.as_ptr(),
            from_bytes: from.len(),
            to: to.as_mut_ptr(),
            to_bytes: to.len(),
            add: adder_of(element),
        };
        // If gloo reads or writes one part of a buffer for each rank, the buffer has these parts:
        // `Call::check` has checked the buffers of blocking calls, and the other callers make buffers of
        // equal parts.
        //
        // SAFETY: both buffers are borrowed until the call returns, and have one part for each rank if gloo
        // accesses such parts (above). On ranks other than the root, gloo does not access the empty buffer.
        // `adder_of` adds values of this width; bytes are never summed.
        unsafe { self.mesh.call(&run) }.map_err(|reason| {
            self.broken = Some(reason.clone());
            self.member.broken(&started, Member::PEER_REASON_TIMEOUT, reason)
        })
    }
}

/// Adds to gloo's `reason` how many open files a rank needs, if it has too few.
fn with_advice(reason: &str, size: usize) -> String {
    if !reason.contains("Too many open files") {
        return reason.to_owned();
    }
    let peers = size - 1;
    format!(
        "{reason}: a rank opens {peers} connections for collectives, and {peers} more if its small exchanges use gloo; \
         raise the limit of open files (ulimit -n)"
    )
}

/// [`Collective`](crate::Collective) over gloo's TCP connections.
///
/// gloo blocks, so a worker thread runs the operations that [`start`](crate::Collective::start) takes, one
/// bucket after the other. A blocking operation runs on the caller's thread once no other operation is in
/// flight, which saves the handover to the worker. All ranks run the same operations in the same order.
///
/// The sums of a reduce-scatter are always in rank order, because gloo itself has no reduce-scatter.
///
/// `GlooCollective` is `!Send` and `!Sync`, and so is every type that holds it:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::GlooCollective>();
/// ```
///
/// ```compile_fail,E0277
/// fn is_used_by_several_threads<T: Sync>() {}
/// is_used_by_several_threads::<burn_mpi::GlooCollective>();
/// ```
pub type GlooCollective = PendingOps<GlooThread>;

impl GlooCollective {
    /// Connects all ranks of `world` over the network interface `interface`, or, if it is `None`, over an
    /// interface that reaches all ranks. No operation waits longer than `timeout` for another rank. All ranks
    /// must call this function, and all return an error if one rank fails.
    ///
    /// # Errors
    /// If the interface does not exist, or if this rank cannot connect to a rank within `timeout`.
    pub fn connect(
        world: &World,
        interface: Option<&str>,
        algorithm: GlooAlgorithm,
        timeout: Duration,
    ) -> Result<Self, CommError> {
        let thread = GlooThread::connect(world, interface, timeout)?;
        thread.context.lock().algorithm = algorithm;
        Ok(Self::over(world, thread))
    }
}

/// Connections to the other ranks, and a thread that runs operations on them.
pub struct GlooThread {
    member: Rc<Member>,
    context: Arc<Mutex<Context>>,
    /// Sends operations to the thread, which ends when this sender is dropped.
    launches: Sender<Launch>,
    results: Receiver<Result<(Wire, Wire), CommError>>,
    thread: Option<JoinHandle<()>>,
    /// Operations that the thread has not returned yet, in the order of their start.
    in_flight: VecDeque<Finished>,
}

/// Slot for the result of an operation, filled once the operation has run.
type Finished = Rc<Cell<Option<Result<(Wire, Wire), CommError>>>>;

impl GlooThread {
    /// Connects as [`GlooCollective::connect`] does, with the ring algorithm.
    pub(crate) fn connect(
        world: &World,
        interface: Option<&str>,
        timeout: Duration,
    ) -> Result<Self, CommError> {
        let context = Arc::new(Mutex::new(Context::connect(world, interface, timeout)?));
        let (launches, taken) = channel::<Launch>();
        let (reports, results) = channel();
        let shared = Arc::clone(&context);
        let serve = move || {
            for launch in taken {
                if reports.send(shared.lock().launch(launch)).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("gloo".into()).spawn(serve);
        let thread = world.agree(thread.map_err(|error| format!("cannot start gloo's thread: {error}")))?;
        Ok(Self {
            member: Rc::clone(world.member()),
            context,
            launches,
            results,
            thread: Some(thread),
            in_flight: VecDeque::new(),
        })
    }

    /// Stores the results that the thread has returned. If `waits` is true, waits for one result first.
    fn receive(&mut self, mut waits: bool) -> Result<(), CommError> {
        loop {
            let patience = if waits { Duration::MAX } else { Duration::ZERO };
            match self.results.recv_timeout(patience) {
                Ok(result) => {
                    let finished = self.in_flight.pop_front().expect("an operation for each result");
                    finished.set(Some(result));
                    waits = false;
                }
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err(self.thread_is_gone()),
            }
        }
    }

    /// Returns the context, once no operation is in flight. If two threads ran operations at the same time,
    /// the order of the operations could differ between ranks.
    fn idle_context(&mut self) -> Result<MutexGuard<'_, Context>, CommError> {
        while !self.in_flight.is_empty() {
            self.receive(true)?;
        }
        Ok(self.context.lock())
    }

    fn thread_is_gone(&self) -> CommError {
        self.member.error(&self.member.started(NAME, "operation", 0), "gloo's thread has ended too early")
    }
}

/// A request is the slot for the result of an operation. The thread runs each operation to its end, whether
/// or not `test` is called.
impl Link for GlooThread {
    type Request = Finished;

    const NAME: &'static str = NAME;

    const SUMS_IN_ORDER: bool = true;

    const COMPARES_WITHIN: bool = true;

    const PROBES_MESSAGES: bool = false;

    fn member(&self) -> &Member {
        &self.member
    }

    fn connection(&self) -> Option<String> {
        Some(self.context.lock().connection())
    }

    /// Makes the call on the caller's thread, once no other operation is in flight.
    fn call(&mut self, transfer: Transfer, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.idle_context()?.run(transfer, from, to)
    }

    fn start(&mut self, launch: Launch) -> Result<Finished, CommError> {
        let finished = Finished::default();
        if launch.transfer.started.bucket.is_none() {
            // The caller waits for this operation: running it on this thread saves the handover.
            finished.set(Some(self.idle_context()?.launch(launch)));
        } else {
            self.launches.send(launch).map_err(|_| self.thread_is_gone())?;
            self.in_flight.push_back(Rc::clone(&finished));
        }
        Ok(finished)
    }

    fn test(&mut self, finished: &mut Finished) -> Result<Option<(Wire, Wire)>, CommError> {
        self.receive(false)?;
        finished.take().transpose()
    }

    fn pause(&mut self) -> Result<(), CommError> {
        self.receive(!self.in_flight.is_empty())
    }
}

impl Drop for GlooThread {
    /// Ends the thread and waits for it. If operations are still in flight, for example after an error, this
    /// function does not wait: the thread runs on until gloo's timeout. The thread owns all memory that it
    /// uses.
    fn drop(&mut self) {
        self.launches = channel().0;
        if self.in_flight.is_empty()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_open_files_are_explained() {
        let text = with_advice("socket: Too many open files", 64);
        assert!(text.starts_with("socket: Too many open files: a rank opens 63 connections"), "{text}");
        assert_eq!(with_advice("Connection refused", 64), "Connection refused");
    }
}
