//! Checks of the first steps: ranks with other batch sizes, rates or optimizers would train on with
//! weights that are not the same, or with other steps than meant.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{CommError, World};

/// What two batches show of a loader's batch size. Workers of a loader may return its short last batch
/// first: one batch does not show it, and the larger of two does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum BatchSize {
    Of(usize),
    /// The shard is one batch.
    AtLeast(usize),
    /// Batches are of several sizes, by a strategy of the program's.
    Varies,
}

impl BatchSize {
    /// By the samples of the first two batches of a shard of `items`; 0 for one that is not there.
    fn of([first, second]: [usize; 2], items: usize) -> Self {
        let (whole, other) = (first.max(second), first.min(second));
        match other {
            0 if whole == items => Self::AtLeast(whole),
            0 => Self::Varies,
            _ if other == whole || items % whole == other => Self::Of(whole),
            _ => Self::Varies,
        }
    }

    fn agrees(self, other: Self) -> bool {
        match (self, other) {
            (Self::Of(one), Self::Of(other)) => one == other,
            (Self::Of(size), Self::AtLeast(least)) | (Self::AtLeast(least), Self::Of(size)) => size >= least,
            _ => true,
        }
    }
}

impl fmt::Display for BatchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(size) => write!(f, "{size}"),
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::Varies => write!(f, "several"),
        }
    }
}

/// Checks that all ranks have batches of one size, by the samples of this rank's first two batches of a
/// shard of `items`.
///
/// # Errors
/// On all ranks, the first two whose batches cannot have the same size.
pub(super) fn check_batches(world: &World, first: [usize; 2], items: usize) -> Result<(), CommError> {
    let ranks: Vec<BatchSize> = world.gather(&BatchSize::of(first, items))?;
    let Some((one, other)) = differing(&ranks) else { return Ok(()) };
    // The error compares with rank 0, whose single batch may agree with both.
    let found = match one {
        0 => ranks[other].to_string(),
        _ => format!("{} and rank {one} has {}", ranks[other], ranks[one]),
    };
    Err(world.diverged("the batch size of the training loader", other, found, ranks[0]))
}

/// The first two ranks that do not agree.
fn differing(ranks: &[BatchSize]) -> Option<(usize, usize)> {
    let pairs = (0..ranks.len()).flat_map(|other| (0..other).map(move |one| (one, other)));
    pairs.into_iter().find(|&(one, other)| !ranks[one].agrees(ranks[other]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever batch comes first, every shard of one batch size agrees with every other.
    #[test]
    fn ranks_of_one_batch_size_agree_in_any_order_of_batches() {
        for size in 1..9 {
            let mut shown = vec![BatchSize::Of(size)];
            for items in 1..40 {
                let batches: Vec<usize> =
                    (0..items).step_by(size).map(|from| size.min(items - from)).collect();
                for first in 0..batches.len() {
                    for second in (0..batches.len()).filter(|&second| second != first) {
                        let found = BatchSize::of([batches[first], batches[second]], items);
                        assert_eq!(found, BatchSize::Of(size), "{size} of {items}: {first}, {second}");
                    }
                }
                if let [single] = batches[..] {
                    shown.push(BatchSize::of([single, 0], items));
                }
            }
            assert_eq!(differing(&shown), None, "{size}");
        }
    }

    #[test]
    fn ranks_of_other_batch_sizes_differ() {
        use BatchSize::{AtLeast, Of, Varies};
        assert_eq!(BatchSize::of([2, 4], 27), Varies);
        assert_eq!(BatchSize::of([3, 0], 27), Varies);
        for (ranks, expected) in [
            (vec![Of(4), Of(4), Of(2)], Some((0, 2))),
            (vec![AtLeast(5), Of(5), Of(4)], Some((0, 2))),
            (vec![AtLeast(2), Of(2), AtLeast(3)], Some((1, 2))),
            (vec![AtLeast(2), AtLeast(3), Varies, Of(3)], None),
        ] {
            assert_eq!(differing(&ranks), expected, "{ranks:?}");
        }
    }
}
