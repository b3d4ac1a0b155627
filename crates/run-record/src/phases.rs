//! Phases of a training step: one list for the learner's timers, `step_ms` in
//! `run.json`, `bench step` and the report.

use serde::{Deserialize, Serialize};

/// A value for each phase of a training step, under the names and in the
/// order of `step_ms` in `run.json`. A phase that is missing in a file
/// is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phases<T> {
    /// Augmentation, and conversion of bytes to normalised tensors.
    pub data: T,
    /// Class scores, loss and metrics.
    pub forward: T,
    /// Backward, without copying gradients.
    pub backward: T,
    /// Copying gradients into their buckets.
    pub copy: T,
    /// Waiting for gradients of other ranks.
    pub exposed: T,
    /// Weight update, including the network that holds the weights.
    pub optimizer: T,
}

impl<T> Phases<T> {
    /// The phases' names in tables.
    pub const TITLES: [&'static str; 6] =
        ["data", "forward", "backward", "copy of gradients", "communication, exposed", "optimizer"];

    /// The values in the order of [`TITLES`](Self::TITLES).
    pub fn into_array(self) -> [T; 6] {
        [self.data, self.forward, self.backward, self.copy, self.exposed, self.optimizer]
    }

    /// Values in the order of [`TITLES`](Self::TITLES).
    pub fn from_array([data, forward, backward, copy, exposed, optimizer]: [T; 6]) -> Self {
        Self { data, forward, backward, copy, exposed, optimizer }
    }
}

/// Mean milliseconds of each phase; for a resumed run, of the steps since the
/// process started.
pub type StepMs = Phases<f64>;

impl<T> Phases<T> {
    /// Applies `with` to each value.
    pub fn map<U>(self, with: impl FnMut(T) -> U) -> Phases<U> {
        Phases::from_array(self.into_array().map(with))
    }

    /// Applies `with` to each value and the other's value of the same phase.
    pub fn zip<U, V>(self, other: Phases<U>, mut with: impl FnMut(T, U) -> V) -> Phases<V> {
        let mut others = other.into_array().into_iter();
        self.map(|value| match others.next() {
            Some(other) => with(value, other),
            None => unreachable!("both have every phase"),
        })
    }
}

impl StepMs {
    /// The mean of several ranks' values; 0 if there are none.
    pub fn mean(ranks: &[Self]) -> Self {
        let sum = ranks.iter().fold(Self::default(), |sum, rank| sum.zip(*rank, |a, b| a + b));
        sum.map(|ms| ms / ranks.len().max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_run_json_stay_in_their_order() {
        let json = serde_json::to_string(&StepMs::from_array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
        assert_eq!(
            json,
            r#"{"data":1.0,"forward":2.0,"backward":3.0,"copy":4.0,"exposed":5.0,"optimizer":6.0}"#
        );
    }

    #[test]
    fn a_file_from_before_a_phase_is_read() {
        let read: StepMs = serde_json::from_str(r#"{"data":1.0,"exposed":5.0}"#).unwrap();
        assert_eq!(read, StepMs { data: 1.0, exposed: 5.0, ..StepMs::default() });
    }

    #[test]
    fn ranks_are_averaged_phase_by_phase() {
        let one = StepMs { data: 1.0, optimizer: 3.0, ..StepMs::default() };
        let two = StepMs { data: 2.0, exposed: 1.0, ..StepMs::default() };
        let mean = StepMs { data: 1.5, exposed: 0.5, optimizer: 1.5, ..StepMs::default() };
        assert_eq!(StepMs::mean(&[one, two]), mean);
        assert_eq!(StepMs::mean(&[]), StepMs::default());
    }
}
