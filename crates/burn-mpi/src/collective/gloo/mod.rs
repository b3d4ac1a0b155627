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
use crate::member::Member;
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

    /// Compares a call with those of the other ranks.
    pub fn compare(&mut self, announcement: Announcement) -> Result<(), CommError> {
        let mine = announcement.into_bytes();
        let mut all = vec![0; mine.len() * self.member.size];
        self.run(Call::AllGather, Element::Byte, &mine, &mut all, true)?;
        Announcement::compare(&all)
    }

    /// Runs the call of a step. An all-reduce in rank order has two parts: each rank sums its chunk of the
    /// buffer, which is padded to equal chunks, and the sums are gathered.
    pub fn run_step(&mut self, step: Step, from: &Wire, to: &mut Wire) -> Result<(), CommError> {
        let element = to.element();
        if step.channel == ANNOUNCEMENTS {
            return self.run(step.call, Element::Byte, from.bytes(), to.bytes_mut(), true);
        }
        if step.operation != Operation::AllReduce(Reduction::Ordered) {
            return self.run(step.call, element, from.bytes(), to.bytes_mut(), false);
        }
        let chunk = to.len().div_ceil(self.member.size);
        to.resize(chunk * self.member.size);
        let mut sum = to.zeros_like(chunk);
        self.run(Call::ReduceScatter, element, to.bytes(), sum.bytes_mut(), false)?;
        self.run(Call::AllGather, element, sum.bytes(), to.bytes_mut(), false)
    }

    /// Runs a call, whose buffers [`Call::check`] has checked, or this crate has made so; or announces one.
    fn run(
        &mut self,
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
        let (number, root) = match call {
            Call::AllReduce | Call::Reduce { .. } if self.member.size == 1 => return Ok(()),
            Call::Broadcast { root } => (0, root),
            Call::AllReduce => (1, 0),
            Call::Reduce { root } => (2, root),
            Call::AllGather => (3, 0),
            Call::Gather { root } => (4, root),
            Call::Scatter { root } => (5, root),
            Call::AllToAll => (6, 0),
            Call::Barrier => (7, 0),
            Call::Send { to } => (8, to),
            Call::Receive { from } => (9, from),
            // All of gloo's but this one, whose sum is in rank order. Each rank is sent only what it sums,
            // as in a ring.
            Call::ReduceScatter => {
                let mut chunks = Wire::of(element, from.len() / element.width());
                self.run(Call::AllToAll, element, from, chunks.bytes_mut(), announces)?;
                let mut sum = Wire::of(element, to.len() / element.width());
                sum.sum_of_chunks(&chunks);
                to.copy_from_slice(sum.bytes());
                return Ok(());
            }
        };
        let (started, bytes) = (self.member.now(), from.len().max(to.len()));
        let name = if announces { "comparison of calls" } else { call.name() };
        let is_message = matches!(call, Call::Send { .. } | Call::Receive { .. });
        if is_message && root == self.member.rank {
            let reason = "gloo has no messages of a rank to itself".into();
            return Err(self.member.error(NAME, name, bytes, started, reason));
        }
        if let Some(reason) = &self.broken {
            if let Some(departure) = self.member.activity.departed_peer(Duration::ZERO) {
                return Err(departure.error());
            }
            let reason = format!("the connections broke earlier: {reason}");
            return Err(self.member.error(NAME, name, bytes, started, reason));
        }
        // Messages of two ranks have a tag of their own; other calls count theirs, which all ranks make.
        let tag = &mut self.tags[usize::from(announces)];
        *tag = (*tag + u32::from(!is_message)) % ANNOUNCED;
        let tag = if is_message { MESSAGE } else { *tag } | if announces { ANNOUNCED } else { 0 };
        let run = Run {
            call: number,
            root: root as c_int,
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
            // A connection breaks when its peer exits: then the peer's reason is the one to
            // report.
            match self.member.activity.departed_peer(PEERS_WORD) {
                Some(departure) => departure.error(),
                None => self.member.error(NAME, name, bytes, started, reason),
            }
        })
    }
}
