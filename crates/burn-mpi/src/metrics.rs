//! Metrics over the samples of all ranks.

use crate::calling::calling;
use crate::{CommError, World};

/// The mean of a value over this rank's samples so far, weighted by samples.
///
/// ```
/// use burn_mpi::Mean;
///
/// let mut loss = Mean::default();
/// loss.add(2.0, 30); // the mean loss of a batch of 30
/// loss.add(1.0, 10);
/// assert_eq!(loss.get(), 1.75);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    sum: f64,
    samples: u64,
}

impl Mean {
    /// Adds the mean over `samples` more samples. If `samples` is 0, `mean` is not read.
    pub fn add(&mut self, mean: impl Into<f64>, samples: usize) {
        if samples > 0 {
            self.sum += mean.into() * samples as f64;
            self.samples += samples as u64;
        }
    }

    /// Returns the mean; NaN if no samples were added.
    pub fn get(&self) -> f64 {
        self.sum / self.samples as f64
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }
}

/// Averages each named value over the samples of all ranks. Returns the means in the order of `metrics`. All
/// ranks must call it.
///
/// Values times samples are summed in f64 and in rank order, so all ranks get the same bits. A rank without
/// samples adds nothing. If a value is NaN or infinite on one rank, the mean is NaN or infinite on all ranks.
/// A metric for which no rank has samples is NaN.
///
/// ```no_run
/// # use burn_mpi::{CommError, Mean, World, average_metrics};
/// # fn example(world: &World) -> Result<(), CommError> {
/// let (mut loss, mut accuracy) = (Mean::default(), Mean::default());
/// // In the loop, for each of this rank's batches:
/// loss.add(0.5, 32);
/// accuracy.add(0.9, 32);
/// // After an epoch, on every rank:
/// let means = average_metrics(world, &[("loss", loss), ("accuracy", accuracy)])?;
/// println!("loss {:.3}, accuracy {:.3}", means[0], means[1]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`SharedError::Diverged`](crate::SharedError::Diverged) names a rank with other names or another number of
/// metrics than rank 0. Other errors come from the transport.
pub fn average_metrics(world: &World, metrics: &[(&str, Mean)]) -> Result<Vec<f64>, CommError> {
    let _calling = calling("average_metrics");
    let names: Vec<String> = metrics.iter().map(|(name, _)| format!("{name:?}")).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    world.check_equal("the list of metrics", &names)?;
    let mine = metrics.iter().map(|(_, mean)| (mean.sum, mean.samples)).collect();
    let ranks: Vec<Vec<(f64, u64)>> = world.gather(&mine)?;
    let mean = |metric: usize| {
        let mut all = Mean::default();
        for (sum, samples) in ranks.iter().map(|rank| rank[metric]) {
            all.sum += sum;
            all.samples += samples;
        }
        all.get()
    };
    Ok((0..metrics.len()).map(mean).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_weighted_by_samples_and_passes_nan_on() {
        let mut all = Mean::default();
        all.add(f32::NAN, 0);
        assert!(all.get().is_nan());
        all.add(1.5, 2);
        all.add(4.5f32, 1);
        assert_eq!((all.get(), all.samples()), (2.5, 3));
        all.add(f64::NAN, 1);
        assert!(all.get().is_nan());
    }
}
