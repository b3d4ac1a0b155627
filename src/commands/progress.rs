//! Progress of a training, shown by rank 0: a progress bar on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::logging::{bars, has_colour, is_on_terminal, is_quiet};
use crate::train::{Position, Tally, Watch};
use burn_mpi::{Reached, ShardPlan};
use run_record::EpochRow;
use run_record::StepFile;
use terminal::digits::seconds;

/// Training observer that shows progress. Prints only on rank 0.
pub struct TrainingProgress {
    shown: bool,
    bar: Option<ProgressBar>,
    plan: ShardPlan,
    epochs: usize,
    started: Instant,
    first_step: usize,
    /// When the bar was last drawn.
    drawn: Option<Instant>,
    /// File with the number of the last step; `None` except on rank 0 with `--note-steps`.
    steps: Option<StepFile>,
}

/// The text after the bar. The bar takes the rest of the terminal's width.
const REST: &str = "{pos}/{len}  {msg}  {eta} left";

/// Minimum time between two updates of the bar. To redraw the bar for every step of a small network would
/// take longer than the step.
const REDRAW: Duration = Duration::from_millis(100);

impl TrainingProgress {
    /// Shows the progress of a training that starts at `first_step`.
    pub fn new(
        shown: bool,
        plan: &ShardPlan,
        epochs: usize,
        first_step: usize,
        steps: Option<StepFile>,
    ) -> Self {
        let total = plan.steps().saturating_mul(epochs);
        let bar = (shown && !is_quiet() && is_on_terminal()).then(|| {
            let [cyan, plain] = if has_colour() { ["\x1b[36m", "\x1b[0m"] } else { [""; 2] };
            let style = ProgressStyle::with_template(&format!("{cyan}{{wide_bar}}{plain} {REST}"));
            if !io::stderr().is_terminal() {
                // The terminal is at the other end of the launcher's pipe. Its width is unknown; 80 columns
                // are assumed.
                bars().set_draw_target(ProgressDrawTarget::term_like(Box::new(Term::buffered_stderr())));
            }
            let bar = bars().add(ProgressBar::new(total as u64));
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_position(first_step as u64);
            bar
        });
        Self { shown, bar, plan: *plan, epochs, started: Instant::now(), first_step, drawn: None, steps }
    }

    /// Removes the bar and the file of `--note-steps` after a completed training.
    pub fn complete(self) {
        self.remove_bar();
        if let Some(steps) = self.steps {
            steps.remove();
        }
    }

    fn remove_bar(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn mean_batch(&self) -> f64 {
        self.plan.samples as f64 / self.plan.steps() as f64
    }

    fn images_per_second(&self, step: usize) -> f64 {
        (step - self.first_step) as f64 * self.mean_batch() / self.started.elapsed().as_secs_f64()
    }
}

impl Watch for TrainingProgress {
    fn step(&mut self, position: &Position, epoch: &Tally) {
        if let Some(steps) = &self.steps {
            steps.note(position.step);
        }
        let Some(bar) = &self.bar else { return };
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < REDRAW) {
            return;
        }
        self.drawn = Some(Instant::now());
        bar.set_message(message(position.epoch + 1, epoch, self.images_per_second(position.step)));
        bar.set_position(position.step as u64);
    }

    fn line(&mut self, position: &Position, window: &Tally) {
        if !self.shown || self.bar.is_some() {
            return;
        }
        let speed = self.images_per_second(position.step);
        let left = self.plan.samples as f64 * self.epochs as f64 - position.step as f64 * self.mean_batch();
        let (epoch, step, steps) = (position.epoch + 1, position.step_in_epoch, self.plan.steps());
        log::info!("{}", step_line(epoch, step, steps, window, speed, (left / speed) as u64));
    }

    fn test(&mut self, position: &Position, test: &Tally) {
        if self.shown {
            log::info!("{}", test_line(position, self.plan.steps(), test));
        }
    }

    fn target(&mut self, epochs: f64, reached: &Reached) {
        if self.shown {
            log::info!("{}", target_line(epochs, reached));
        }
    }

    fn epoch(&mut self, row: &EpochRow) {
        if !self.shown {
            return;
        }
        epoch_lines(row).iter().for_each(|line| log::info!("{line}"));
        if row.epoch == self.epochs {
            self.remove_bar();
        }
    }
}

// All lines that the functions below return fit into 80 columns, the default width of a terminal.

/// Returns the text of the progress bar.
fn message(epoch: usize, tally: &Tally, speed: f64) -> String {
    format!("epoch {epoch}  loss {}  {speed:.0} images/s", loss(tally.mean_loss(), tally.accuracy()))
}

/// Returns the line of a step; `left` is the estimated number of seconds to the end.
fn step_line(epoch: usize, step: usize, steps: usize, tally: &Tally, speed: f64, left: u64) -> String {
    let (loss, left) = (loss(tally.mean_loss(), tally.accuracy()), HumanDuration(Duration::from_secs(left)));
    format!("epoch {epoch} step {step}/{steps}: loss {loss}, {speed:.0} images/s, {left:#} left")
}

/// Returns the line of a test inside an epoch of `steps` steps.
fn test_line(position: &Position, steps: usize, test: &Tally) -> String {
    let (epoch, step) = (position.epoch + 1, position.step_in_epoch);
    format!("epoch {epoch} step {step}/{steps}: test loss {}", loss(test.mean_loss(), test.accuracy()))
}

/// Returns the line of the test that first reached the target accuracy, after `epochs` epochs.
fn target_line(epochs: f64, reached: &Reached) -> String {
    let Reached { accuracy, steps, seconds: time } = reached;
    let time = short(*time);
    format!("target reached: {accuracy:.2}% after {steps} steps ({epochs:.2} epochs), {time} s of training")
}

/// Returns the line of an epoch. If the epoch has an int8 model, also returns a line for the model.
fn epoch_lines(row: &EpochRow) -> Vec<String> {
    let lr = learning_rate(row.learning_rate);
    let seconds = short(row.seconds);
    let (train, test) = (loss(row.train_loss, row.train_accuracy), loss(row.test_loss, row.test_accuracy));
    let whole = format!("epoch {}: loss {train}, test loss {test}, lr {lr}, {seconds} s", row.epoch);
    let int8 = row.int8_test_accuracy.zip(row.int8_test_loss);
    let int8 = int8
        .map(|(accuracy, value)| format!("epoch {}: int8 test loss {}", row.epoch, loss(value, accuracy)));
    std::iter::once(whole).chain(int8).collect()
}

/// Formats seconds, without decimals from 100 s on.
fn short(time: f64) -> String {
    if time < 100.0 { seconds(time) } else { format!("{time:.0}") }
}

/// Formats a loss and an accuracy in percent.
fn loss(loss: f64, accuracy: f64) -> String {
    format!("{loss:.4} ({accuracy:.2}%)")
}

/// Formats a learning rate with up to three significant digits.
pub fn learning_rate(lr: f64) -> String {
    let digits = format!("{lr:.2e}");
    let short = digits.parse().unwrap_or(lr);
    if (1e-4..1e4).contains(&short) || short == 0.0 { short.to_string() } else { format!("{short:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are as wide as in a training that takes days.
    #[test]
    fn lines_fit_80_columns() {
        let tally = Tally { loss: 12.3456e6, correct: 1e6, samples: 1e6 };
        let row = EpochRow {
            epoch: 999,
            train_loss: 9.3456,
            train_accuracy: 99.99,
            test_loss: 9.3456,
            test_accuracy: 99.99,
            seconds: 1234.5678,
            learning_rate: 0.000123,
            int8_test_accuracy: Some(100.0),
            int8_test_loss: Some(12.3456),
        };
        let step = step_line(999, 123_456, 123_456, &tally, 123_456.7, 55 * 60);
        assert_eq!(step, "epoch 999 step 123456/123456: loss 12.3456 (100.00%), 123457 images/s, 55m left");
        let epoch = epoch_lines(&row);
        assert_eq!(
            epoch[0],
            "epoch 999: loss 9.3456 (99.99%), test loss 9.3456 (99.99%), lr 0.000123, 1235 s"
        );
        let bar = format!("12345678/12345678  {}  55m left", message(999, &tally, 123_456.7));
        let position = Position { epoch: 998, step_in_epoch: 123_456, ..Position::default() };
        let test = test_line(&position, 123_456, &tally);
        assert_eq!(test, "epoch 999 step 123456/123456: test loss 12.3456 (100.00%)");
        let target = target_line(999.12, &Reached { accuracy: 100.0, steps: 12_345_678, seconds: 1234.6 });
        for line in [&step, &bar, &test, &target].into_iter().chain(&epoch) {
            assert!(line.len() <= 80, "{} columns: {line}", line.len());
        }
    }
}
