//! A safe layer over the gloo library, through `shim.cc`.
//!
//! gloo transfers bytes over TCP on its own thread and blocks its caller. A context is one mesh
//! of connections between all ranks; after an error every further operation returns an error.

mod add;
pub mod algorithm;
pub mod collective;
mod interface;
pub mod sys;

use std::ffi::c_int;
use std::time::{Duration, Instant};

use self::add::adder_of;
use self::algorithm::GlooAlgorithm;
use self::sys::{Mesh, Run};
use crate::collective::announced::Announcement;
use crate::collective::pending::{ANNOUNCEMENTS, Step};
use crate::collective::wire::Element;
use crate::member::{Member, Started};
use crate::{Call, CommError, Operation, Reduction, Wire, World};

/// The transport's name.
const NAME: &str = "gloo";

/// Tag of point-to-point messages; there is one at a time.
const MESSAGE: u32 = 0;

/// Set in the tags of announcements, so that they do not meet what they announce.
const ANNOUNCED: u32 = 1 << 31;

/// How long a rank whose connection broke waits for its peer to send the reason.
const PEERS_WORD: Duration = Duration::from_secs(3);

/// Connections to all other ranks. All ranks call its operations in the same order, with
/// buffers of equal length, from any thread.
struct Context {
    mesh: Mesh,
    member: Member,
    /// Interface and address that this rank listens on.
    address: interface::Address,
    algorithm: GlooAlgorithm,
    /// Operations and announcements so far, of which each has a tag of its own: messages of two are never mixed.
    tags: [u32; 2],
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
        let (member, algorithm) = (Member::clone(world.member()), GlooAlgorithm::Ring);
        Ok(Self { mesh, member, address, algorithm, tags: [0; 2], broken: None })
    }

    /// gloo's transport, with the interface and the address of this rank.
    pub fn connection(&self) -> String {
        format!("tcp over {}", self.address)
    }

    /// Compares the call of an operation with those of the other ranks.
    fn compare(&mut self, of: &Started, announcement: Announcement) -> Result<(), CommError> {
        let mine = announcement.into_bytes();
        let mut all = vec![0; mine.len() * self.member.size];
        self.run(of, Call::AllGather, Element::Byte, &mine, &mut all, true)?;
        Announcement::compare(&all)
    }

    /// Runs the call of a step. An all-reduce in rank order has two parts: each rank sums its chunk of the
    /// buffer, which is padded to equal chunks, and the sums are gathered.
    fn run_step(&mut self, of: &Started, step: Step, from: &Wire, to: &mut Wire) -> Result<(), CommError> {
        let element = to.element();
        if step.channel == ANNOUNCEMENTS || step.operation != Operation::AllReduce(Reduction::Ordered) {
            let announces = step.channel == ANNOUNCEMENTS;
            return self.run(of, step.call, element, from.bytes(), to.bytes_mut(), announces);
        }
        let chunk = to.len().div_ceil(self.member.size);
        to.resize(chunk * self.member.size);
        let mut sum = to.zeros_like(chunk);
        self.run(of, Call::ReduceScatter, element, to.bytes(), sum.bytes_mut(), false)?;
        self.run(of, Call::AllGather, element, sum.bytes(), to.bytes_mut(), false)
    }

    /// Runs a call of an operation, whose buffers [`Call::check`] has checked, or this crate has made so; or
    /// announces one.
    fn run(
        &mut self,
        of: &Started,
        call: Call,
        element: Element,
        from: &[u8],
        to: &mut [u8],
        announces: bool,
    ) -> Result<(), CommError> {
        if from.is_empty() && to.is_empty() && call.has_parts() {
            return Ok(());
        }
        if let Call::Reduce { .. } = call {
            // In place; on other ranks than the root its content is undefined afterwards.
            to.copy_from_slice(from);
        }
        let number = match call {
            Call::AllReduce | Call::Reduce { .. } if self.member.size == 1 => return Ok(()),
            Call::Send { to: peer } | Call::Receive { from: peer } if peer == self.member.rank => {
                return Err(self.member.error(of, "gloo has no messages of a rank to itself"));
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
            // All of gloo's but this one, whose sum is in rank order. Each rank is sent only what it sums,
            // as in a ring.
            Call::ReduceScatter => {
                let mut chunks = Wire::of(element, from.len() / element.width());
                self.run(of, Call::AllToAll, element, from, chunks.bytes_mut(), announces)?;
                let mut sum = Wire::of(element, to.len() / element.width());
                sum.sum_of_chunks(&chunks);
                to.copy_from_slice(sum.bytes());
                return Ok(());
            }
        };
        if let Some(reason) = &self.broken {
            return Err(self.failed(of, Duration::ZERO, format!("the connections broke earlier: {reason}")));
        }
        // Messages of two ranks have a tag of their own; other calls count theirs, which all ranks make.
        let is_message = matches!(call, Call::Send { .. } | Call::Receive { .. });
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
        // SAFETY: both buffers are borrowed until the call returns; they have the parts
        // of ranks (`Call::check`), and on other ranks than a root gloo does not access the one that is empty.
        unsafe { self.mesh.call(&run) }.map_err(|reason| {
            self.broken = Some(reason.clone());
            self.failed(of, PEERS_WORD, reason)
        })
    }

    /// The error of an operation that failed for `reason`. A connection breaks when its peer exits: then the
    /// peer's reason is the one to report.
    fn failed(&self, of: &Started, patience: Duration, reason: String) -> CommError {
        match self.member.activity.departed_peer(patience) {
            Some(departure) => departure.error(),
            None => self.member.error(of, reason),
        }
    }
}
