//! Losses and correct samples, summed over a batch, an epoch or all ranks.
//!
//! Sums, not means, are stored: batches and ranks have different numbers of samples, and a mean of means
//! would be wrong.

use run_record::{CurvePoint, Metrics};
use serde::{Deserialize, Deserializer, Serialize};

/// Sums over samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Sum of the samples' losses. JSON stores NaN and infinity as null, which is read as NaN.
    #[serde(deserialize_with = "number_or_null")]
    pub loss: f64,
    /// Number of samples whose own class has the highest score.
    pub correct: f64,
    /// Number of samples.
    pub samples: f64,
}

/// Reads a number, or NaN for null.
fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

impl Tally {
    /// Returns the tally of a batch: `samples` samples with the mean loss `loss`, of which `correct` samples
    /// are classified correctly.
    pub fn from_batch(loss: f64, correct: usize, samples: usize) -> Self {
        Self { loss: loss * samples as f64, correct: correct as f64, samples: samples as f64 }
    }

    /// Adds another tally to this one.
    pub fn add(&mut self, other: &Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.samples += other.samples;
    }

    /// Mean loss per sample; 0 without samples.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.samples.max(1.0)
    }

    /// Share of correct samples in percent; 0 without samples.
    pub fn accuracy(&self) -> f64 {
        100.0 * self.correct / self.samples.max(1.0)
    }

    /// Mean loss and accuracy; `None` without samples.
    pub fn metrics(&self) -> Option<Metrics> {
        (self.samples > 0.0).then(|| Metrics { loss: self.mean_loss(), accuracy: self.accuracy() })
    }

    /// Returns the curve point at `step`: the metrics of each rank, and of all ranks together.
    pub fn curve_point(step: usize, ranks: &[Self]) -> CurvePoint {
        let mean = Self::total(ranks).metrics();
        CurvePoint { step, ranks: ranks.iter().map(Self::metrics).collect(), mean }
    }

    /// The sum of all ranks' tallies.
    pub fn total(tallies: &[Self]) -> Self {
        tallies.iter().fold(Self::default(), |mut sum, tally| {
            sum.add(tally);
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_over_samples_not_over_batches() {
        let mut sum = Tally::from_batch(1.0, 1, 1);
        sum.add(&Tally::from_batch(2.0, 3, 3));
        assert_eq!((sum.mean_loss(), sum.accuracy()), (1.75, 100.0));
        assert_eq!((Tally::default().accuracy(), Tally::default().metrics()), (0.0, None));
    }
}
