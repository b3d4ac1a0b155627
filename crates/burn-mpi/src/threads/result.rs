//! Results of calls, from the inputs of all ranks.

use crate::collective::wire::Element;
use crate::{Call, Wire};

/// Writes the result of `call` on `rank` into `to`, from the input of each rank.
pub(super) fn result(call: Call, element: Element, rank: usize, inputs: &[&[u8]], to: &mut [u8]) {
    let part = to.len() / inputs.len();
    match call {
        Call::Send { .. } | Call::Receive { .. } | Call::Barrier => {}
        Call::Broadcast { root } => to.copy_from_slice(inputs[root]),
        Call::AllReduce => sum(element, inputs.iter().copied(), to),
        Call::Reduce { root } if rank != root => {}
        Call::Reduce { .. } => sum(element, inputs.iter().copied(), to),
        Call::ReduceScatter => {
            let mine = rank * to.len()..(rank + 1) * to.len();
            sum(element, inputs.iter().map(|bytes| &bytes[mine.clone()]), to);
        }
        Call::Gather { root } if rank != root => {}
        Call::AllGather | Call::Gather { .. } => {
            to.chunks_exact_mut(part).zip(inputs).for_each(|(to, from)| to.copy_from_slice(from));
        }
        Call::Scatter { root } => to.copy_from_slice(&inputs[root][rank * to.len()..(rank + 1) * to.len()]),
        Call::AllToAll => {
            let mine = rank * part..(rank + 1) * part;
            to.chunks_exact_mut(part)
                .zip(inputs)
                .for_each(|(to, from)| to.copy_from_slice(&from[mine.clone()]));
        }
    }
}

/// Ranks whose buffers `rank` needs for its result of `call`.
pub(super) fn needs(call: Call, rank: usize, other: usize) -> bool {
    match call {
        Call::Broadcast { root } | Call::Scatter { root } => other == root,
        Call::Gather { root } | Call::Reduce { root } => rank == root,
        _ => true,
    }
}

/// The sum in an order that is not that of the ranks, rounded after each addition, as MPI's and gloo's are.
fn sum<'a>(element: Element, terms: impl DoubleEndedIterator<Item = &'a [u8]>, to: &mut [u8]) {
    let total = terms.rev().map(|bytes| {
        let mut wire = Wire::of(element, bytes.len() / element.width());
        wire.bytes_mut().copy_from_slice(bytes);
        wire
    });
    let total = total.reduce(|mut total, term| {
        total.add(&term);
        total
    });
    to.copy_from_slice(total.expect("a job has a rank").bytes());
}
