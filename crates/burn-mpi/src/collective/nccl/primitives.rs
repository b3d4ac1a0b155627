//! NCCL's blocking operations. Those between a root and all, and between all pairs, are groups of
//! its sends and receives.

use std::time::Instant;

use super::NAME;
use super::call::Call;
use super::collective::in_place;
use super::communicator::Communicator;
use super::library::Datatype;
use crate::guard::activity;
use crate::{CommError, Primitives, Wire, World};

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

    /// Runs `call` on `count` elements of each rank: `mine` are this rank's, and the result is
    /// copied into `into`.
    fn call(
        &mut self,
        operation: &str,
        call: Call,
        datatype: Datatype,
        count: usize,
        mine: &[u8],
        into: &mut [u8],
    ) -> Result<(), CommError> {
        let _waiting = activity::enter(NAME, operation, None);
        if count == 0 {
            return Ok(());
        }
        let (started, communicator) = (Instant::now(), &mut self.communicator);
        let result = communicator.start(call, datatype, count, mine).and_then(|pending| {
            communicator.wait(&pending)?;
            communicator.collect(pending, into);
            Ok(())
        });
        result.map_err(|reason| communicator.error(operation, mine.len(), started, reason))
    }

    fn size(&self) -> usize {
        self.communicator.size()
    }

    fn is(&self, root: usize) -> bool {
        self.communicator.rank() == root
    }

    fn check_sum(&self, operation: &str, buffer: &Wire) -> Result<(), CommError> {
        match buffer.has_sum() {
            true => Ok(()),
            false => {
                let reason = "bytes have no sum".into();
                Err(self.communicator.mpi().error_over(
                    NAME,
                    operation,
                    buffer.len(),
                    Default::default(),
                    reason,
                ))
            }
        }
    }
}

impl Primitives for NcclPrimitives {
    fn transport(&self) -> &str {
        NAME
    }

    fn send(&mut self, buffer: &[u8], to: usize) -> Result<(), CommError> {
        self.call("send", Call::Send { to }, Datatype::BYTE, buffer.len(), buffer, &mut [])
    }

    fn receive(&mut self, buffer: &mut [u8], from: usize) -> Result<(), CommError> {
        self.call("receive", Call::Receive { from }, Datatype::BYTE, buffer.len(), &[], buffer)
    }

    fn broadcast(&mut self, buffer: &mut [u8], root: usize) -> Result<(), CommError> {
        let (call, count) = (Call::Broadcast { root }, buffer.len());
        match self.is(root) {
            true => self.call("broadcast", call, Datatype::BYTE, count, buffer, &mut []),
            false => self.call("broadcast", call, Datatype::BYTE, count, &[], buffer),
        }
    }

    fn all_reduce(&mut self, buffer: &mut Wire) -> Result<(), CommError> {
        self.check_sum("all-reduce", buffer)?;
        let _waiting = activity::enter(NAME, "all-reduce", None);
        in_place(&mut self.communicator, "all-reduce", Call::AllReduce, buffer)
    }

    fn reduce(&mut self, mine: &Wire, sum: &mut Wire, root: usize) -> Result<(), CommError> {
        assert!(mine.len() == sum.len() && mine.is_like(sum), "a sum like its terms");
        self.check_sum("reduce", mine)?;
        let into = if self.is(root) { sum.bytes_mut() } else { &mut [] };
        self.call("reduce", Call::Reduce { root }, Datatype::of(mine), mine.len(), mine.bytes(), into)
    }

    fn all_gather(&mut self, mine: &[u8], all: &mut [u8]) -> Result<(), CommError> {
        assert_eq!(mine.len() * self.size(), all.len(), "room for each rank's bytes");
        self.call("all-gather", Call::AllGather, Datatype::BYTE, mine.len(), mine, all)
    }

    fn gather(&mut self, mine: &[u8], all: &mut [u8], root: usize) -> Result<(), CommError> {
        let is_root = self.is(root);
        assert!(!is_root || mine.len() * self.size() == all.len(), "room for each rank's bytes");
        let into = if is_root { all } else { &mut [] };
        self.call("gather", Call::Gather { root }, Datatype::BYTE, mine.len(), mine, into)
    }

    fn scatter(&mut self, all: &[u8], mine: &mut [u8], root: usize) -> Result<(), CommError> {
        let is_root = self.is(root);
        assert!(!is_root || mine.len() * self.size() == all.len(), "a part for each rank");
        let from = if is_root { all } else { &[] };
        self.call("scatter", Call::Scatter { root }, Datatype::BYTE, mine.len(), from, mine)
    }

    fn reduce_scatter(&mut self, mine: &Wire, part: &mut Wire) -> Result<(), CommError> {
        assert!(part.len() * self.size() == mine.len() && mine.is_like(part), "one part for each rank");
        self.check_sum("reduce-scatter", mine)?;
        let (datatype, count) = (Datatype::of(mine), part.len());
        self.call("reduce-scatter", Call::ReduceScatter, datatype, count, mine.bytes(), part.bytes_mut())
    }

    fn all_to_all(&mut self, from: &[u8], to: &mut [u8]) -> Result<(), CommError> {
        assert!(from.len() == to.len() && from.len().is_multiple_of(self.size()), "equal parts");
        let count = from.len() / self.size();
        self.call("all-to-all", Call::AllToAll, Datatype::BYTE, count, from, to)
    }

    fn barrier(&mut self) -> Result<(), CommError> {
        let mut none = [0];
        self.call("barrier", Call::AllReduce, Datatype::BYTE, 1, &[0], &mut none)
    }
}
