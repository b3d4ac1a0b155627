//! Training observers.

use super::{Position, Tally};
use run_record::EpochRow;

/// Observer of a training, such as a progress bar or a log.
pub trait Watch {
    /// Called after every step, with this rank's tally of the epoch.
    fn step(&mut self, position: &Position, epoch: &Tally);
    /// Called every `--log-every` steps, with this rank's tally since the last
    /// call.
    fn line(&mut self, position: &Position, window: &Tally);
    /// Called after every epoch, with all ranks' figures.
    fn epoch(&mut self, row: &EpochRow);
}
