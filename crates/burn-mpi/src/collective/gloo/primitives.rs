//! gloo's blocking operations: all native except reduce-scatter.

use std::rc::Rc;
use std::time::Duration;

use super::algorithm::GlooAlgorithm;
use super::{Context, NAME};
use crate::collective::wire::Element;
use crate::member::Member;
use crate::{Call, CommError, Primitives, World};

/// [`Primitives`] over gloo's TCP connections. It is `!Send` and `!Sync`:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::GlooPrimitives>();
/// ```
pub struct GlooPrimitives {
    context: Context,
    member: Rc<Member>,
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
        Ok(Self { context, member: Rc::clone(world.member()) })
    }
}

impl Primitives for GlooPrimitives {
    fn transport(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.member.rank
    }

    fn size(&self) -> usize {
        self.member.size
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        let _waiting = self.member.begin(NAME, call, element, from, to)?;
        self.context.run(call, element, from, to, GlooAlgorithm::Ring)
    }
}
