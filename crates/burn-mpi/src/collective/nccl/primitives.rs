//! NCCL's blocking operations. Those between a root and all, and between all pairs, are groups of
//! its sends and receives.

use super::NAME;
use super::communicator::Communicator;
use crate::collective::wire::Element;
use crate::{Call, CommError, Primitives, World};

/// [`Primitives`] over NCCL, between GPUs. It is `!Send` and `!Sync`:
///
/// ```compile_fail,E0277
/// fn moves_to_another_thread<T: Send>() {}
/// moves_to_another_thread::<burn_mpi::NcclPrimitives>();
/// ```
pub struct NcclPrimitives {
    communicator: Communicator,
}

impl NcclPrimitives {
    /// Connects all ranks of `world`, each with the GPU of number `gpu` or, if it is `None`, with
    /// the first one that no lower rank of its machine uses. All ranks must call it.
    ///
    /// # Errors
    /// As [`NcclCollective::connect`](crate::NcclCollective::connect).
    pub fn connect(world: &World, gpu: Option<usize>) -> Result<Self, CommError> {
        Ok(Self { communicator: Communicator::connect(world, gpu)? })
    }
}

impl Primitives for NcclPrimitives {
    fn transport(&self) -> &str {
        NAME
    }

    fn rank(&self) -> usize {
        self.communicator.rank()
    }

    fn size(&self) -> usize {
        self.communicator.size()
    }

    fn call(&mut self, call: Call, element: Element, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        self.communicator.run(call, element, from, to)
    }
}
