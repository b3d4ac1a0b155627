//! [`Seat`]: if ranks are threads of one process, each thread has a seat, through which it calls the hub that
//! connects the threads. In a simulation, the hub gives the ranks turns, and time is virtual. This module
//! also defines the transport through memory.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::NAME;
use super::hub::Hub;
use super::state::{Ticket, Wanted};
use crate::collective::compared::Checked;
use crate::collective::pending::{CHANNELS, Launch, Link, PendingOps, Transfer};
use crate::member::Member;
use crate::process::identify;
use crate::{Call, Collective, CommError, Primitives, Wire, World};

/// A rank's access to the hub. It stays on the rank's thread.
#[derive(Clone)]
pub(crate) struct Seat {
    hub: Arc<Hub>,
    rank: usize,
    /// Number of channels that this rank has opened. A channel is an independent sequence of calls. All ranks
    /// open the same channels in the same order.
    channels: Rc<Cell<u64>>,
}

impl Seat {
    /// Makes the seat of `rank`, and waits for its first turn.
    pub fn take(hub: Arc<Hub>, rank: usize) -> Self {
        hub.begin(rank);
        identify(&hub.members[rank], true);
        Self { hub, rank, channels: Rc::default() }
    }

    pub fn member(&self) -> &Member {
        &self.hub.members[self.rank]
    }

    /// Sleeps: in virtual time if ranks take turns, otherwise in real time.
    pub fn sleep(&self, time: Duration) {
        self.hub.sleep(self.rank, time);
    }

    /// Opens new channels. All ranks must call it.
    fn link(&self) -> MemoryLink {
        let first = self.channels.get();
        self.channels.set(first + CHANNELS as u64);
        MemoryLink { seat: self.clone(), first }
    }

    /// Returns the blocking operations, on separate channels. All ranks must call it.
    pub fn operations(&self) -> Box<dyn Primitives> {
        Box::new(Checked::over(self.link()))
    }

    /// Returns a collective over all ranks, on separate channels. All ranks must call it.
    pub fn collective(&self, world: &World) -> Box<dyn Collective> {
        Box::new(PendingOps::over(world, self.link()))
    }

    /// Checks that no other rank has a parameter with one of these graph nodes.
    ///
    /// # Errors
    /// [`CommError::Module`] names this rank and another rank that has such a parameter.
    pub fn check_nodes(&self, nodes: impl Iterator<Item = u64>) -> Result<(), CommError> {
        match self.hub.other_owner(self.rank, nodes) {
            None => Ok(()),
            Some(other) => Err(CommError::Module(format!(
                "ranks {} and {} are threads and share the autodiff graph of its parameters, which the first backward \
                 consumes; build the module inside the function that every rank runs",
                other.min(self.rank),
                other.max(self.rank)
            ))),
        }
    }
}

/// The transport through memory, as a rank uses it.
struct MemoryLink {
    seat: Seat,
    /// The first of this link's channels in the hub.
    first: u64,
}

impl Link for MemoryLink {
    /// A call's ticket and its buffers. The buffers are `None` once the call is complete.
    type Request = (Ticket, Option<(Wire, Wire)>);

    const NAME: &'static str = NAME;

    fn member(&self) -> &Member {
        self.seat.member()
    }

    fn call(&mut self, transfer: Transfer, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let (Seat { hub, rank, .. }, Transfer { operation, channel, .. }) = (&self.seat, transfer);
        match operation.call {
            Call::Send { to } => hub.send(*rank, to, from),
            Call::Receive { from } => hub.receive(*rank, from, to),
            _ => {
                let ticket = hub.post(*rank, self.first + channel as u64, operation, from, to)?;
                hub.wait(*rank, Wanted::Call(ticket))?;
                hub.take(*rank, ticket, to);
                Ok(())
            }
        }
    }

    fn start(&mut self, launch: Launch) -> Result<Self::Request, CommError> {
        let Seat { hub, rank, .. } = &self.seat;
        let Launch { transfer: Transfer { operation, channel, .. }, buffers: (from, to), .. } = launch;
        let channel = self.first + channel as u64;
        let ticket = hub.post(*rank, channel, operation, from.bytes(), to.bytes())?;
        Ok((ticket, Some((from, to))))
    }

    fn test(&mut self, request: &mut Self::Request) -> Result<Option<(Wire, Wire)>, CommError> {
        let (Seat { hub, rank, .. }, (ticket, buffers)) = (&self.seat, request);
        let has_arrived = hub.test(*rank, *ticket)?;
        let mut buffers = buffers.take_if(|_| has_arrived);
        if let Some((_, to)) = &mut buffers {
            hub.take(*rank, *ticket, to.bytes_mut());
        }
        Ok(buffers)
    }

    fn pause(&mut self) -> Result<(), CommError> {
        self.seat.hub.wait(self.seat.rank, Wanted::Any(self.first))
    }
}
