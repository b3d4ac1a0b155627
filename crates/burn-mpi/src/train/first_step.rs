//! Checks in the first steps that all ranks have the same batch size.
//!
//! Without this check, ranks with different batch sizes would train without an error, but in steps of another
//! size than the program intends. Different learning rates or optimizers lead to different weights, which
//! `epoch.rs` compares after the first step of the optimizer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{CommError, World};

/// Bounds of a loader's batch size that follow from its first two batches. Workers of a loader may return its
/// short last batch first. So one batch does not show the batch size; the larger of two batches does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct BatchSize {
    least: usize,
    most: usize,
}

impl BatchSize {
    /// Returns the bounds from the numbers of samples in the first two batches; 0 means that there is no such
    /// batch. `items` is the number of samples in the shard.
    fn from_batches([first, second]: [usize; 2], items: usize) -> Self {
        let (whole, other) = (first.max(second), first.min(second));
        match other {
            // The shard has only one batch, which may be shorter than the batch size.
            0 if whole == items => Self { least: whole, most: usize::MAX },
            _ if other > 0 && (other == whole || items % whole == other) => {
                Self { least: whole, most: whole }
            }
            // The batches have several sizes. A batch strategy of the program may make such batches.
            _ => Self { least: 0, most: usize::MAX },
        }
    }

    fn agrees(self, other: Self) -> bool {
        self.least <= other.most && other.least <= self.most
    }
}

impl fmt::Display for BatchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self { least, most } if least == most => write!(f, "{least}"),
            Self { least: 0, .. } => write!(f, "several sizes"),
            Self { least, .. } => write!(f, "at least {least}"),
        }
    }
}

/// Checks that all ranks have the same batch size. `first` has the numbers of samples in this rank's first
/// two batches, and `items` is the number of samples in its shard.
///
/// # Errors
/// On all ranks, if two ranks cannot have the same batch size. The error names the first two such ranks.
pub(super) fn check_batches(world: &World, first: [usize; 2], items: usize) -> Result<(), CommError> {
    let ranks: Vec<BatchSize> = world.gather(&BatchSize::from_batches(first, items))?;
    let Some((one, other)) = differing(&ranks) else { return Ok(()) };
    // The error contains rank 0's batch size. If rank 0 has a single batch, its batch size may agree with
    // both differing ranks, so the error also names rank `one`.
    let found = match one {
        0 => ranks[other].to_string(),
        _ => format!("{} and rank {one} has {}", ranks[other], ranks[one]),
    };
    Err(world.diverged("the batch size of the training loader", other, found, ranks[0]))
}

/// Returns the first two ranks that do not agree.
fn differing(ranks: &[BatchSize]) -> Option<(usize, usize)> {
    let pairs = (0..ranks.len()).flat_map(|other| (0..other).map(move |one| (one, other)));
    pairs.into_iter().find(|&(one, other)| !ranks[one].agrees(ranks[other]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exactly(size: usize) -> BatchSize {
        BatchSize { least: size, most: size }
    }

    /// Whatever batch comes first, shards of one batch size agree with each other.
    #[test]
    fn ranks_of_one_batch_size_agree_in_any_order_of_batches() {
        for size in 1..9 {
            let mut shown = vec![exactly(size)];
            for items in 1..40 {
                let batches: Vec<usize> =
                    (0..items).step_by(size).map(|from| size.min(items - from)).collect();
                for first in 0..batches.len() {
                    for second in (0..batches.len()).filter(|&second| second != first) {
                        let found = BatchSize::from_batches([batches[first], batches[second]], items);
                        assert_eq!(found, exactly(size), "{size} of {items}: {first}, {second}");
                    }
                }
                if let [single] = batches[..] {
                    shown.push(BatchSize::from_batches([single, 0], items));
                }
            }
            assert_eq!(differing(&shown), None, "{size}");
        }
    }

    #[test]
    fn ranks_of_other_batch_sizes_differ() {
        let at_least = |least| BatchSize { least, most: usize::MAX };
        let varies = at_least(0);
        assert_eq!(BatchSize::from_batches([2, 4], 27), varies);
        assert_eq!(BatchSize::from_batches([3, 0], 27), varies);
        for (ranks, expected) in [
            (vec![exactly(4), exactly(4), exactly(2)], Some((0, 2))),
            (vec![at_least(5), exactly(5), exactly(4)], Some((0, 2))),
            (vec![at_least(2), exactly(2), at_least(3)], Some((1, 2))),
            (vec![at_least(2), at_least(3), varies, exactly(3)], None),
        ] {
            assert_eq!(differing(&ranks), expected, "{ranks:?}");
        }
    }
}
