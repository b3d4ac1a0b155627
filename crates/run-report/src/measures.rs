//! The measurements of the main table: title, digits, definition, and how early a narrow table
//! leaves them out.

use std::collections::BTreeMap;

use super::noise::Interval;
use super::rows::Row;
use super::runs::Run;
use super::sheet::{Cell, Column, Value};
use super::summary::paths;
use run_record::checkpoint::{MODEL, list};
use run_record::{INT8_FILE, method_of};

/// What stands beside the median of a measurement.
#[derive(Clone, Copy, PartialEq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// Minimum and maximum over repeats.
    Range,
    /// The sample standard deviation over several seeds; repeats of one seed have one value.
    Deviation,
    /// The same, and the binomial interval.
    Interval,
}

/// A measurement of a run.
#[derive(Clone, Copy)]
pub struct Measure {
    /// Title for readers.
    pub title: &'static str,
    /// Key for programs.
    pub key: &'static str,
    /// Decimal places.
    pub digits: usize,
    /// As [`Column::rank`].
    pub rank: u8,
    /// As [`Column::definition`].
    pub definition: &'static str,
    /// What stands beside its median.
    pub beside: Beside,
    /// The value of a run; NaN if it was not measured.
    pub read: fn(&Run) -> f64,
}

impl Measure {
    /// A measurement with two decimal places, and nothing beside it.
    pub const fn of(title: &'static str, key: &'static str, read: fn(&Run) -> f64) -> Self {
        Self { title, key, digits: 2, rank: 0, definition: "", beside: Beside::Nothing, read }
    }

    /// With as many decimal places.
    pub const fn digits(self, digits: usize) -> Self {
        Self { digits, ..self }
    }

    /// With a rank.
    pub const fn ranked(self, rank: u8) -> Self {
        Self { rank, ..self }
    }

    /// With this beside its median.
    pub const fn beside(self, beside: Beside) -> Self {
        Self { beside, ..self }
    }

    /// With a definition.
    pub const fn means(self, definition: &'static str) -> Self {
        Self { definition, ..self }
    }

    /// Its column.
    pub fn column(&self) -> Column {
        Column::spread(self.title, self.key).means(self.definition).ranked(self.rank)
    }

    /// The cell of a row; nothing if a run did not measure it.
    pub fn cell(&self, row: &Row<'_>) -> Cell {
        let (spread, digits) = (row.spread(self.read), self.digits);
        if !spread.is_known() {
            return Cell::of(paths(row));
        }
        let deviation = match row.seeds().len() {
            1 => String::new(),
            _ => format!("±{:.digits$}", deviation(row, self.read)),
        };
        let beside = match self.beside {
            Beside::Range if spread.count > 1 => format!("({:.digits$}–{:.digits$})", spread.min, spread.max),
            Beside::Nothing | Beside::Range => String::new(),
            Beside::Deviation => deviation,
            Beside::Interval => {
                let interval = Interval::of(row, self.read)
                    .map_or_else(String::new, |of| format!("[{:.digits$}–{:.digits$}]", of.low, of.high));
                [deviation, interval].join(" ").trim().to_owned()
            }
        };
        Cell { value: Value::Number(spread, digits), beside, ..Cell::of(paths(row)) }
    }
}

/// Training time, always the first.
pub const TRAIN: Measure = Measure::of("train s", "train_seconds", |run| run.results.train_seconds)
    .beside(Beside::Range)
    .means("Seconds of the training loops, without tests, start-up and checkpoints");

/// Time of a step.
pub const STEP: Measure = Measure::of("ms/step", "ms_per_step", |run| run.results.ms_per_step)
    .digits(3)
    .ranked(7)
    .beside(Beside::Range)
    .means("train s over the optimizer steps, in milliseconds");

/// Behind the speed-up.
pub const OTHERS: [Measure; 13] = [
    Measure::of("exposed comm %", "exposed_comm_percent", exposed_percent)
        .digits(1)
        .ranked(3)
        .beside(Beside::Range)
        .means("Share of train s in which a rank only waited for gradients, mean over ranks; communication \
                     hidden behind backward is not in it"),
    Measure::of("test acc %", "test_accuracy", |run| run.results.test_accuracy)
        .beside(Beside::Interval)
        .means("Accuracy on the tested samples after the last epoch, each sample counted once; in square brackets its \
                     95% interval"),
    Measure::of("int8 test acc %", "int8_test_accuracy", |run| run.results.int8_test_accuracy.unwrap_or(f64::NAN))
        .ranked(1)
        .beside(Beside::Interval)
        .means("Test accuracy of the integer model"),
    Measure::of("float KB", "float_kb", |run| stored_kb(run).map_or(f64::NAN, |[float, _]| float))
        .digits(1)
        .ranked(4)
        .means("File of the float weights in the last checkpoint; 1 KB is 1024 bytes"),
    Measure::of("int8 KB", "int8_kb", |run| stored_kb(run).map_or(f64::NAN, |[_, int8]| int8))
        .digits(1)
        .ranked(3)
        .means("File of the integer model in the last checkpoint; 1 KB is 1024 bytes"),
    Measure::of("times smaller", "times_smaller", times_smaller)
        .ranked(2)
        .means("float KB over int8 KB"),
    Measure::of("train acc %", "train_accuracy", |run| run.results.train_accuracy)
        .ranked(6)
        .beside(Beside::Deviation)
        .means("Accuracy on the training samples during the last epoch, over all ranks"),
    Measure::of("live MB", "live_mb", |run| run.results.live_mb.unwrap_or(f64::NAN))
        .ranked(5)
        .means("Peak of live tensors in a training step, in 2^20 bytes, on the rank with the highest value"),
    STEP,
    Measure::of("train+test s", "train_and_test_seconds", with_tests)
        .ranked(8)
        .beside(Beside::Range)
        .means("Seconds of training and of the tests after each epoch"),
    Measure::of("images/s", "images_per_second", |run| run.results.images_per_second)
        .digits(0)
        .ranked(9)
        .means("Training samples of all ranks over train s"),
    Measure::of("peak RSS MB", "peak_rss_mb", |run| run.results.peak_rss_mb)
        .digits(0)
        .ranked(9)
        .means("Peak resident memory of the rank with the highest value, in 2^20 bytes"),
    Measure::of("others CPU %", "others_cpu_percent", |run| run.results.others_cpu_percent.unwrap_or(f64::NAN))
        .digits(1)
        .ranked(9)
        .means("Share of the machine's CPU time that other programs used during the run"),
];

/// Sizes of the float weights and of the integer model in a run's last checkpoint, in KB of 1024
/// bytes; `None` unless it has both.
pub fn stored_kb(run: &Run) -> Option<[f64; 2]> {
    let last = list(&run.path.join("checkpoints")).ok()?.pop()?;
    let kb = |name: &str| Some(last.join(name).metadata().ok()?.len() as f64 / 1024.0);
    // `mpiburn quantize` may have put another kind of model there since.
    let stored = method_of(&last.join(INT8_FILE));
    if stored.zip(run.config.quantize).is_some_and(|(stored, trained)| stored != trained) {
        return None;
    }
    Some([kb(MODEL)?, kb(INT8_FILE)?]).filter(|[_, int8]| *int8 > 0.0)
}

/// How much smaller the integer model's file is; NaN without one.
pub fn times_smaller(run: &Run) -> f64 {
    stored_kb(run).map_or(f64::NAN, |[float, int8]| float / int8)
}

/// Sample standard deviation over the seeds of a row, at least two; repeats of one seed have one value.
fn deviation(row: &Row<'_>, read: fn(&Run) -> f64) -> f64 {
    let by_seed: BTreeMap<u64, f64> = row.runs.iter().map(|run| (run.config.seed, read(run))).collect();
    let count = by_seed.len() as f64;
    let mean = by_seed.values().sum::<f64>() / count;
    (by_seed.values().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt()
}

/// Seconds of training and tests.
pub fn with_tests(run: &Run) -> f64 {
    run.results.train_seconds + run.results.test_seconds
}

/// Share of the training time in which a rank only waited for gradients; NaN for one rank, which
/// waits for none.
pub fn exposed_percent(run: &Run) -> f64 {
    match run.record.world_size {
        1 => f64::NAN,
        _ => 100.0 * run.results.comm_seconds / run.results.train_seconds,
    }
}
