//! Errors and panics of a data set that `ShardedDataset::prefetch` reads on a thread arrive at their step.

#![cfg(feature = "data")]

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::data::dataset::Dataset;
use burn_mpi::threads::{Options, run};
use burn_mpi::{CommError, ShardedDataset};

const SAMPLES: usize = 53;

/// Fails or panics at one sample.
struct Failing {
    at: usize,
    panics: bool,
}

impl Dataset<usize, fmt::Error> for Failing {
    fn get(&self, index: usize) -> Result<usize, fmt::Error> {
        assert!(!(self.panics && index == self.at), "sample {index} panics");
        if index == self.at { Err(fmt::Error) } else { Ok(index) }
    }

    fn len(&self) -> usize {
        SAMPLES
    }
}

#[test]
fn failures_arrive_at_their_step() {
    for ranks in 1..=3 {
        let check = |world: &burn_mpi::World| -> Result<(), CommError> {
            // The sample is in the second batch of this rank.
            let at = 5 * world.size() + world.rank();
            let data = |panics| ShardedDataset::new(world, Failing { at, panics }, 4);
            let fails: Vec<bool> = data(false)?.prefetch(3).map(|batch| batch.is_err()).collect();
            assert!(fails.iter().enumerate().all(|(step, fails)| *fails == (step == 1)), "{fails:?}");

            let mut batches = data(true)?.prefetch(3);
            assert!(batches.next().is_some_and(|batch| batch.is_ok()));
            let panic = catch_unwind(AssertUnwindSafe(|| batches.next().is_some())).unwrap_err();
            let message = panic.downcast::<String>().expect("a message");
            assert!(message.contains("panics"), "{message}");
            assert!(batches.next().is_none(), "the thread has ended");

            // An iterator may be dropped before its end.
            drop(data(false)?.prefetch(1));
            Ok(())
        };
        run(ranks, &Options::default(), check).unwrap();
    }
}
