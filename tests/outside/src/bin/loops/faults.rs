//! A data set that fails when a certain sample is read.

use std::sync::atomic::{AtomicUsize, Ordering};

use burn::data::dataset::{Dataset, DatasetError};

/// What happens when a sample is read.
#[derive(Clone, Copy)]
pub enum Fault {
    Error,
    Panic,
}

/// A data set. If it is `active`, it fails after some reads.
pub struct Faulty<I> {
    pub dataset: Box<dyn Dataset<I>>,
    pub fault: Fault,
    pub active: bool,
    /// Reads left before the one that fails.
    pub reads: AtomicUsize,
}

impl<I> Dataset<I> for Faulty<I> {
    fn get(&self, index: usize) -> Result<I, DatasetError> {
        let left = self.reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match (left, self.fault) {
            (Err(_), Fault::Error) if self.active => {
                Err(DatasetError::new(std::io::Error::other(format!("sample {index} is damaged"))))
            }
            (Err(_), Fault::Panic) if self.active => panic!("a bug in the data set"),
            _ => self.dataset.get(index),
        }
    }

    fn len(&self) -> usize {
        self.dataset.len()
    }
}
