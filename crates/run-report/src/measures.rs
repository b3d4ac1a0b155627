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
pub const TRAIN: Measure = Measure {
    title: "train s",
    key: "train_seconds",
    digits: 2,
    rank: 0,
    definition: "Seconds of the training loops, without tests, start-up and checkpoints",
    beside: Beside::Range,
    read: |run| run.results.train_seconds,
};

/// Time of a step.
pub const STEP: Measure = Measure {
    title: "ms/step",
    key: "ms_per_step",
    digits: 3,
    rank: 7,
    definition: "train s over the optimizer steps, in milliseconds",
    beside: Beside::Range,
    read: |run| run.results.ms_per_step,
};

/// Behind the speed-up.
pub const OTHERS: [Measure; 13] = [
    Measure {
        title: "exposed comm %",
        key: "exposed_comm_percent",
        digits: 1,
        rank: 3,
        definition: "Share of train s in which a rank only waited for gradients, mean over ranks; communication \
                     hidden behind backward is not in it",
        beside: Beside::Range,
        read: exposed_percent,
    },
    Measure {
        title: "test acc %",
        key: "test_accuracy",
        digits: 2,
        rank: 0,
        definition: "Accuracy on the tested samples after the last epoch, each sample counted once; in square brackets its \
                     95% interval",
        beside: Beside::Interval,
        read: |run| run.results.test_accuracy,
    },
    Measure {
        title: "int8 test acc %",
        key: "int8_test_accuracy",
        digits: 2,
        rank: 1,
        definition: "Test accuracy of the integer model",
        beside: Beside::Interval,
        read: |run| run.results.int8_test_accuracy.unwrap_or(f64::NAN),
    },
    Measure {
        title: "float KB",
        key: "float_kb",
        digits: 1,
        rank: 4,
        definition: "File of the float weights in the last checkpoint; 1 KB is 1024 bytes",
        beside: Beside::Nothing,
        read: |run| stored_kb(run).map_or(f64::NAN, |[float, _]| float),
    },
    Measure {
        title: "int8 KB",
        key: "int8_kb",
        digits: 1,
        rank: 3,
        definition: "File of the integer model in the last checkpoint; 1 KB is 1024 bytes",
        beside: Beside::Nothing,
        read: |run| stored_kb(run).map_or(f64::NAN, |[_, int8]| int8),
    },
    Measure {
        title: "times smaller",
        key: "times_smaller",
        digits: 2,
        rank: 2,
        definition: "float KB over int8 KB",
        beside: Beside::Nothing,
        read: times_smaller,
    },
    Measure {
        title: "train acc %",
        key: "train_accuracy",
        digits: 2,
        rank: 6,
        definition: "Accuracy on the training samples during the last epoch, over all ranks",
        beside: Beside::Deviation,
        read: |run| run.results.train_accuracy,
    },
    Measure {
        title: "live MB",
        key: "live_mb",
        digits: 2,
        rank: 5,
        definition: "Peak of live tensors in a training step, in 2^20 bytes, on the rank with the highest value",
        beside: Beside::Nothing,
        read: |run| run.results.live_mb.unwrap_or(f64::NAN),
    },
    STEP,
    Measure {
        title: "train+test s",
        key: "train_and_test_seconds",
        digits: 2,
        rank: 8,
        definition: "Seconds of training and of the tests after each epoch",
        beside: Beside::Range,
        read: with_tests,
    },
    Measure {
        title: "images/s",
        key: "images_per_second",
        digits: 0,
        rank: 9,
        definition: "Training samples of all ranks over train s",
        beside: Beside::Nothing,
        read: |run| run.results.images_per_second,
    },
    Measure {
        title: "peak RSS MB",
        key: "peak_rss_mb",
        digits: 0,
        rank: 9,
        definition: "Peak resident memory of the rank with the highest value, in 2^20 bytes",
        beside: Beside::Nothing,
        read: |run| run.results.peak_rss_mb,
    },
    Measure {
        title: "others CPU %",
        key: "others_cpu_percent",
        digits: 1,
        rank: 9,
        definition: "Share of the machine's CPU time that other programs used during the run",
        beside: Beside::Nothing,
        read: |run| run.results.others_cpu_percent.unwrap_or(f64::NAN),
    },
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
