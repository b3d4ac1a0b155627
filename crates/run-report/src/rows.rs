//! Rows of the tables: each is a configuration with its repeats. This module also decides whether two rows
//! differ.
//!
//! A difference of times is a finding only if it is larger than the spread of repeats. A difference of
//! accuracies is a finding only if their binomial confidence intervals do not overlap.

use itertools::Itertools;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use run_record::Part;

use super::allreduce::median;
use super::remarks::REPEATS;
use super::runs::{QUANTIZED, Run};
use super::sheet::significant;

/// Median and range of a measurement over repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Median of the values.
    pub median: f64,
    /// Minimum of the values.
    pub min: f64,
    /// Maximum of the values.
    pub max: f64,
    /// Number of values.
    pub count: usize,
}

impl Spread {
    /// Computes the spread of `values`, which must not be empty.
    pub fn from_values(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (min, max) = (values[0], values[values.len() - 1]);
        Self { median: median(&values), min, max, count: values.len() }
    }

    /// Whether all runs measured the value. NaN stands for a value that a run did not measure.
    pub fn is_known(&self) -> bool {
        !(self.min.is_nan() || self.max.is_nan())
    }

    /// Returns maximum minus minimum, in percent of the median.
    pub fn range_percent(&self) -> f64 {
        100.0 * (self.max - self.min) / self.median
    }
}

/// A configuration: runs with equal settings, which are repeats of each other.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    /// The runs; there is at least one.
    pub runs: Vec<&'a Run>,
    /// The settings that all runs share, by name. `seed` lists the seeds of all runs.
    pub settings: BTreeMap<String, String>,
}

/// Settings that have a fixed column or a footnote in every table.
const PLACED: [&str; 5] = ["backend", "changed", "launcher", "oversubscribed", "topology"];

impl<'a> Row<'a> {
    /// Returns the first run.
    pub fn first(&self) -> &'a Run {
        self.runs[0]
    }

    /// Returns the spread of a measurement over the runs.
    pub fn spread(&self, read: impl Fn(&Run) -> f64) -> Spread {
        Spread::from_values(self.runs.iter().map(|run| read(run)).collect())
    }

    /// Returns the value of a setting; `–` if the option was not given.
    pub fn setting(&self, name: &str) -> &str {
        self.settings.get(name).map_or("–", String::as_str)
    }

    /// Returns the spread of the training time in seconds.
    pub fn train_seconds(&self) -> Spread {
        self.spread(|run| run.results.train_seconds)
    }

    /// Returns the seeds of the runs. Only rows of sweeps have several.
    pub fn seeds(&self) -> BTreeSet<u64> {
        self.runs.iter().map(|run| run.seed()).collect()
    }

    /// Whether all runs ended with the same weights. `None` for a single run, and for runs with different
    /// seeds, whose weights differ anyway.
    pub fn same_weights(&self) -> Option<bool> {
        let digest = |run: &Run| run.results.weights_sha256.clone();
        let is_repeated = self.runs.len() > 1 && self.seeds().len() == 1;
        is_repeated.then(|| self.runs.iter().all(|run| digest(run) == digest(self.first())))
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.first().record.world_size
    }

    /// Returns what the option `name` is about, see [`Part`]; `None` if `name` is not an option.
    pub fn part(&self, name: &str) -> Option<Part> {
        let field = if name == QUANTIZED { "quantize" } else { name };
        self.first().record.schema.row(field).map(|row| row.part)
    }

    /// Whether a setting is the backend, or an option of a single backend. Such settings have no effect on
    /// one rank, which does not communicate.
    pub fn is_of_backend(&self, name: &str) -> bool {
        let row = self.first().record.schema.row(name);
        let needs = row.and_then(|row| row.only_with.as_ref()).map(|(other, _)| other.as_str());
        name == "backend" || needs == Some("backend")
    }

    /// Whether a setting belongs to the communication: the transport, the launcher, or what is sent and how.
    pub fn is_of_transport(&self, name: &str) -> bool {
        self.part(name) == Some(Part::Communication) || ["launcher", "mpi"].contains(&name)
    }

    /// Whether a setting determines which samples are trained on. The network is such a setting: without
    /// `--data-root`, it determines the data set.
    pub fn is_of_samples(&self, name: &str) -> bool {
        name == "model" || (self.part(name) == Some(Part::Data) && name != "test_samples")
    }

    /// Whether the two rows are equal in all settings for which `except` returns false.
    pub fn equals_except(&self, other: &Self, except: impl Fn(&str) -> bool) -> bool {
        let mut names = self.settings.keys().chain(other.settings.keys()).filter(|name| !except(name));
        names.all(|name| self.setting(name) == other.setting(name))
    }

    /// Returns the row on `topology` that this row's speed-up is relative to. The two rows are equal in all
    /// settings except topology, oversubscription and transport. Of several such rows, the one whose
    /// transport settings differ least is returned. A row of one rank may be over another backend, because
    /// one rank does not communicate.
    pub fn baseline<'r>(&self, rows: &'r [Row<'a>], topology: &str) -> Option<&'r Row<'a>> {
        let alone = |row: &Row<'a>| row.ranks() == 1 || row.setting("backend") == self.setting("backend");
        let is_excepted =
            |name: &str| self.is_of_transport(name) || ["topology", "oversubscribed"].contains(&name);
        let same = |row: &&Row<'a>| {
            row.setting("topology") == topology && alone(row) && self.equals_except(row, is_excepted)
        };
        let differences = |row: &&Row<'a>| {
            let names = self.settings.keys().chain(row.settings.keys()).sorted().dedup();
            let differs = |name: &&String| self.setting(name) != row.setting(name);
            Reverse(names.filter(|name| self.is_of_transport(name)).filter(differs).count())
        };
        rows.iter().filter(same).max_by_key(differences)
    }

    /// Returns a label that distinguishes the row from others on its topology: the backend, and the `varied`
    /// settings that are on.
    pub fn label(&self, varied: &[String]) -> String {
        let mut words = vec![self.setting("backend").to_owned()];
        words.extend(self.used(varied));
        words.join(", ")
    }

    /// Returns the row's topology and [`label`](Self::label).
    pub fn place(&self, varied: &[String]) -> String {
        format!("{} ({})", self.setting("topology"), self.label(varied))
    }

    /// Returns what distinguishes the row from the others in `rows`; `varied` are the settings in which they
    /// differ. Topology and backend are included if they differ, or if there is only one row.
    pub fn name(&self, rows: &[Row<'_>], varied: &[String]) -> String {
        let differs = |name: &&str| rows.iter().any(|other| other.setting(name) != self.setting(name));
        let place = ["topology", "backend"];
        let transport: Vec<&str> = place.into_iter().filter(differs).map(|name| self.setting(name)).collect();
        let transport = Some(transport.join(" ")).filter(|words| !words.is_empty());
        match transport.into_iter().chain(self.used(varied)).collect::<Vec<_>>() {
            words if !words.is_empty() => words.join(", "),
            _ if rows.len() > 1 => match self.told(varied) {
                words if words.is_empty() => "not changed by a resume".into(),
                words => words.join(", "),
            },
            _ => place.map(|name| self.setting(name)).join(" "),
        }
    }

    /// Returns the varied settings that are on, as text. If all are off, returns them all.
    pub fn told(&self, varied: &[String]) -> Vec<String> {
        told(varied.iter().map(|name| (name.as_str(), self.setting(name))))
    }

    /// Returns the varied settings that are on, as text. A setting that is off is included only if it is
    /// needed: one of `others` has the same values for all settings that are on, but another value for this
    /// setting. `None` if the result is empty.
    pub fn told_among<'r>(
        &self,
        others: impl Iterator<Item = &'r Row<'r>> + Clone,
        varied: &[String],
    ) -> Option<Vec<String>> {
        let differs = |name: &String, other: &Row<'_>| self.setting(name) != other.setting(name);
        let is_on = |name: &String| word(name, self.setting(name)).is_some();
        let is_alike = |other: &&Row<'_>| !varied.iter().any(|name| is_on(name) && differs(name, other));
        let alike = others.filter(is_alike);
        let text = |name: &String| {
            let off = || {
                unset(name, self.setting(name)).filter(|_| alike.clone().any(|other| differs(name, other)))
            };
            word(name, self.setting(name)).or_else(off)
        };
        let words: Vec<String> = varied.iter().filter_map(text).collect();
        (!words.is_empty()).then_some(words)
    }

    /// Returns the varied settings that are on, as text, and whether a resume changed options. [`is_off`]
    /// says which values count as off.
    pub fn used(&self, varied: &[String]) -> Vec<String> {
        let changed = self.settings.contains_key("changed").then(|| "changed by a resume".to_owned());
        self.words(varied).into_iter().chain(changed).collect()
    }

    /// Returns the varied settings that are on, as text.
    pub fn words(&self, varied: &[String]) -> Vec<String> {
        varied.iter().filter_map(|name| word(name, self.setting(name))).collect()
    }
}

/// Returns a setting as text; `None` if it is off.
pub fn word(name: &str, value: &str) -> Option<String> {
    match name {
        "launcher" if value == "alone" => Some("without launcher".into()),
        "topology" | "backend" | "launcher" | "mpi" | "model" | "sweep" => Some(value.to_owned()),
        "seed" | "rank" => Some(format!("{name} {value}")),
        "oversubscribed" if value != "no" => Some(value.replace("yes", name)),
        _ if is_off(value) => None,
        _ if ["true", "on"].contains(&value) => Some(name.replace('_', " ")),
        _ => Some(format!("{} {value}", name.replace('_', " "))),
    }
}

/// Returns the settings that are on, as text. If all are off, returns them as text too: other rows have them
/// on.
pub fn told<'s>(settings: impl Iterator<Item = (&'s str, &'s str)> + Clone) -> Vec<String> {
    let words: Vec<String> = settings.clone().filter_map(|(name, value)| word(name, value)).collect();
    if words.is_empty() { settings.filter_map(|(name, value)| unset(name, value)).collect() } else { words }
}

/// Returns a setting that is off as text; `None` if the row has no value for it and it is not an option, such
/// as the sweep.
pub fn unset(name: &str, value: &str) -> Option<String> {
    let title = name.replace('_', " ");
    match value {
        "–" | "" if ["data", "simd_level", "sweep", "test_available"].contains(&name) => None,
        "–" | "" if name == "epochs_run" => Some("all epochs".into()),
        "–" | "" if ["train_samples", "test_samples"].contains(&name) => Some(format!("{title} all")),
        "–" | "" => Some(format!("default {title}")),
        value => Some(format!("{title} {}", typed(value))),
    }
}

/// Returns the value of an option as it is given on the command line.
pub fn typed(value: &str) -> &str {
    match value {
        "true" => "on",
        "false" => "off",
        "0.0" => "0",
        other => other,
    }
}

/// Whether this value means that a setting is off or was not given.
pub fn is_off(value: &str) -> bool {
    ["", "–", "false", "no", "off"].contains(&value) || value.parse() == Ok(0.0)
}

/// Groups runs with equal settings into rows, sorted by ranks, topology and settings. Runs of a sweep that
/// differ only in the seed form one row.
pub fn group(runs: &[Run]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for run in runs {
        let mut settings = run.settings();
        if run.sweep.is_some() {
            settings.remove("seed");
            // With other seeds, a training reaches its target after other times.
            if run.stopped_at_target() {
                settings.remove("epochs_run");
            }
        }
        match rows.iter_mut().find(|row| row.settings == settings) {
            Some(row) => row.runs.push(run),
            None => rows.push(Row { runs: vec![run], settings }),
        }
    }
    for row in &mut rows {
        row.settings.insert("seed".into(), row.seeds().iter().join(", "));
        if row.runs.iter().any(|run| run.stopped_at_target()) {
            let epochs = row.runs.iter().map(|run| significant(run.epochs_trained(), 3)).sorted().dedup();
            row.settings.insert("epochs_run".into(), epochs.collect::<Vec<_>>().join(", "));
        }
    }
    let names: BTreeSet<String> = rows.iter().flat_map(|row| row.settings.keys().cloned()).collect();
    rows.sort_by(|a, b| {
        let by_setting = || names.iter().map(|name| compare(a.setting(name), b.setting(name)));
        (a.ranks().cmp(&b.ranks()))
            .then_with(|| a.setting("topology").cmp(b.setting("topology")))
            .then_with(|| by_setting().find(|order| order.is_ne()).unwrap_or(Ordering::Equal))
    });
    rows
}

/// Compares numbers by value, and other texts alphabetically. Numbers come before other texts.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(x), Ok(y)) => x.total_cmp(&y),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => a.cmp(b),
    }
}

/// Returns the settings that differ between rows, except those that have a fixed column or footnote, or that
/// [`is_told`] omits. The launcher is included, although it has a fixed column.
pub fn varied(rows: &[Row<'_>]) -> Vec<String> {
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.settings.keys()).collect();
    let differs = |name: &&String| rows.iter().any(|row| row.setting(name) != rows[0].setting(name));
    let own_column = |name: &&String| PLACED.contains(&name.as_str()) && name.as_str() != "launcher";
    let shown = |name: &&String| !own_column(name) && !is_told(name, rows);
    names.into_iter().filter(differs).filter(shown).cloned().collect()
}

/// Whether tables omit the setting `name`. They omit the digest of the training samples and the size of the
/// test set, if other settings of the samples already distinguish all rows that differ in this setting.
pub fn is_told(name: &str, rows: &[Row<'_>]) -> bool {
    let told = |a: &Row<'_>, b: &Row<'_>| !a.equals_except(b, |name| !a.is_of_samples(name));
    let same = |a: &Row<'_>, b: &Row<'_>| a.setting(name) == b.setting(name);
    ["data", "test_available"].contains(&name)
        && rows.iter().all(|a| rows.iter().all(|b| same(a, b) || told(a, b)))
}

/// Minimum difference in percent for two times to count as different, if one of them has fewer than
/// [`REPEATS`] repeats. Three repeats of a training of one to three seconds, undisturbed on two cores, had
/// ranges of up to 7% of their median.
pub const FEW_PERCENT: f64 = 10.0;

/// The 97.5% quantile of the standard normal distribution, for a 95% interval.
const Z: f64 = 1.959_964;

/// Explains to readers when a difference is a finding.
pub fn rule() -> String {
    format!(
        "Times differ if the ranges of their repeats do not overlap. With fewer than {REPEATS} repeats, the times must also \
         be more than {FEW_PERCENT}% apart. Accuracies differ if their 95% intervals (Wilson) do not overlap. If the \
         intervals overlap, a test with more samples may show a difference. A row is at chance level if the interval of \
         each of its runs begins at or below the share of the largest class, and if its balanced accuracy is not higher \
         than with random answers."
    )
}

/// Whether two times differ by more than noise.
pub fn times_differ(a: &Spread, b: &Spread) -> bool {
    let apart = a.max < b.min || b.max < a.min;
    let repeated = a.count >= REPEATS && b.count >= REPEATS;
    apart && (repeated || few_differ(a.median, b.median))
}

/// Whether two times with fewer than [`REPEATS`] repeats differ by more than noise.
pub fn few_differ(a: f64, b: f64) -> bool {
    a.max(b) > (1.0 + FEW_PERCENT / 100.0) * a.min(b)
}

/// 95% confidence interval of an accuracy, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

impl Interval {
    /// Computes the interval of an accuracy of `percent` on `samples` samples, by Wilson, "Probable
    /// inference, the law of succession, and statistical inference" (JASA 22, 1927).
    pub fn wilson(percent: f64, samples: usize) -> Self {
        let (n, p) = (samples as f64, percent / 100.0);
        let centre = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
        let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt() / (1.0 + Z * Z / n);
        Self { low: 100.0 * (centre - half).max(0.0), high: 100.0 * (centre + half).min(1.0) }
    }

    /// Computes the interval of the accuracy that `read` returns for each run of `row`: from the lowest bound
    /// of a run to the highest. `None` if an accuracy is unknown, or nothing was tested.
    pub fn of_row(row: &Row<'_>, read: impl Fn(&Run) -> f64) -> Option<Self> {
        let intervals: Vec<Self> =
            row.runs.iter().map(|run| Self::of_run(run, &read)).collect::<Option<_>>()?;
        Some(Self {
            low: intervals.iter().map(|interval| interval.low).fold(f64::INFINITY, f64::min),
            high: intervals.iter().map(|interval| interval.high).fold(0.0, f64::max),
        })
    }

    /// Computes the interval of the accuracy that `read` returns for `run`. `None` if the accuracy is
    /// unknown, or nothing was tested.
    pub fn of_run(run: &Run, read: impl Fn(&Run) -> f64) -> Option<Self> {
        let percent = Some(read(run)).filter(|percent| !percent.is_nan())?;
        Some(Self::wilson(percent, Some(run.record.data.test_samples).filter(|&samples| samples > 0)?))
    }

    /// Whether the intervals are disjoint.
    pub fn is_apart(self, other: Self) -> bool {
        self.high < other.low || other.high < self.low
    }
}

/// Minimum number of correctly predicted samples outside the largest class. With fewer, a network does not
/// count as telling classes apart, because the normal approximation of this number is not valid.
const LEAST_CORRECT: u64 = 5;
/// Number of standard errors by which a balanced accuracy must exceed the balanced accuracy of random
/// predictions.
const ERRORS: f64 = 3.0;

/// Whether the network of `run` tells classes apart: its balanced accuracy is well above the balanced
/// accuracy of a random model. The random model predicts each class as often as the network does, but
/// independently of the sample. If most samples belong to one class, the plain accuracy does not show this.
pub fn tells_classes_apart(run: &Run) -> bool {
    let Some(by_class) = &run.results.by_class else { return false };
    let tested: Vec<_> = by_class.classes.iter().filter(|class| class.samples > 0).collect();
    let all = tested.iter().map(|class| class.samples).sum::<u64>() as f64;
    let most = tested.iter().max_by_key(|class| class.samples).map_or(0, |class| class.correct);
    let correct: u64 = tested.iter().map(|class| class.correct).sum();
    // `expected` and `found` are sums of recalls. If predictions do not depend on the sample, the expected
    // recall of a class is the share of predictions that name it.
    let named = |class: &&run_record::ClassRecord| (class.named as f64 / all).min(1.0);
    let expected: f64 = tested.iter().map(named).sum();
    let found: f64 = tested.iter().map(|class| class.correct as f64 / class.samples as f64).sum();
    let share = |class: &&run_record::ClassRecord| named(class) * (1.0 - named(class)) / class.samples as f64;
    let error = tested.iter().map(share).sum::<f64>().sqrt();
    correct.saturating_sub(most) >= LEAST_CORRECT && found - expected > ERRORS * error
}

/// Returns the accuracy, in percent, of always predicting the largest class of the tested samples.
pub fn chance(run: &Run) -> f64 {
    let data = &run.record.data;
    100.0 * data.test_largest_class as f64 / data.test_samples.max(1) as f64
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
