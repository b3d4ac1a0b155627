//! What rank 0 shows while a training runs: a bar on a terminal, plain lines
//! elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::logging::bars;
use crate::data::ShardPlan;
use crate::record::{EpochRow, Position, Tally};
use crate::train::Watch;

/// Follows a training; silent on all ranks but 0.
pub struct Progress {
    shown: bool,
    bar: Option<ProgressBar>,
    plan: ShardPlan,
    epochs: usize,
    started: Instant,
    first_step: usize,
    drawn: Instant,
}

/// A bar that is redrawn for every step of a fast network costs more than the
/// step.
const REDRAW: Duration = Duration::from_millis(100);

impl Progress {
    /// Follows a training that starts at `first_step`.
    pub fn new(shown: bool, plan: &ShardPlan, epochs: usize, first_step: usize) -> Self {
        let total = plan.steps() * epochs;
        let bar = (shown && console_is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:24} {pos}/{len} steps  {msg}  {eta} left");
            let bar = bars().add(ProgressBar::new(total as u64));
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_position(first_step as u64);
            bar
        });
        Self { shown, bar, plan: *plan, epochs, started: Instant::now(), first_step, drawn: Instant::now() }
    }

    fn images_per_second(&self, step: usize) -> f64 {
        let steps = (step - self.first_step) as f64;
        let mean_batch = self.plan.samples as f64 / self.plan.steps() as f64;
        steps * mean_batch / self.started.elapsed().as_secs_f64()
    }

    fn left(&self, step: usize) -> Duration {
        let done = (step - self.first_step).max(1) as f64;
        let left = (self.plan.steps() * self.epochs - step) as f64;
        Duration::from_secs_f64(self.started.elapsed().as_secs_f64() / done * left)
    }
}

impl Watch for Progress {
    fn step(&mut self, position: &Position, epoch: &Tally) {
        let Some(bar) = &self.bar else { return };
        if self.drawn.elapsed() < REDRAW {
            return;
        }
        self.drawn = Instant::now();
        bar.set_message(format!(
            "epoch {}  loss {:.4}  accuracy {:.2}%  {:.0} images/s",
            position.epoch + 1,
            epoch.mean_loss(),
            epoch.accuracy(),
            self.images_per_second(position.step)
        ));
        bar.set_position(position.step as u64);
    }

    fn line(&mut self, position: &Position, window: &Tally) {
        if !self.shown || self.bar.is_some() {
            return;
        }
        log::info!(
            "epoch {} step {:>5}/{}  loss {:.4}  accuracy {:6.2}%  {:>6.0} images/s  {} s left",
            position.epoch + 1,
            position.step_in_epoch,
            self.plan.steps(),
            window.mean_loss(),
            window.accuracy(),
            self.images_per_second(position.step),
            self.left(position.step).as_secs(),
        );
    }

    fn epoch(&mut self, row: &EpochRow) {
        if !self.shown {
            return;
        }
        log::info!(
            "epoch {}: train loss {:.4} accuracy {:.2}%, test loss {:.4} accuracy {:.2}%, {:.2} s",
            row.epoch,
            row.train_loss,
            row.train_accuracy,
            row.test_loss,
            row.test_accuracy,
            row.seconds
        );
        if let Some(bar) = &self.bar
            && row.epoch == self.epochs
        {
            bar.finish_and_clear();
        }
    }
}

/// Whether a person sees what this process writes to stderr.
fn console_is_terminal() -> bool {
    use std::io::IsTerminal;
    std::io::stderr().is_terminal()
}
