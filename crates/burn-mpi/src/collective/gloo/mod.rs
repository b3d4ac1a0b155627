//! A safe layer over the gloo library, through `shim.cc`.
//!
//! gloo transfers bytes over TCP on its own thread and blocks its caller. A context is one mesh
//! of connections between all ranks; after an error every further operation returns an error.

mod add;
pub mod algorithm;
pub mod collective;
mod interface;
mod job;
pub mod primitives;
mod sys;
pub mod version;

use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

use self::add::adder_of;
use self::algorithm::GlooAlgorithm;
use self::sys::*;
use crate::guard::activity;
use crate::{CommError, Wire, World};

/// The transport's name.
const NAME: &str = "gloo";

/// How long a rank whose connection broke waits for its peer to send the reason.
const PEERS_WORD: Duration = Duration::from_secs(3);

/// Connections to all other ranks. All ranks call its operations in the same order, with
/// buffers of equal length, from any thread.
struct Context {
    mesh: Mesh,
    rank: usize,
    size: usize,
    host: String,
    /// Interface and address that this rank listens on.
    address: interface::Address,
    /// Tag of the next operation: messages of two operations are never mixed.
    tag: u32,
    /// The error that broke the connections, if any.
    broken: Option<String>,
}

impl Context {
    /// Connects all ranks of `world` over the named network interface, or over one that reaches
    /// all ranks. No operation waits longer than `timeout` for another rank. All ranks must
    /// call it, and all return an error if one fails.
    pub fn connect(world: &World, interface: Option<&str>, timeout: Duration) -> Result<Self, CommError> {
        let address = interface::choose(world, interface)?;
        let (rank, size) = (world.rank(), world.size());
        let mesh = world.agree(Mesh::listen(&address.ip.to_string(), rank, size, timeout))?;
        let mine = world.agree(mesh.addresses(size))?;
        // The address on which each peer listens for this rank.
        let peers: Vec<u8> = world
            .gather(&mine)?
            .into_iter()
            .flat_map(|of_peer| {
                let length = of_peer.len() / size;
                of_peer[rank * length..(rank + 1) * length].to_vec()
            })
            .collect();
        let started = Instant::now();
        world.agree(mesh.connect(&peers, size).map_err(|reason| {
            let elapsed = started.elapsed().as_secs_f64();
            format!("gloo did not connect all ranks over {address} within {elapsed:.1} s: {reason}")
        }))?;
        log::debug!("gloo: rank {rank} on {address}");
        Ok(Self { mesh, rank, size, host: world.host().to_owned(), address, tag: 0, broken: None })
    }

    /// gloo's transport, with the interface and the address of this rank.
    pub fn connection(&self) -> String {
        format!("tcp over {}", self.address)
    }

    /// Sums `buffer` over all ranks, in place; 16-bit types are rounded after
    /// each addition.
    pub fn all_reduce(&mut self, buffer: &mut Wire, algorithm: GlooAlgorithm) -> Result<(), CommError> {
        let (count, add) = (buffer.len(), self.adder_of(buffer, "all-reduce")?);
        let bytes = buffer.bytes_mut();
        if self.size == 1 || bytes.is_empty() {
            return Ok(());
        }
        self.call("all-reduce", bytes.len(), |mesh, tag, error, room| {
            let (width, algorithm) = (bytes.len() / count, algorithm as c_int);
            // SAFETY: pointer, count and width describe `bytes`, which is borrowed mutably
            // until the call returns; `add` is for its type.
            unsafe {
                let at = bytes.as_mut_ptr();
                burn_mpi_gloo_allreduce(mesh, at, count, width, algorithm, add, tag, error, room)
            }
        })
    }

    /// Sums `buffer`, of any length, over all ranks in rank order, in place.
    pub fn all_reduce_ordered(&mut self, buffer: &mut Wire) -> Result<(), CommError> {
        let length = buffer.len();
        let sum = self.sum_chunk(buffer)?;
        self.all_gather(sum.bytes(), buffer.bytes_mut())?;
        buffer.resize(length);
        Ok(())
    }

    /// The sum over all ranks, in rank order, of this rank's chunk of `buffer`, which is padded
    /// to equal chunks. gloo has no reduce-scatter; this one sends each rank only what it sums,
    /// as a ring would.
    pub fn sum_chunk(&mut self, buffer: &mut Wire) -> Result<Wire, CommError> {
        self.adder_of(buffer, "reduce-scatter")?;
        let chunk = buffer.len().div_ceil(self.size);
        buffer.resize(chunk * self.size);
        let mut chunks = buffer.zeros_like(buffer.len());
        let mut sum = buffer.zeros_like(chunk);
        self.all_to_all(buffer.bytes(), chunks.bytes_mut())?;
        sum.sum_of_chunks(&chunks);
        Ok(sum)
    }

    /// Sums `buffer` over all ranks into rank `root`'s; on other ranks its content is undefined
    /// afterwards.
    pub fn reduce(&mut self, buffer: &mut Wire, root: usize) -> Result<(), CommError> {
        let (count, add) = (buffer.len(), self.adder_of(buffer, "reduce")?);
        let bytes = buffer.bytes_mut();
        if self.size == 1 || bytes.is_empty() {
            return Ok(());
        }
        self.call("reduce", bytes.len(), |mesh, tag, error, room| {
            let (width, root) = (bytes.len() / count, root as c_int);
            // SAFETY: as in `all_reduce`.
            unsafe {
                let at = bytes.as_mut_ptr();
                burn_mpi_gloo_reduce(mesh, at, count, width, root, add, tag, error, room)
            }
        })
    }

    /// Overwrites `buffer` on all ranks with rank `root`'s.
    pub fn broadcast(&mut self, buffer: &mut [u8], root: usize) -> Result<(), CommError> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.call("broadcast", buffer.len(), |mesh, tag, error, room| {
            let (at, bytes) = (buffer.as_mut_ptr(), buffer.len());
            // SAFETY: `buffer` is borrowed mutably until the call returns.
            unsafe { burn_mpi_gloo_broadcast(mesh, at, bytes, root as c_int, tag, error, room) }
        })
    }

    /// Gathers every rank's `mine` into `all`, in rank order.
    pub fn all_gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), CommError> {
        assert_eq!(mine.len() * self.size, all.len(), "room for each rank's bytes");
        if mine.is_empty() {
            return Ok(());
        }
        self.call("all-gather", all.len(), |mesh, tag, error, room| {
            let (from, to) = (mine.as_ptr(), all.as_mut_ptr());
            // SAFETY: `all` holds `size` times `mine`; both are borrowed until
            // the call returns.
            unsafe { burn_mpi_gloo_allgather(mesh, from, mine.len(), to, tag, error, room) }
        })
    }

    /// Gathers every rank's `mine` into rank `root`'s `all`, in rank order.
    pub fn gather(&mut self, mine: &[u8], all: &mut [u8], root: usize) -> Result<(), CommError> {
        let is_root = self.rank == root;
        assert!(!is_root || mine.len() * self.size == all.len(), "room for each rank's bytes");
        if mine.is_empty() {
            return Ok(());
        }
        self.call("gather", mine.len(), |mesh, tag, error, room| {
            let (from, to) = (mine.as_ptr(), all.as_mut_ptr());
            // SAFETY: as in `all_gather`; `all` is accessed on the root only.
            unsafe { burn_mpi_gloo_gather(mesh, from, mine.len(), to, root as c_int, tag, error, room) }
        })
    }

    /// Scatters rank `root`'s `all` in equal parts, one to each rank's `mine`.
    pub fn scatter(&mut self, all: &[u8], mine: &mut [u8], root: usize) -> Result<(), CommError> {
        let is_root = self.rank == root;
        assert!(!is_root || mine.len() * self.size == all.len(), "a part for each rank");
        if mine.is_empty() {
            return Ok(());
        }
        self.call("scatter", mine.len(), |mesh, tag, error, room| {
            let (from, bytes, to) = (all.as_ptr(), mine.len(), mine.as_mut_ptr());
            // SAFETY: as in `gather`, in the other direction.
            unsafe { burn_mpi_gloo_scatter(mesh, from, bytes, to, root as c_int, tag, error, room) }
        })
    }

    /// All-to-all: sends each rank its part of `from` and receives this rank's part of every
    /// rank's `from` into `to`, of the same length.
    pub fn all_to_all(&mut self, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        assert!(from.len() == to.len() && from.len().is_multiple_of(self.size), "equal parts");
        if from.is_empty() {
            return Ok(());
        }
        self.call("all-to-all", from.len(), |mesh, tag, error, room| {
            let (at, to) = (from.as_ptr(), to.as_mut_ptr());
            // SAFETY: both have length `from.len()` and are borrowed until the call returns.
            unsafe { burn_mpi_gloo_alltoall(mesh, at, to, from.len(), tag, error, room) }
        })
    }

    /// Barrier: returns once every rank has called it.
    pub fn barrier(&mut self) -> Result<(), CommError> {
        self.call("barrier", 0, |mesh, tag, error, room| {
            // SAFETY: no buffers but the error's.
            unsafe { burn_mpi_gloo_barrier(mesh, tag, error, room) }
        })
    }

    /// Sends `buffer` to rank `to`, which receives it under the same `tag`.
    pub fn send(&mut self, buffer: &[u8], to: usize, tag: u32) -> Result<(), CommError> {
        self.direct("send", buffer.len(), |mesh, error, room| {
            let (at, bytes) = (buffer.as_ptr(), buffer.len());
            // SAFETY: `buffer` is borrowed until the call returns.
            unsafe { burn_mpi_gloo_send(mesh, at, bytes, to as c_int, tag, error, room) }
        })
    }

    /// Receives what rank `from` sends under the same `tag`, of the same length.
    pub fn receive(&mut self, buffer: &mut [u8], from: usize, tag: u32) -> Result<(), CommError> {
        self.direct("receive", buffer.len(), |mesh, error, room| {
            let (at, bytes) = (buffer.as_mut_ptr(), buffer.len());
            // SAFETY: `buffer` is borrowed mutably until the call returns.
            unsafe { burn_mpi_gloo_recv(mesh, at, bytes, from as c_int, tag, error, room) }
        })
    }

    /// gloo's addition for buffers like `buffer`.
    fn adder_of(&self, buffer: &Wire, operation: &str) -> Result<add::Add, CommError> {
        adder_of(buffer).ok_or_else(|| {
            let reason = "bytes have no sum".into();
            self.error(operation, buffer.bytes().len(), Instant::now(), reason)
        })
    }

    /// The error of an operation that failed, or was never started, for `reason`.
    fn error(&self, operation: &str, bytes: usize, since: Instant, reason: String) -> CommError {
        CommError::Operation {
            rank: self.rank,
            host: self.host.clone(),
            operation: format!("{NAME} {operation}"),
            bytes,
            elapsed: since.elapsed(),
            reason,
        }
    }

    fn call(
        &mut self,
        operation: &str,
        bytes: usize,
        call: impl FnOnce(*mut c_void, u32, *mut c_char, usize) -> c_int,
    ) -> Result<(), CommError> {
        self.tag = self.tag.wrapping_add(1);
        let tag = self.tag;
        self.direct(operation, bytes, |mesh, error, room| call(mesh, tag, error, room))
    }

    /// A call of only two ranks; it does not advance the tag that all ranks count.
    fn direct(
        &mut self,
        operation: &str,
        bytes: usize,
        call: impl FnOnce(*mut c_void, *mut c_char, usize) -> c_int,
    ) -> Result<(), CommError> {
        let started = Instant::now();
        if let Some(reason) = &self.broken {
            if let Some(departure) = activity::departed_peer(Duration::ZERO) {
                return Err(departure.error());
            }
            let reason = format!("the connections broke earlier: {reason}");
            return Err(self.error(operation, bytes, started, reason));
        }
        let mesh = self.mesh.as_ptr();
        checked(|error, room| call(mesh, error, room)).map_err(|reason| {
            self.broken = Some(reason.clone());
            // A connection breaks when its peer exits: then the peer's reason is the one to
            // report.
            match activity::departed_peer(PEERS_WORD) {
                Some(departure) => departure.error(),
                None => self.error(operation, bytes, started, reason),
            }
        })
    }
}
