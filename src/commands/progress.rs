//! Progress of a training on rank 0: a progress bar on a terminal, plain lines
//! elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

use super::logging::bars;
use crate::data::ShardPlan;
use crate::train::{Position, Tally, Watch};
use burn_mpi::Launcher;
use run_record::EpochRow;
use run_record::StepFile;

/// Training observer that shows progress; silent on all ranks but 0.
pub struct Progress {
    shown: bool,
    bar: Option<ProgressBar>,
    plan: ShardPlan,
    epochs: usize,
    started: Instant,
    first_step: usize,
    drawn: Instant,
    /// The file of the last step, on rank 0 of a training that notes its steps.
    steps: Option<StepFile>,
}

/// Interval of the bar's updates: redrawing it for every step of a small network would
/// take longer than the step.
const REDRAW: Duration = Duration::from_millis(100);

impl Progress {
    /// Progress of a training that starts at `first_step`.
    pub fn new(
        shown: bool,
        plan: &ShardPlan,
        epochs: usize,
        first_step: usize,
        steps: Option<StepFile>,
    ) -> Self {
        let total = plan.steps().saturating_mul(epochs);
        let bar = (shown && console_is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{bar:12} {pos}/{len}  {msg}  {eta} left");
            if !io::stderr().is_terminal() {
                bars().set_draw_target(ProgressDrawTarget::term_like(Box::new(LauncherTerminal)));
            }
            let bar = bars().add(ProgressBar::new(total as u64));
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_position(first_step as u64);
            bar
        });
        let now = Instant::now();
        Self { shown, bar, plan: *plan, epochs, started: now, first_step, drawn: now, steps }
    }

    /// Removes the bar and the file of a completed training, whose steps are of no more use.
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

impl Watch for Progress {
    fn step(&mut self, position: &Position, epoch: &Tally) {
        if let Some(steps) = &self.steps {
            steps.note(position.step);
        }
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
        let speed = self.images_per_second(position.step);
        let left = self.plan.samples as f64 * self.epochs as f64 - position.step as f64 * self.mean_batch();
        log::info!(
            "epoch {} step {:>5}/{}  loss {:.4}  accuracy {:6.2}%  {speed:>6.0} images/s  {} s left",
            position.epoch + 1,
            position.step_in_epoch,
            self.plan.steps(),
            window.mean_loss(),
            window.accuracy(),
            (left / speed) as u64,
        );
    }

    fn epoch(&mut self, row: &EpochRow) {
        if !self.shown {
            return;
        }
        let int8 = match (row.int8_test_loss, row.int8_test_accuracy) {
            (Some(loss), Some(accuracy)) => format!(", int8 test loss {loss:.4} accuracy {accuracy:.2}%"),
            (None, Some(accuracy)) => format!(", int8 test loss not finite, accuracy {accuracy:.2}%"),
            (_, None) => String::new(),
        };
        let lr = row.learning_rate.map_or_else(String::new, |lr| format!(", lr {}", learning_rate(lr)));
        log::info!(
            "epoch {}: train loss {:.4} accuracy {:.2}%, test loss {:.4} accuracy {:.2}%{int8}{lr}, {:.2} s",
            row.epoch,
            row.train_loss,
            row.train_accuracy,
            row.test_loss,
            row.test_accuracy,
            row.seconds
        );
        if row.epoch == self.epochs {
            self.remove_bar();
        }
    }
}

/// A learning rate with up to three digits.
pub fn learning_rate(lr: f64) -> String {
    let digits = format!("{lr:.2e}");
    let short = digits.parse().unwrap_or(lr);
    match (1e-4..1e4).contains(&short) || short == 0.0 {
        true => short.to_string(),
        false => format!("{short:e}"),
    }
}

/// Whether a user sees what this process writes to stderr: it is a terminal, or a pipe
/// that the launcher on this machine copies to one.
fn console_is_terminal() -> bool {
    let of_launcher = || {
        let stderr = format!("/proc/{}/fd/2", std::os::unix::process::parent_id());
        std::fs::File::open(stderr).is_ok_and(|file| file.is_terminal())
    };
    io::stderr().is_terminal() || (Launcher::detect().is_some() && of_launcher())
}

/// A terminal at the other end of the launcher's pipe. Its width is unknown, so a small
/// one is assumed.
#[derive(Debug)]
struct LauncherTerminal;

impl TermLike for LauncherTerminal {
    fn width(&self) -> u16 {
        80
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.write_str(&"\x1b[A".repeat(n))
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.write_str(&"\x1b[B".repeat(n))
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.write_str(&"\x1b[C".repeat(n))
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.write_str(&"\x1b[D".repeat(n))
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        self.write_str(&format!("{line}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        io::stderr().write_all(text.as_bytes())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write_str("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        io::stderr().flush()
    }
}
