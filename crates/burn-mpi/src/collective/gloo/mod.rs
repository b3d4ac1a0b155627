//! A safe layer over the gloo library, through `shim.cc`.
//!
//! gloo transfers bytes over TCP on its own thread and blocks its caller. A context is one mesh
//! of connections between all ranks; after an error every further operation returns an error.

mod add;
pub mod algorithm;
pub mod collective;
mod interface;
pub mod primitives;
mod sys;
pub mod version;

use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

use self::add::adder_of;
use self::algorithm::GlooAlgorithm;
use self::sys::*;
use crate::collective::wire::Element;
use crate::member::Member;
use crate::{Call, CommError, Wire, World};

/// The transport's name.
const NAME: &str = "gloo";

/// Tag of point-to-point messages; there is one at a time.
const MESSAGE: u32 = 0;

/// How long a rank whose connection broke waits for its peer to send the reason.
const PEERS_WORD: Duration = Duration::from_secs(3);

/// Connections to all other ranks. All ranks call its operations in the same order, with
/// buffers of equal length, from any thread.
struct Context {
    mesh: Mesh,
    member: Member,
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
        Ok(Self { mesh, member: Member::clone(world.member()), address, tag: 0, broken: None })
    }

    /// gloo's transport, with the interface and the address of this rank.
    pub fn connection(&self) -> String {
        format!("tcp over {}", self.address)
    }

    /// Sums `buffer` over all ranks, in place; 16-bit types are rounded after
    /// each addition.
    pub fn all_reduce(&mut self, buffer: &mut Wire, algorithm: GlooAlgorithm) -> Result<(), CommError> {
        match buffer.len() {
            0 => Ok(()),
            _ => {
                let element = buffer.element();
                self.run(Call::AllReduce, element, &[], buffer.bytes_mut(), algorithm)
            }
        }
    }

    /// Sums `buffer`, of any length, over all ranks in rank order, in place.
    pub fn all_reduce_ordered(&mut self, buffer: &mut Wire) -> Result<(), CommError> {
        let length = buffer.len();
        let sum = self.sum_chunk(buffer)?;
        self.all_gather(&sum, buffer)?;
        buffer.resize(length);
        Ok(())
    }

    /// The sum over all ranks, in rank order, of this rank's chunk of `buffer`, which is padded
    /// to equal chunks. gloo has no reduce-scatter; this one sends each rank only what it sums,
    /// as a ring would.
    pub fn sum_chunk(&mut self, buffer: &mut Wire) -> Result<Wire, CommError> {
        let chunk = buffer.len().div_ceil(self.member.size);
        buffer.resize(chunk * self.member.size);
        let mut chunks = buffer.zeros_like(buffer.len());
        let mut sum = buffer.zeros_like(chunk);
        if chunk > 0 {
            let algorithm = GlooAlgorithm::Ring;
            self.run(Call::AllToAll, buffer.element(), buffer.bytes(), chunks.bytes_mut(), algorithm)?;
        }
        sum.sum_of_chunks(&chunks);
        Ok(sum)
    }

    /// Gathers every rank's `mine` into `all`, in rank order.
    pub fn all_gather(&mut self, mine: &Wire, all: &mut Wire) -> Result<(), CommError> {
        match mine.len() {
            0 => Ok(()),
            _ => {
                let (element, algorithm) = (mine.element(), GlooAlgorithm::Ring);
                self.run(Call::AllGather, element, mine.bytes(), all.bytes_mut(), algorithm)
            }
        }
    }

    /// Runs a call, whose lengths [`Primitives`](crate::Primitives) have checked.
    fn run(
        &mut self,
        call: Call,
        element: Element,
        from: &[u8],
        to: &mut [u8],
        algorithm: GlooAlgorithm,
    ) -> Result<(), CommError> {
        let (member, bytes) = (&self.member, from.len().max(to.len()));
        let Some(add) = adder_of(element).filter(|_| call.sums()).or(adder_of(Element::F32)) else {
            unreachable!("f32 has a sum")
        };
        let (width, count) = (element.width(), to.len() / element.width());
        let is_alone = member.size == 1;
        match call {
            Call::AllReduce if is_alone => return Ok(()),
            Call::Reduce { root } => {
                // On other ranks than the root its content is undefined afterwards.
                to.copy_from_slice(from);
                if is_alone {
                    return Ok(());
                }
                let root = root as c_int;
                return self.ordered(call, bytes, |mesh, tag, error, room| {
                    // SAFETY: as below.
                    unsafe {
                        burn_mpi_gloo_reduce(mesh, to.as_mut_ptr(), count, width, root, add, tag, error, room)
                    }
                });
            }
            // All of gloo's but this one: the sum of this rank's part.
            Call::ReduceScatter => {
                let mut chunks = Wire::of(element, from.len() / width);
                self.run(Call::AllToAll, element, from, chunks.bytes_mut(), algorithm)?;
                let mut sum = Wire::of(element, count);
                sum.sum_of_chunks(&chunks);
                to.copy_from_slice(sum.bytes());
                return Ok(());
            }
            _ => {}
        }
        let (mine, rest) = ((from.as_ptr(), from.len()), (to.as_mut_ptr(), to.len()));
        let shim = |mesh, tag, error, room| {
            // SAFETY: pointers and lengths describe both buffers, which are borrowed until the call returns;
            // by the contract of `Primitives::call` one of them holds a part for each rank where gloo reads
            // or writes such parts, and on other ranks than a root it does not access the one that is empty.
            // `add` is for the type of a buffer that is summed.
            unsafe {
                match call {
                    Call::AllReduce => {
                        let how = algorithm as c_int;
                        burn_mpi_gloo_allreduce(mesh, rest.0, count, width, how, add, tag, error, room)
                    }
                    Call::Broadcast { root } => {
                        burn_mpi_gloo_broadcast(mesh, rest.0, rest.1, root as c_int, tag, error, room)
                    }
                    Call::AllGather => {
                        burn_mpi_gloo_allgather(mesh, mine.0, mine.1, rest.0, tag, error, room)
                    }
                    Call::Gather { root } => {
                        let root = root as c_int;
                        burn_mpi_gloo_gather(mesh, mine.0, mine.1, rest.0, root, tag, error, room)
                    }
                    Call::Scatter { root } => {
                        let root = root as c_int;
                        burn_mpi_gloo_scatter(mesh, mine.0, rest.1, rest.0, root, tag, error, room)
                    }
                    Call::AllToAll => burn_mpi_gloo_alltoall(mesh, mine.0, rest.0, mine.1, tag, error, room),
                    Call::Send { to } => {
                        burn_mpi_gloo_send(mesh, mine.0, mine.1, to as c_int, MESSAGE, error, room)
                    }
                    Call::Receive { from } => {
                        burn_mpi_gloo_recv(mesh, rest.0, rest.1, from as c_int, MESSAGE, error, room)
                    }
                    _ => burn_mpi_gloo_barrier(mesh, tag, error, room),
                }
            }
        };
        match call {
            Call::Send { .. } | Call::Receive { .. } => {
                self.direct(call, bytes, |mesh, error, room| shim(mesh, 0, error, room))
            }
            _ => self.ordered(call, bytes, shim),
        }
    }

    /// A call of all ranks, under the next tag.
    fn ordered(
        &mut self,
        call: Call,
        bytes: usize,
        shim: impl FnOnce(*mut c_void, u32, *mut c_char, usize) -> c_int,
    ) -> Result<(), CommError> {
        self.tag = self.tag.wrapping_add(1);
        let tag = self.tag;
        self.direct(call, bytes, |mesh, error, room| shim(mesh, tag, error, room))
    }

    /// A call of only two ranks; it does not advance the tag that all ranks count.
    fn direct(
        &mut self,
        call: Call,
        bytes: usize,
        shim: impl FnOnce(*mut c_void, *mut c_char, usize) -> c_int,
    ) -> Result<(), CommError> {
        let started = self.member.now();
        if let Some(reason) = &self.broken {
            if let Some(departure) = self.member.activity.departed_peer(Duration::ZERO) {
                return Err(departure.error());
            }
            let reason = format!("the connections broke earlier: {reason}");
            return Err(self.member.error(NAME, call.name(), bytes, started, reason));
        }
        let mesh = self.mesh.as_ptr();
        checked(|error, room| shim(mesh, error, room)).map_err(|reason| {
            self.broken = Some(reason.clone());
            // A connection breaks when its peer exits: then the peer's reason is the one to
            // report.
            match self.member.activity.departed_peer(PEERS_WORD) {
                Some(departure) => departure.error(),
                None => self.member.error(NAME, call.name(), bytes, started, reason),
            }
        })
    }
}
