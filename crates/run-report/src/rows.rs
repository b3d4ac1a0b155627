//! Rows of the tables: repeats of one configuration are grouped, and rows are compared with each other. A difference of
//! times is a finding beyond the spread of repeats, one of accuracies beyond their binomial intervals.

use itertools::Itertools;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use run_record::Part;

use super::allreduce::median;
use super::remarks::REPEATS;
use super::runs::{QUANTIZED, Run};

/// Median and range of a measurement over repeats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// Number of values.
    pub count: usize,
}

impl Spread {
    /// The spread of `values`, which is not empty.
    pub fn from_values(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (min, max) = (values[0], values[values.len() - 1]);
        Self { median: median(&values), min, max, count: values.len() }
    }

    /// Whether no value is NaN, which stands for a value that a run did not measure.
    pub fn is_known(&self) -> bool {
        !(self.min.is_nan() || self.max.is_nan())
    }

    /// Difference of maximum and minimum, in percent of the median.
    pub fn range_percent(&self) -> f64 {
        100.0 * (self.max - self.min) / self.median
    }
}

/// Repeats: runs with equal settings.
#[derive(Debug, Clone)]
pub struct Row<'a> {
    /// The runs, at least one.
    pub runs: Vec<&'a Run>,
    /// Their settings.
    pub settings: BTreeMap<String, String>,
}

/// Settings with a fixed column, or a footnote.
const PLACED: [&str; 5] = ["backend", "changed", "launcher", "oversubscribed", "topology"];

impl<'a> Row<'a> {
    /// The first repeat.
    pub fn first(&self) -> &'a Run {
        self.runs[0]
    }

    /// A measurement over the repeats.
    pub fn spread(&self, read: impl Fn(&Run) -> f64) -> Spread {
        Spread::from_values(self.runs.iter().map(|run| read(run)).collect())
    }

    /// A setting; `–` where the option was not given.
    pub fn setting(&self, name: &str) -> &str {
        self.settings.get(name).map_or("–", String::as_str)
    }

    /// Seconds of training.
    pub fn train_seconds(&self) -> Spread {
        self.spread(|run| run.results.train_seconds)
    }

    /// Seeds of the runs, of which only a sweep's rows have several.
    pub fn seeds(&self) -> BTreeSet<u64> {
        self.runs.iter().map(|run| run.seed()).collect()
    }

    /// Whether repeats ended with the same weights; `None` of one run, and of several seeds, whose weights differ.
    pub fn same_weights(&self) -> Option<bool> {
        let digest = |run: &Run| run.results.weights_sha256.clone();
        let is_repeated = self.runs.len() > 1 && self.seeds().len() == 1;
        is_repeated.then(|| self.runs.iter().all(|run| digest(run) == digest(self.first())))
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.first().record.world_size
    }

    /// What a setting is about; none of one that is no option of this version.
    pub fn part(&self, name: &str) -> Option<Part> {
        let field = if name == QUANTIZED { "quantize" } else { name };
        self.first().record.schema.row(field).map(|row| row.part)
    }

    /// Whether a setting is the backend, or of one backend alone. One rank communicates over none.
    pub fn is_of_backend(&self, name: &str) -> bool {
        let row = self.first().record.schema.row(name);
        let needs = row.and_then(|row| row.only_with.as_ref()).map(|(other, _)| other.as_str());
        name == "backend" || needs == Some("backend")
    }

    /// Whether a setting is of the transport, or of what is sent over it, and of how.
    pub fn is_of_transport(&self, name: &str) -> bool {
        self.part(name) == Some(Part::Communication) || ["launcher", "mpi"].contains(&name)
    }

    /// Whether a setting says which samples are trained on.
    pub fn is_of_samples(&self, name: &str) -> bool {
        name == "model" || (self.part(name) == Some(Part::Data) && name != "test_samples")
    }

    /// Whether the rows have equal settings, except for those of which `except` is true.
    pub fn equals_except(&self, other: &Self, except: impl Fn(&str) -> bool) -> bool {
        let mut names = self.settings.keys().chain(other.settings.keys()).filter(|name| !except(name));
        names.all(|name| self.setting(name) == other.setting(name))
    }

    /// The row on `topology` that this one's speed-up is relative to: equal in all
    /// settings of the computation, and among those the closest in transport settings. One rank communicates with none,
    /// so that its row over another backend will do.
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

    /// Label that distinguishes this row from others on its topology: its backend, and
    /// the varied settings that are in use.
    pub fn label(&self, varied: &[String]) -> String {
        let mut words = vec![self.setting("backend").to_owned()];
        words.extend(self.used(varied));
        words.join(", ")
    }

    /// The row's topology, and the `varied` settings that tell it from others on it.
    pub fn place(&self, varied: &[String]) -> String {
        format!("{} ({})", self.setting("topology"), self.label(varied))
    }

    /// What tells the row from others of `rows`, whose `varied` settings these are; topology and backend where they do not differ and it is the only one.
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

    /// The varied settings as text: those that are on, or else all of them.
    pub fn told(&self, varied: &[String]) -> Vec<String> {
        told(varied.iter().map(|name| (name.as_str(), self.setting(name))))
    }

    /// The varied settings that are on, as text. A setting that is off is named if the row differs from one of `others`
    /// in nothing else. `None` if there are no words.
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

    /// The varied settings as text, without those that are off: `–`, `false`, 0.
    pub fn used(&self, varied: &[String]) -> Vec<String> {
        let changed = self.settings.contains_key("changed").then(|| "changed by a resume".to_owned());
        self.words(varied).into_iter().chain(changed).collect()
    }

    /// The same without whether options were changed.
    pub fn words(&self, varied: &[String]) -> Vec<String> {
        varied.iter().filter_map(|name| word(name, self.setting(name))).collect()
    }
}

/// A setting in words; none for one that is off.
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

/// The settings that are on in words. If all are off, the words say so, because other rows have them on.
pub fn told<'s>(settings: impl Iterator<Item = (&'s str, &'s str)> + Clone) -> Vec<String> {
    let words: Vec<String> = settings.clone().filter_map(|(name, value)| word(name, value)).collect();
    if words.is_empty() { settings.filter_map(|(name, value)| unset(name, value)).collect() } else { words }
}

/// A setting that is off in words; none for one that is no option.
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

/// The value of an option as it is typed.
pub fn typed(value: &str) -> &str {
    match value {
        "true" => "on",
        "false" => "off",
        "0.0" => "0",
        other => other,
    }
}

/// Whether a setting with this value is off, or was not given.
pub fn is_off(value: &str) -> bool {
    ["", "–", "false", "no", "off"].contains(&value) || value.parse() == Ok(0.0)
}

/// Rows of `runs`, sorted by ranks, topology and settings. Several seeds of a sweep are one row.
pub fn group(runs: &[Run]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for run in runs {
        let mut settings = run.settings();
        if run.sweep.is_some() {
            settings.remove("seed");
        }
        match rows.iter_mut().find(|row| row.settings == settings) {
            Some(row) => row.runs.push(run),
            None => rows.push(Row { runs: vec![run], settings }),
        }
    }
    for row in &mut rows {
        row.settings.insert("seed".into(), row.seeds().iter().join(", "));
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

/// Compares numbers by value, before words in alphabetical order.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(x), Ok(y)) => x.total_cmp(&y),
        (Ok(_), Err(_)) => Ordering::Less,
        (Err(_), Ok(_)) => Ordering::Greater,
        (Err(_), Err(_)) => a.cmp(b),
    }
}

/// Settings that differ between rows, except those with a fixed column; the launcher is
/// included.
pub fn varied(rows: &[Row<'_>]) -> Vec<String> {
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.settings.keys()).collect();
    let differs = |name: &&String| rows.iter().any(|row| row.setting(name) != rows[0].setting(name));
    let own_column = |name: &&String| PLACED.contains(&name.as_str()) && name.as_str() != "launcher";
    let shown = |name: &&String| !own_column(name) && !is_told(name, rows);
    names.into_iter().filter(differs).filter(shown).cloned().collect()
}

/// Whether `name` is the digest of the training samples or the size of the test set, and options tell those of `rows`
/// apart already.
pub fn is_told(name: &str, rows: &[Row<'_>]) -> bool {
    let told = |a: &Row<'_>, b: &Row<'_>| !a.equals_except(b, |name| !a.is_of_samples(name));
    let same = |a: &Row<'_>, b: &Row<'_>| a.setting(name) == b.setting(name);
    ["data", "test_available"].contains(&name)
        && rows.iter().all(|a| rows.iter().all(|b| same(a, b) || told(a, b)))
}

/// Times of fewer than [`REPEATS`] runs that differ by no more, in percent, are equal: the ranges of three repeats of a
/// training of one to three seconds, undisturbed on two cores, were up to 7% of their median.
pub const FEW_PERCENT: f64 = 10.0;

/// The z of a 95% interval.
const Z: f64 = 1.959_964;

/// How it is decided that a difference is a finding, for readers.
pub fn rule() -> String {
    format!(
        "Times differ if the ranges of their repeats do not overlap. With fewer than {REPEATS} repeats, the times must also \
         be more than {FEW_PERCENT}% apart. Accuracies differ if their 95% intervals (Wilson) do not overlap. If the \
         intervals overlap, a test with more samples may tell the accuracies apart. A row is at chance level if the \
         interval of each of its runs reaches down to the share of the largest class, and if its balanced accuracy is no \
         higher than that of random answers."
    )
}

/// Whether two times differ by more than noise.
pub fn times_differ(a: &Spread, b: &Spread) -> bool {
    let apart = a.max < b.min || b.max < a.min;
    let repeated = a.count >= REPEATS && b.count >= REPEATS;
    apart && (repeated || few_differ(a.median, b.median))
}

/// Whether two times of few runs differ by more than noise.
pub fn few_differ(a: f64, b: f64) -> bool {
    a.max(b) > (1.0 + FEW_PERCENT / 100.0) * a.min(b)
}

/// A 95% interval of an accuracy, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Its lower bound.
    pub low: f64,
    /// Its upper bound.
    pub high: f64,
}

impl Interval {
    /// The interval of an accuracy of `percent` on `samples` samples: Wilson, "Probable inference, the law of
    /// succession, and statistical inference" (JASA 22, 1927).
    pub fn wilson(percent: f64, samples: usize) -> Self {
        let (n, p) = (samples as f64, percent / 100.0);
        let centre = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
        let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt() / (1.0 + Z * Z / n);
        Self { low: 100.0 * (centre - half).max(0.0), high: 100.0 * (centre + half).min(1.0) }
    }

    /// The interval of the accuracy that `read` takes from each run of `row`: from the lowest bound of a run to the
    /// highest one. `None` if the accuracy is unknown, or nothing was tested.
    pub fn of_row(row: &Row<'_>, read: impl Fn(&Run) -> f64) -> Option<Self> {
        let intervals: Vec<Self> =
            row.runs.iter().map(|run| Self::of_run(run, &read)).collect::<Option<_>>()?;
        Some(Self {
            low: intervals.iter().map(|interval| interval.low).fold(f64::INFINITY, f64::min),
            high: intervals.iter().map(|interval| interval.high).fold(0.0, f64::max),
        })
    }

    /// The interval of the accuracy that `read` takes from `run`.
    pub fn of_run(run: &Run, read: impl Fn(&Run) -> f64) -> Option<Self> {
        let percent = Some(read(run)).filter(|percent| !percent.is_nan())?;
        Some(Self::wilson(percent, Some(run.record.data.test_samples).filter(|&samples| samples > 0)?))
    }

    /// Whether the intervals have no value in common.
    pub fn is_apart(self, other: Self) -> bool {
        self.high < other.low || other.high < self.low
    }
}

/// The least correct samples outside the largest class that show that classes are told apart: below, the normal
/// approximation of their number is none.
const LEAST_CORRECT: u64 = 5;
/// Standard errors above which a balanced accuracy is no chance.
const ERRORS: f64 = 3.0;

/// Whether the classes that `run` named depend on its samples: its balanced accuracy is well above that of naming classes
/// as often, whatever the sample. Where one class is most of a data set, an accuracy is no measure of it.
pub fn tells_classes_apart(run: &Run) -> bool {
    let Some(by_class) = &run.results.by_class else { return false };
    let tested: Vec<_> = by_class.classes.iter().filter(|class| class.samples > 0).collect();
    let all = tested.iter().map(|class| class.samples).sum::<u64>() as f64;
    let most = tested.iter().max_by_key(|class| class.samples).map_or(0, |class| class.correct);
    let correct: u64 = tested.iter().map(|class| class.correct).sum();
    // Of recalls, each is a share of its class's samples, and expected to be how often the class is named.
    let named = |class: &&run_record::ClassRecord| (class.named as f64 / all).min(1.0);
    let expected: f64 = tested.iter().map(named).sum();
    let found: f64 = tested.iter().map(|class| class.correct as f64 / class.samples as f64).sum();
    let share = |class: &&run_record::ClassRecord| named(class) * (1.0 - named(class)) / class.samples as f64;
    let error = tested.iter().map(share).sum::<f64>().sqrt();
    correct.saturating_sub(most) >= LEAST_CORRECT && found - expected > ERRORS * error
}

/// The accuracy, in percent, of the answer that is the largest class of the tested samples.
pub fn chance(run: &Run) -> f64 {
    let data = &run.record.data;
    100.0 * data.test_largest_class as f64 / data.test_samples.max(1) as f64
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
