//! gloo's blocking operations: all native except reduce-scatter.

use std::rc::Rc;
use std::time::Duration;

use super::algorithm::GlooAlgorithm;
use super::{Context, NAME};
use crate::collective::mpi::MpiWorld;
use crate::guard::activity;
use crate::{CommError, Primitives, Wire, World};

/// Tag of point-to-point messages; there is one at a time.
const TAG: u32 = 0;

/// [`Primitives`] over gloo's TCP connections. It is `!Send` and `!Sync`:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::GlooPrimitives>();
/// ```
pub struct GlooPrimitives {
    context: Context,
    /// The world, which is `!Send`.
    _mpi: Rc<MpiWorld>,
}

impl GlooPrimitives {
    /// Connects all ranks of `world` over the named network interface, or over one
    /// that reaches all ranks. No operation waits longer than `timeout` for another
    /// rank. All ranks must call it, and all return an error if one fails.
    ///
    /// # Errors
    /// If there is no such interface, or a rank is not reached in time.
    pub fn connect(world: &World, interface: Option<&str>, timeout: Duration) -> Result<Self, CommError> {
        let context = Context::connect(world, interface, timeout)?;
        Ok(Self { context, _mpi: Rc::clone(world.mpi()) })
    }

    /// The connections, with the wait for `operation` registered with the guard.
    fn enter(&mut self, operation: &str) -> (&mut Context, activity::Waiting) {
        (&mut self.context, activity::enter(NAME, operation, None))
    }
}

impl Primitives for GlooPrimitives {
    fn transport(&self) -> &str {
        NAME
    }

    fn send(&mut self, buffer: &[u8], to: usize) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("send");
        context.send(buffer, to, TAG)
    }

    fn receive(&mut self, buffer: &mut [u8], from: usize) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("receive");
        context.receive(buffer, from, TAG)
    }

    fn broadcast(&mut self, buffer: &mut [u8], root: usize) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("broadcast");
        context.broadcast(buffer, root)
    }

    fn all_reduce(&mut self, buffer: &mut Wire) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("all-reduce");
        context.all_reduce(buffer, GlooAlgorithm::Ring)
    }

    fn reduce(&mut self, mine: &Wire, sum: &mut Wire, root: usize) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("reduce");
        assert!(mine.len() == sum.len() && mine.is_like(sum), "a sum like its terms");
        sum.bytes_mut().copy_from_slice(mine.bytes());
        context.reduce(sum, root)
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("all-gather");
        context.all_gather(mine, all)
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8], root: usize) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("gather");
        context.gather(mine, all, root)
    }

    fn scatter(&mut self, all: &[u8], mine: &mut [u8], root: usize) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("scatter");
        context.scatter(all, mine, root)
    }

    fn reduce_scatter(&mut self, mine: &Wire, part: &mut Wire) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("reduce-scatter");
        assert!(part.len() * context.size == mine.len() && mine.is_like(part), "one part for each rank");
        *part = context.sum_chunk(&mut mine.clone())?;
        Ok(())
    }

    fn all_to_all(&mut self, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("all-to-all");
        context.all_to_all(from, to)
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        let (context, _waiting) = self.enter("barrier");
        context.barrier()
    }
}
