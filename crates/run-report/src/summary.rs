//! The main table, and the definitions of its measurements. The table has a row for each configuration, which
//! is one run or its repeats.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use itertools::Itertools;
use run_record::checkpoint::{MODEL, list};
use run_record::{INT8_FILE, Method, method_of};
use serde::Deserialize;

use super::remarks::{changes_of, failures, is_sound, marks, remarks, warnings};
use super::rows::{Interval, Row, chance, is_told, varied};
use super::runs::{Run, Section, overfitting_epochs, wait_seconds};
use super::sheet::{Cell, CellValue, Column, Field, Sheet};
use super::target;
use terminal::digits::decimals;

/// Returns speed-up over `base`, and parallel efficiency in percent, from medians. `None` if the times of one
/// of the rows are unreliable.
pub fn speed_up(row: &Row<'_>, base: &Row<'_>) -> Option<(f64, f64)> {
    let faster = base.train_seconds().median / row.train_seconds().median;
    let efficiency = 100.0 * faster * base.ranks() as f64 / row.ranks() as f64;
    (is_sound(row) && is_sound(base)).then_some((faster, efficiency))
}

/// Makes the main table of `rows`, the configurations of `section`: a sweep, or all runs outside sweeps.
/// Speed-up and efficiency are relative to the topology `baseline`.
pub fn summary(section: &Section, rows: &[Row<'_>], baseline: &str) -> Sheet {
    let own = own_columns(rows);
    let settings = ["topology", "backend", "launcher"].into_iter().chain(own.iter().map(String::as_str));
    let settings = settings.chain(["oversubscribed"]);
    let mut columns: Vec<Field<'_, Row<'_>>> = settings.map(|name| setting(name, |row| row)).collect();
    columns.extend(speed_columns(rows, baseline));
    columns.extend(target::columns());
    columns.extend(OTHERS.map(|measure| measure.column().shows(move |row: &Row<'_>| measure.cell(row))));
    columns.extend(repeat_columns());
    columns.extend(program_columns(rows));
    let optional = [
        "kb_per_step",
        "seconds_to_target",
        "epochs_to_target",
        "reached_target",
        "balanced_accuracy",
        "int8_test_accuracy",
        "float_kb",
        "int8_kb",
        "times_smaller",
        "overfits_after_epoch",
        "weights",
        "changed",
        "failed_attempts",
    ];
    let overfits = rows.iter().any(|row| overfitting_epochs(&row.runs).is_some());
    let sheet = Sheet::from_rows(&section.name, title(section, rows), columns, rows);
    let sheet = sheet.with_remarks(remarks(rows, baseline, overfits)).without(|column, cells| {
        let is_empty = |cell: &&Cell| cell.value == CellValue::Nothing && cell.beside.is_empty();
        optional.contains(&column.key.as_str()) && cells.iter().all(is_empty)
    });
    sheet.led_by(&["test_accuracy"])
}

/// Makes a cell with a number of ranks or runs.
fn count_cell(number: usize, row: &Row<'_>) -> Cell {
    Cell::number(number as f64, 0, paths(row))
}

/// Returns the columns with the number of ranks, the training time, the speed-up and the efficiency. Speed-up
/// and efficiency are relative to the topology `baseline`.
fn speed_columns<'c, 'a>(rows: &'c [Row<'a>], baseline: &'c str) -> [Field<'c, Row<'a>>; 4] {
    // If all rows are on the baseline's topology, there is no speed-up.
    let several = rows.iter().any(|row| row.setting("topology") != baseline);
    let sped_up = move |row: &Row<'a>| {
        let base = row.baseline(rows, baseline).filter(|_| several)?;
        Some((speed_up(row, base)?, [paths(row), paths(base)].concat()))
    };
    let relative = format!("Median train s of {baseline} with the same settings, divided by this row's");
    let share = format!("Speed-up divided by the number of ranks, relative to {baseline}");
    [
        Column::number("ranks", "ranks")
            .means("Processes of all machines")
            .hide_order(9)
            .shows(|row: &Row<'_>| count_cell(row.ranks(), row)),
        TRAIN.column().shows(move |row: &Row<'_>| Cell { marks: marks(row, rows), ..TRAIN.cell(row) }),
        Column::number("speed-up", "speed_up").means(&relative).hide_order(1).shows(move |row: &Row<'a>| {
            Cell::maybe(sped_up(row).map(|((faster, _), runs)| Cell::number(faster, 2, runs)))
        }),
        Column::number("effic. %", "efficiency_percent").means(&share).hide_order(2).shows(
            move |row: &Row<'a>| {
                Cell::maybe(sped_up(row).map(|((_, percent), runs)| Cell::number(percent, 0, runs)))
            },
        ),
    ]
}

/// Returns the columns about a row's repeats: whether they overfit, whether they ended with the same weights,
/// and how many there are.
fn repeat_columns<'c, 'a: 'c>() -> [Field<'c, Row<'a>>; 3] {
    [
        Column::words("overfits after epoch", "overfits_after_epoch")
            .means(
                "Epoch with the lowest test loss; since then, test loss is higher and training loss is lower",
            )
            .shows(|row: &Row<'_>| Cell::maybe(overfitting_epochs(&row.runs).map(Cell::text))),
        Column::words("weights", "weights")
            .means("Whether repeats ended with the same weights; missing for several seeds")
            .shows(|row: &Row<'_>| {
                let same = row.same_weights();
                Cell::maybe(same.map(|same| Cell::text(if same { "same" } else { "differ" })))
            }),
        Column::number("runs", "runs")
            .means("Number of repeats, with one seed or several")
            .hide_order(4)
            .shows(|row: &Row<'_>| count_cell(row.runs.len(), row)),
    ]
}

/// Returns the columns that are only in files for programs: the interval of the accuracy, and the content of
/// footnotes.
fn program_columns<'c, 'a>(rows: &'c [Row<'a>]) -> [Field<'c, Row<'a>>; 5] {
    let bound = |row: &Row<'_>, end: fn(Interval) -> f64| {
        let interval = Interval::of_row(row, |run| run.results.test_accuracy);
        Cell::maybe(interval.map(|interval| Cell::number(end(interval), 2, Vec::new())))
    };
    [
        Column::number("test acc % low", "test_accuracy_low")
            .means("Lower bound of the 95% interval of test acc %")
            .for_programs()
            .shows(move |row: &Row<'_>| bound(row, |interval| interval.low)),
        Column::number("test acc % high", "test_accuracy_high")
            .means("Upper bound of the 95% interval of test acc %")
            .for_programs()
            .shows(move |row: &Row<'_>| bound(row, |interval| interval.high)),
        Column::words("doubts", "doubts").means("Why the times are unreliable").for_programs().shows(
            move |row: &Row<'_>| Cell::text(warnings(row, rows).map(|warning| warning.name).join(" ")),
        ),
        Column::words("changed", "changed").for_programs().shows(|row: &Row<'_>| {
            let changes = changes_of(row);
            Cell::maybe((!changes.is_empty()).then(|| Cell::text(changes.join(", "))))
        }),
        Column::words("failed attempts", "failed_attempts").for_programs().shows(|row: &Row<'_>| {
            let failures = failures(row);
            Cell::maybe((failures > 0).then(|| Cell::text(failures.to_string())))
        }),
    ]
}

/// Returns the varied settings that get a column. The launcher is left out, because it always has a column.
pub fn own_columns(rows: &[Row<'_>]) -> Vec<String> {
    varied(rows).into_iter().filter(|name| name != "launcher").collect()
}

/// Returns the section's title, followed by what all rows have in common.
fn title(section: &Section, rows: &[Row<'_>]) -> String {
    let varied = varied(rows);
    let common: Vec<String> = [
        "model",
        "epochs",
        "train_batch_size",
        "train_samples",
        "target_accuracy",
        "device",
        "threads",
        "mpi",
    ]
    .into_iter()
    .filter(|name| !varied.iter().any(|v| v == name) && rows[0].settings.contains_key(*name))
    .filter(|name| *name != "threads" || rows[0].setting(name) != "1")
    .map(|name| match name {
        "model" | "mpi" => rows[0].setting(name).to_owned(),
        "train_batch_size" => format!("batch {} a rank", rows[0].setting(name)),
        "epochs" => format!("epochs {}{}", rows[0].setting(name), trained(rows)),
        "target_accuracy" => {
            format!("target accuracy {}%", rows[0].setting(name).trim_end_matches(".0"))
        }
        _ => format!("{} {}", name.replace('_', " "), rows[0].setting(name)),
    })
    .collect();
    format!("{}: {}", section.title, common.join(", "))
}

/// Says how many epochs were trained, if early stopping or `--stop-at-target` ended a run before the last
/// requested epoch.
fn trained(rows: &[Row<'_>]) -> String {
    let epochs = || rows.iter().flat_map(|row| &row.runs).map(|run| run.results.epochs_run);
    match epochs().minmax().into_option() {
        Some((least, most)) if rows[0].setting("epochs") != least.to_string() => {
            let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
            format!(" ({range} were trained)")
        }
        _ => String::new(),
    }
}

/// Returns the directories of a row's runs.
pub fn paths(row: &Row<'_>) -> Vec<PathBuf> {
    row.runs.iter().map(|run| run.path.clone()).collect()
}

/// Returns columns for the topology and for the settings that differ between the rows `shown`. Each line of
/// the table is made from a value of type `R`; `row` returns the configuration of such a value.
pub fn labels<'a, R: 'a>(
    shown: &[&Row<'_>],
    row: impl for<'r> Fn(&'r R) -> &'r Row<'a> + Copy + 'a,
) -> Vec<Field<'a, R>> {
    let names: BTreeSet<&str> =
        shown.iter().flat_map(|row| row.settings.keys()).map(String::as_str).collect();
    let rows: Vec<Row<'_>> = shown.iter().map(|row| (*row).clone()).collect();
    let differs = |name: &str| rows.iter().any(|row| row.setting(name) != rows[0].setting(name));
    // A footnote of the main table says what a resume changed.
    let is_left_out = |name: &str| ["topology", "changed"].contains(&name) || is_told(name, &rows);
    let own: Vec<&str> = names.into_iter().filter(|name| !is_left_out(name) && differs(name)).collect();
    ["topology"].into_iter().chain(own).map(|name| setting(name, row)).collect()
}

/// Returns the column of the setting `name`. Each line of the table is made from a value of type `R`; `row`
/// returns the configuration of such a value.
pub fn setting<'a, R: 'a>(name: &str, row: impl for<'r> Fn(&'r R) -> &'r Row<'a> + 'a) -> Field<'a, R> {
    let title = if name == "oversubscribed" { "oversub.".to_owned() } else { name.replace('_', " ") };
    let definition = match name {
        "topology" => "Machines x processes on each",
        "backend" => "Transport of the gradients",
        "launcher" => "What started the ranks",
        "oversubscribed" => {
            "yes: more threads of ranks than cores, which take turns; shared: several hosts are one machine"
        }
        "data" => "Digest of the training samples",
        "epochs_run" => {
            "Epochs after which early stopping or --stop-at-target ended the training; all: none did"
        }
        "mpi" => "The MPI library",
        "processor" => "Processors of the machines",
        "quantized" => "The option --quantize",
        "simd_level" => "Vector instructions that the ranks used",
        "sweep" => "The sweep that the run belongs to",
        "test_available" => "Test samples in the data set",
        _ => &format!("The option --{}", name.replace('_', "-")),
    };
    let name = name.to_owned();
    let column = Column::words(&title, &name).means(definition);
    // A dash would mean a missing value. An option that was not given has an empty cell instead.
    let has_all = ["epochs_run", "test_samples", "train_samples"].contains(&name.as_str());
    let unset = if has_all { "all" } else { "" };
    column.shows(move |shown: &R| Cell::text(row(shown).settings.get(&name).map_or(unset, String::as_str)))
}

/// Whether a row is a quantized training.
pub fn is_quantized(row: &Row<'_>) -> bool {
    row.setting("quantized") != "no"
}

/// Appends the kind of quantization to `title`, if all `rows` have the same.
pub fn titled(title: &str, rows: &[&Row<'_>]) -> String {
    let kinds: BTreeSet<&str> = rows.iter().map(|row| row.setting("quantized")).collect();
    match kinds.len() {
        1 => format!("{title}, {}", rows[0].setting("quantized")),
        _ => title.to_owned(),
    }
}

/// What to show beside the median of a measurement.
#[derive(Clone, Copy, PartialEq)]
pub enum Dispersion {
    /// Nothing.
    Nothing,
    /// Minimum and maximum over repeats.
    Range,
    /// Sample standard deviation over seeds, if there are several. Repeats of one seed have the same value.
    Deviation,
    /// The standard deviation over seeds, and the binomial interval.
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
    /// See [`Column::hide_order`].
    pub hide_order: u8,
    /// See [`Column::definition`].
    pub definition: &'static str,
    /// Whether the measurement is a time. Times have three significant digits below 1.
    pub timed: bool,
    /// What to show beside the median.
    pub beside: Dispersion,
    /// Returns the value of a run; NaN if the run did not measure it.
    pub read: fn(&Run) -> f64,
}

impl Measure {
    /// Makes a measurement with two decimal places and nothing beside the median.
    pub const fn new(title: &'static str, key: &'static str, read: fn(&Run) -> f64) -> Self {
        Self {
            title,
            key,
            digits: 2,
            hide_order: 0,
            definition: "",
            timed: false,
            beside: Dispersion::Nothing,
            read,
        }
    }

    /// Sets the number of decimal places.
    pub const fn digits(self, digits: usize) -> Self {
        Self { digits, ..self }
    }

    /// Declares a time, which is shown with its range over repeats.
    pub const fn timed(self) -> Self {
        Self { timed: true, beside: Dispersion::Range, ..self }
    }

    /// Sets [`Column::hide_order`].
    pub const fn hide_order(self, hide_order: u8) -> Self {
        Self { hide_order, ..self }
    }

    /// Sets what to show beside the median.
    pub const fn beside(self, beside: Dispersion) -> Self {
        Self { beside, ..self }
    }

    /// Sets the definition of the column.
    pub const fn means(self, definition: &'static str) -> Self {
        Self { definition, ..self }
    }

    /// Returns the column of the measurement.
    pub fn column(&self) -> Column {
        Column::spread(self.title, self.key).means(self.definition).hide_order(self.hide_order)
    }

    /// Returns the cell of a row; a cell without a value if a run did not measure it.
    pub fn cell(&self, row: &Row<'_>) -> Cell {
        let spread = row.spread(self.read);
        let digits = if self.timed { decimals(spread.median, self.digits) } else { self.digits };
        if !spread.is_known() {
            return Cell::of_runs(paths(row));
        }
        let deviation = match row.seeds().len() {
            1 => String::new(),
            _ => format!("±{:.digits$}", deviation(row, self.read)),
        };
        let beside = match self.beside {
            Dispersion::Range if spread.count > 1 => {
                format!("({:.digits$}–{:.digits$})", spread.min, spread.max)
            }
            Dispersion::Nothing | Dispersion::Range => String::new(),
            Dispersion::Deviation => deviation,
            Dispersion::Interval => {
                let interval = Interval::of_row(row, self.read).map_or_else(String::new, |ends| {
                    format!("[{:.digits$}–{:.digits$}]", ends.low, ends.high)
                });
                [deviation, interval].join(" ").trim().to_owned()
            }
        };
        Cell { value: CellValue::Number(spread, digits), beside, ..Cell::of_runs(paths(row)) }
    }
}

/// Training time, always the first measurement.
pub const TRAIN: Measure = Measure::new("train s", "train_seconds", |run| run.results.train_seconds)
    .timed()
    .means("Seconds of the training loops, without tests, start-up and checkpoints");

/// Time of a step.
pub const STEP: Measure = Measure::new("ms/step", "ms_per_step", |run| run.results.ms_per_step)
    .digits(3)
    .hide_order(7)
    .timed()
    .means("train s divided by the number of optimizer steps, in milliseconds");

/// The measurements after the speed-up.
pub const OTHERS: [Measure; 16] = [
    Measure::new("exposed comm %", "exposed_comm_percent", exposed_percent)
        .digits(1)
        .hide_order(3)
        .beside(Dispersion::Range)
        .means(
            "Share of train s in which a rank only waited for gradients, mean over ranks; excludes \
             communication hidden behind backward",
        ),
    Measure::new("KB/step", "kb_per_step", kb_per_step).digits(1).hide_order(8).means(
        "Bytes that a rank passes to all-reduces in a step, mean over steps; 1 KB is 1024 bytes. A \
             reduce-scatter and a gather count as half an all-reduce each",
    ),
    Measure::new("test acc %", "test_accuracy", |run| run.results.test_accuracy)
        .beside(Dispersion::Interval)
        .means("Accuracy on the tested samples after the last epoch, each sample counted once"),
    Measure::new("balanced acc %", "balanced_accuracy", balanced_accuracy)
        .hide_order(5)
        .beside(Dispersion::Deviation)
        .means("Mean of the classes' recalls: each class has the same weight"),
    Measure::new("largest class %", "largest_class_percent", |run| match run.record.data.test_samples {
        0 => f64::NAN,
        _ => chance(run),
    })
    .hide_order(5)
    .means(
        "Share of the largest class among the tested samples: the accuracy of always predicting this class",
    ),
    Measure::new("int8 test acc %", "int8_test_accuracy", |run| {
        run.results.int8_test_accuracy.unwrap_or(f64::NAN)
    })
    .hide_order(1)
    .beside(Dispersion::Interval)
    .means("Test accuracy of the int8 model"),
    Measure::new("float KB", "float_kb", |run| stored_kb(run).map_or(f64::NAN, |[float, _]| float))
        .digits(1)
        .hide_order(4)
        .means("Size of the float weights (model.safetensors) in the last checkpoint; 1 KB is 1024 bytes"),
    Measure::new("int8 KB", "int8_kb", |run| stored_kb(run).map_or(f64::NAN, |[_, int8]| int8))
        .digits(1)
        .hide_order(3)
        .means("Size of the int8 model (int8.safetensors) in the last checkpoint; 1 KB is 1024 bytes"),
    Measure::new("times smaller", "times_smaller", times_smaller)
        .hide_order(2)
        .means("float KB divided by int8 KB"),
    Measure::new("train acc %", "train_accuracy", |run| run.results.train_accuracy)
        .hide_order(6)
        .beside(Dispersion::Deviation)
        .means("Accuracy on the training samples during the last epoch"),
    Measure::new("live MB", "live_mb", |run| run.results.live_mb.unwrap_or(f64::NAN))
        .hide_order(5)
        .means("Peak of live tensors in a training step, in 2^20 bytes, on the rank with the highest peak"),
    STEP,
    Measure::new("train+test s", "train_and_test_seconds", with_tests)
        .hide_order(8)
        .timed()
        .means("Seconds of training and of the tests after each epoch"),
    Measure::new("images/s", "images_per_second", |run| run.results.images_per_second)
        .digits(0)
        .hide_order(9)
        .means("Training samples of all ranks, divided by the column `train s`"),
    Measure::new("peak RSS MB", "peak_rss_mb", |run| run.results.peak_rss_mb)
        .digits(0)
        .hide_order(9)
        .means("Peak resident memory, in 2^20 bytes, on the rank with the highest peak"),
    Measure::new("others CPU %", "others_cpu_percent", |run| {
        run.results.others_cpu_percent.unwrap_or(f64::NAN)
    })
    .digits(1)
    .hide_order(9)
    .means("Share of the machine's CPU time that other programs used during the run"),
];

/// Returns the file sizes of the float weights and of the int8 model in a run's last checkpoint, in KB of
/// 1024 bytes; `None` if the checkpoint lacks one of the two files, or its int8 model is not of the kind that
/// the training made.
pub fn stored_kb(run: &Run) -> Option<[f64; 2]> {
    let last = list(&run.path.join("checkpoints")).ok()?.pop()?;
    let kb = |name: &str| Some(last.join(name).metadata().ok()?.len() as f64 / 1024.0);
    // `mpiburn quantize` may have replaced the training's int8 model by one of another kind.
    let stored = method_of(&last.join(INT8_FILE));
    let trained = Method::deserialize(run.option("quantize")).ok();
    if stored.zip(trained).is_some_and(|(stored, trained)| stored != trained) {
        return None;
    }
    Some([kb(MODEL)?, kb(INT8_FILE)?]).filter(|[_, int8]| *int8 > 0.0)
}

/// Returns the float weights' file size divided by the int8 model's; NaN without an int8 model.
pub fn times_smaller(run: &Run) -> f64 {
    stored_kb(run).map_or(f64::NAN, |[float, int8]| float / int8)
}

/// Returns the sample standard deviation over the seeds of a row, which must have at least two. Repeats of
/// one seed have the same value.
fn deviation(row: &Row<'_>, read: fn(&Run) -> f64) -> f64 {
    let by_seed: BTreeMap<u64, f64> = row.runs.iter().map(|run| (run.seed(), read(run))).collect();
    let count = by_seed.len() as f64;
    let mean = by_seed.values().sum::<f64>() / count;
    (by_seed.values().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt()
}

/// Returns the seconds of training and tests.
pub fn with_tests(run: &Run) -> f64 {
    run.results.train_seconds + run.results.test_seconds
}

/// Returns the balanced accuracy of the last test; NaN if the run did not record it.
pub fn balanced_accuracy(run: &Run) -> f64 {
    run.results.by_class.as_ref().map_or(f64::NAN, |by_class| by_class.balanced_accuracy)
}

/// Returns the KB that a rank passes to all-reduces in a step; NaN for a single rank, which sends nothing,
/// and in runs of older versions.
pub fn kb_per_step(run: &Run) -> f64 {
    match run.record.world_size {
        1 => f64::NAN,
        _ => run.results.bytes_per_step.map_or(f64::NAN, |bytes| bytes / 1024.0),
    }
}

/// Returns the percentage of the training time in which a rank only waited for gradients; NaN for a single
/// rank, which does not wait.
pub fn exposed_percent(run: &Run) -> f64 {
    match run.record.world_size {
        1 => f64::NAN,
        _ => 100.0 * wait_seconds(&run.results) / run.results.train_seconds,
    }
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
