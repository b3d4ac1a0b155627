//! Where the buffers of each operation lie in one block of memory, on host and GPU alike.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use super::communicator::Communicator;
use super::cuda::DevicePointer;
use super::library::{Nccl, SUM, datatype};
use crate::Call;
use crate::collective::wire::Element;

/// The layout of a block, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub length: usize,
    /// What is copied to the GPU.
    pub brings: Range<usize>,
    /// What is copied back.
    pub returns: Range<usize>,
}

impl Layout {
    /// The layout of the block of `rank` of `size` for a call on `count` elements of each rank, or of each
    /// pair of ranks. Operations are in place wherever NCCL allows it: a part of the block is then both read
    /// and written.
    pub fn of(call: Call, count: usize, rank: usize, size: usize) -> Self {
        let (all, none) = (0..count * size, 0..0);
        let part = |number: usize| number * count..(number + 1) * count;
        let only = |at: bool, range: Range<usize>| if at { range } else { 0..0 };
        let (parts, brings, returns) = match call {
            Call::AllReduce | Call::Barrier => (1, part(0), part(0)),
            Call::Reduce { root } => (1, part(0), only(rank == root, part(0))),
            Call::Broadcast { root } => (1, only(rank == root, part(0)), only(rank != root, part(0))),
            Call::ReduceScatter => (size, all, part(rank)),
            Call::AllGather => (size, part(rank), all),
            Call::AllToAll => (2 * size, all, count * size..2 * count * size),
            // This rank's part follows those of all ranks.
            Call::Gather { root } => (size + 1, part(size), only(rank == root, all)),
            Call::Scatter { root } => (size + 1, only(rank == root, all), part(size)),
            Call::Send { .. } => (1, part(0), none),
            Call::Receive { .. } => (1, none, part(0)),
        };
        Self { length: parts * count, brings, returns }
    }
}

impl Communicator {
    /// Calls NCCL for `call` on the block at `base`.
    ///
    /// # Safety
    /// The context of the GPU is current, the communicator is not ended, and `base` is the address
    /// of a block of [`Layout::of`]'s length that stays allocated until the stream has passed this
    /// point.
    pub(super) unsafe fn enqueue(
        &self,
        call: Call,
        element: Element,
        count: usize,
        base: DevicePointer,
    ) -> Result<(), String> {
        let (nccl, comm, stream, kind) = (self.nccl, self.comm(), self.stream, datatype(element));
        let (rank, size) = (self.member.rank, self.member.size);
        let at = |part: usize| (base as usize + part * count * element.width()) as *mut c_void;
        let one = |code: c_int, name: &str| nccl.check(code, name);
        // SAFETY: as the caller promises; a part of the block is the whole block of a message.
        let message =
            |call, part| unsafe { self.enqueue(call, element, count, at(part).addr() as DevicePointer) };
        let parts = |root| if rank == root { 0..size } else { 0..0 };
        // SAFETY: all addresses are inside the block, with room for `count` elements after each
        // (times `size` where NCCL reads or writes those of all ranks), as `Layout::of` has them;
        // stream and communicator are this one's.
        unsafe {
            match call {
                Call::AllReduce | Call::Barrier => {
                    one((nccl.all_reduce)(at(0), at(0), count, kind, SUM, comm, stream), "ncclAllReduce")
                }
                Call::Reduce { root } => {
                    let root = root as c_int;
                    one((nccl.reduce)(at(0), at(0), count, kind, SUM, root, comm, stream), "ncclReduce")
                }
                Call::Broadcast { root } => {
                    let root = root as c_int;
                    one((nccl.broadcast)(at(0), at(0), count, kind, root, comm, stream), "ncclBroadcast")
                }
                Call::ReduceScatter => {
                    let code = (nccl.reduce_scatter)(at(0), at(rank), count, kind, SUM, comm, stream);
                    one(code, "ncclReduceScatter")
                }
                Call::AllGather => {
                    one((nccl.all_gather)(at(rank), at(0), count, kind, comm, stream), "ncclAllGather")
                }
                Call::Send { to } => {
                    one((nccl.send)(at(0), count, kind, to as c_int, comm, stream), "ncclSend")
                }
                Call::Receive { from } => {
                    one((nccl.receive)(at(0), count, kind, from as c_int, comm, stream), "ncclRecv")
                }
                Call::AllToAll => grouped(nccl, || {
                    (0..size).try_for_each(|peer| {
                        message(Call::Send { to: peer }, peer)?;
                        message(Call::Receive { from: peer }, size + peer)
                    })
                }),
                Call::Gather { root } => grouped(nccl, || {
                    message(Call::Send { to: root }, size)?;
                    parts(root).try_for_each(|from| message(Call::Receive { from }, from))
                }),
                Call::Scatter { root } => grouped(nccl, || {
                    message(Call::Receive { from: root }, size)?;
                    parts(root).try_for_each(|to| message(Call::Send { to }, to))
                }),
            }
        }
    }
}

/// Makes calls in one group, which is ended even if one fails. A group runs its messages at once; one after
/// the other, ranks would wait for each other.
fn grouped(nccl: &Nccl, calls: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    // SAFETY: groups may be begun at any time, and are ended below.
    nccl.check(unsafe { (nccl.group_start)() }, "ncclGroupStart")?;
    let made = calls();
    // SAFETY: the group was begun above.
    let ended = nccl.check(unsafe { (nccl.group_end)() }, "ncclGroupEnd");
    made.and(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_is_inside_the_block() {
        let root = 1;
        for call in [
            Call::AllReduce,
            Call::Reduce { root },
            Call::Broadcast { root },
            Call::ReduceScatter,
            Call::AllGather,
            Call::AllToAll,
            Call::Gather { root },
            Call::Scatter { root },
            Call::Send { to: root },
            Call::Receive { from: root },
        ] {
            for size in 2..5 {
                for rank in 0..size {
                    let Layout { length, brings, returns } = Layout::of(call, 7, rank, size);
                    assert!(brings.end <= length && returns.end <= length, "{call:?} on {rank} of {size}");
                }
            }
        }
    }

    #[test]
    fn a_rank_copies_only_what_it_sends_and_what_it_gets() {
        let layout = |call: Call, rank| Layout::of(call, 5, rank, 3);
        assert_eq!(layout(Call::ReduceScatter, 2), Layout { length: 15, brings: 0..15, returns: 10..15 });
        assert_eq!(layout(Call::AllGather, 1), Layout { length: 15, brings: 5..10, returns: 0..15 });
        assert_eq!(layout(Call::Gather { root: 0 }, 2), Layout { length: 20, brings: 15..20, returns: 0..0 });
        assert_eq!(
            layout(Call::Scatter { root: 2 }, 2),
            Layout { length: 20, brings: 0..15, returns: 15..20 }
        );
        assert_eq!(layout(Call::Broadcast { root: 2 }, 2), Layout { length: 5, brings: 0..5, returns: 0..0 });
    }
}
