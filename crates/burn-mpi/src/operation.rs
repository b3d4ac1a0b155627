//! Names of the operations that a rank waits in, as one number that guards exchange.

use std::sync::{Mutex, PoisonError};

/// Operations that a rank can wait in. The last three are point-to-point, or the launch of a
/// collective that is waited for later; the others are collective and counted: ranks in the same
/// one have the same count. An unknown name counts as the last collective.
const OPERATIONS: [&str; 16] = [
    "all-reduce",
    "all-gather",
    "broadcast",
    "barrier",
    "all-to-all",
    "reduce",
    "gather",
    "scatter",
    "reduce-scatter",
    "communicator copy",
    "sum",
    "communicator start",
    "collective",
    "send",
    "receive",
    "launch",
];
const COLLECTIVES: usize = 13;

/// Transports by the number used in guard messages; those of other crates follow these, in the
/// order of their first wait. A list of names, which ranks that are threads may share.
static TRANSPORTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
const OWN_TRANSPORTS: [&str; 4] = ["mpi", "gloo", "nccl", "memory"];

/// The number of an operation.
pub(crate) fn number_of(operation: &str) -> usize {
    OPERATIONS.iter().position(|name| *name == operation).unwrap_or(COLLECTIVES - 1)
}

/// Whether all ranks enter this operation together.
pub(crate) fn is_collective(operation: usize) -> bool {
    operation < COLLECTIVES
}

/// An operation of `transport`, on `bucket` if it has one, as one number.
pub(crate) fn encode(transport: &str, operation: usize, bucket: Option<usize>) -> u64 {
    let transport = number_of_transport(transport) as u64;
    // The largest bucket number is that of blocking calls, and has no name.
    let bucket = bucket.map_or(0, |bucket| (bucket as u64).wrapping_add(1));
    operation as u64 | transport << 8 | bucket << 16
}

/// The number of a transport, in one byte.
fn number_of_transport(transport: &str) -> usize {
    if let Some(own) = OWN_TRANSPORTS.iter().position(|name| *name == transport) {
        return own;
    }
    let mut others = TRANSPORTS.lock().unwrap_or_else(PoisonError::into_inner);
    let at = others.iter().position(|name| name == transport).unwrap_or_else(|| {
        others.push(transport.to_owned());
        others.len() - 1
    });
    (OWN_TRANSPORTS.len() + at).min(0xff)
}

fn name_of_transport(number: usize) -> String {
    if let Some(own) = OWN_TRANSPORTS.get(number) {
        return (*own).to_owned();
    }
    let others = TRANSPORTS.lock().unwrap_or_else(PoisonError::into_inner);
    // A peer's transport that this rank has not used yet.
    others.get(number - OWN_TRANSPORTS.len()).map_or_else(|| "another transport's".into(), Clone::clone)
}

/// The operation's name, such as `mpi all-reduce of bucket 2`.
pub(crate) fn describe(what: u64) -> String {
    let transport = name_of_transport((what >> 8 & 0xff) as usize);
    let operation = OPERATIONS.get((what & 0xff) as usize).unwrap_or(&"operation");
    match what >> 16 {
        0 => format!("{transport} {operation}"),
        bucket => format!("{transport} {operation} of bucket {}", bucket - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_described_with_their_transport_and_bucket() {
        assert_eq!(describe(encode("mpi", 0, Some(2))), "mpi all-reduce of bucket 2");
        assert_eq!(describe(encode("gloo", 3, None)), "gloo barrier");
        assert_eq!(describe(encode("nccl", 8, None)), "nccl reduce-scatter");
        assert_eq!((OPERATIONS[COLLECTIVES - 1], OPERATIONS[COLLECTIVES]), ("collective", "send"));
    }
}
