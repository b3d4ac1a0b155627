//! Operations queued to gloo's thread, and how it runs them.

use std::time::Instant;

use super::Context;
use super::algorithm::GlooAlgorithm;
use crate::collective::ordered::chunk_range;
use crate::{CommError, Operation, Reduction, Wire};

/// A bucket queued to the thread.
pub(super) struct Job {
    pub bucket: usize,
    pub operation: Operation,
    pub buffer: Wire,
    pub started: Instant,
}

impl Job {
    /// Runs the operation, and names the bucket in its error.
    pub fn run(self, context: &mut Context, algorithm: GlooAlgorithm) -> Result<Wire, CommError> {
        let Self { bucket, operation, buffer, started } = self;
        run(context, operation, buffer, algorithm).map_err(|error| of_bucket(error, bucket, started))
    }
}

/// Runs an operation that every rank runs at this point.
fn run(
    context: &mut Context,
    operation: Operation,
    mut buffer: Wire,
    algorithm: GlooAlgorithm,
) -> Result<Wire, CommError> {
    match operation {
        Operation::AllReduce(how) => {
            all_reduce(context, &mut buffer, how, algorithm)?;
            Ok(buffer)
        }
        Operation::ReduceScatter(_) => {
            let mine = chunk_range(buffer.len(), context.size, context.rank);
            let mut sum = context.sum_chunk(&mut buffer)?;
            sum.resize(mine.len());
            Ok(sum)
        }
        Operation::AllGather { length } => {
            let chunk = length.div_ceil(context.size);
            buffer.resize(chunk);
            let mut all = buffer.zeros_like(chunk * context.size);
            context.all_gather(buffer.bytes(), all.bytes_mut())?;
            all.resize(length);
            Ok(all)
        }
    }
}

/// Sums `buffer` over all ranks, in place.
pub(super) fn all_reduce(
    context: &mut Context,
    buffer: &mut Wire,
    how: Reduction,
    algorithm: GlooAlgorithm,
) -> Result<(), CommError> {
    match how {
        Reduction::Native => context.all_reduce(buffer, algorithm),
        Reduction::Ordered => context.all_reduce_ordered(buffer),
    }
}

/// Adds the bucket to an error, and the time since it was started.
fn of_bucket(error: CommError, bucket: usize, started: Instant) -> CommError {
    match error {
        CommError::Operation { rank, host, operation, bytes, reason, .. } => CommError::Operation {
            rank,
            host,
            operation: format!("{operation} of bucket {bucket}"),
            bytes,
            elapsed: started.elapsed(),
            reason,
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn errors_name_their_bucket() {
        let error = CommError::Operation {
            rank: 1,
            host: "node0".into(),
            operation: "gloo all-reduce".into(),
            bytes: 4,
            elapsed: Duration::ZERO,
            reason: "Timed out".into(),
        };
        let text = of_bucket(error, 2, Instant::now()).to_string();
        assert!(text.starts_with("rank 1 on node0: gloo all-reduce of bucket 2 of 4 bytes failed"), "{text}");
    }
}
