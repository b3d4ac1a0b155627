//! Training observers.

use super::{EpochRow, Position, Tally};

/// A progress bar, or a log.
pub trait Watch {
    /// After every step, with this rank's tally of the epoch.
    fn step(&mut self, position: &Position, epoch: &Tally);
    /// Every `--log-every` steps, with this rank's tally since the last time.
    fn line(&mut self, position: &Position, window: &Tally);
    /// After every epoch, with all ranks' figures.
    fn epoch(&mut self, row: &EpochRow);
}
