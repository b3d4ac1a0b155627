//! Rows of the tables: repeats of one configuration are grouped, and rows are compared
//! with each other.

use itertools::Itertools;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::allreduce::median;
use super::runs::Run;

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
    pub fn of(mut values: Vec<f64>) -> Self {
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

/// Settings of the gradients' transport, which have no effect on one rank.
const TRANSPORT: [&str; 9] = [
    "backend",
    "bucket_mb",
    "gloo_algorithm",
    "grad_dtype",
    "interface",
    "launcher",
    "mpi",
    "overlap",
    "reduce",
];
/// Options that say which samples are used.
const SAMPLES: [&str; 3] = ["data_root", "model", "train_samples"];
/// Settings with a fixed column, or a footnote.
const PLACED: [&str; 5] = ["backend", "changed", "launcher", "oversubscribed", "topology"];

impl<'a> Row<'a> {
    /// The first repeat.
    pub fn first(&self) -> &'a Run {
        self.runs[0]
    }

    /// A measurement over the repeats.
    pub fn spread(&self, of: impl Fn(&Run) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(|run| of(run)).collect())
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
        self.runs.iter().map(|run| run.config.seed).collect()
    }

    /// Whether repeats of one seed ended with the same weights; `None` if no seed has repeats, or earlier versions
    /// noted no digest.
    pub fn same_weights(&self) -> Option<bool> {
        let mut by_seed: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for run in self.runs.iter().filter(|run| !run.results.weights_sha256.is_empty()) {
            by_seed.entry(run.config.seed).or_default().push(&run.results.weights_sha256);
        }
        let repeated: Vec<Vec<&str>> = by_seed.into_values().filter(|digests| digests.len() > 1).collect();
        let same = |digests: &Vec<&str>| digests.iter().all(|digest| *digest == digests[0]);
        (!repeated.is_empty()).then(|| repeated.iter().all(same))
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.first().record.world_size
    }

    /// Whether the rows have equal settings, except for those named in `except`.
    pub fn equals_except(&self, other: &Self, except: &[&str]) -> bool {
        let names = self.settings.keys().chain(other.settings.keys());
        names
            .filter(|name| !except.contains(&name.as_str()))
            .all(|name| self.setting(name) == other.setting(name))
    }

    /// The row on `topology` that this one's speed-up is relative to: equal in all
    /// settings of the computation, and among those the closest in transport settings. One rank communicates with none,
    /// so that its row over another backend will do.
    pub fn baseline<'r>(&self, rows: &'r [Row<'a>], topology: &str) -> Option<&'r Row<'a>> {
        let except: Vec<&str> = TRANSPORT.into_iter().chain(["topology", "oversubscribed"]).collect();
        let alone = |row: &Row<'a>| row.ranks() == 1 || row.setting("backend") == self.setting("backend");
        let same = |row: &&Row<'a>| {
            row.setting("topology") == topology && alone(row) && self.equals_except(row, &except)
        };
        let nearness =
            |row: &&Row<'a>| TRANSPORT.iter().filter(|name| self.setting(name) == row.setting(name)).count();
        rows.iter().filter(same).max_by_key(nearness)
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
            _ if rows.len() > 1 => "plain".into(),
            _ => place.map(|name| self.setting(name)).join(" "),
        }
    }

    /// The varied settings as text, without those that are off: `–`, `false`, 0.
    pub fn used(&self, varied: &[String]) -> Vec<String> {
        let changed = self.settings.contains_key("changed").then(|| "changed by a resume".to_owned());
        self.words(varied).into_iter().chain(changed).collect()
    }

    /// The same without whether options were changed.
    pub fn words(&self, varied: &[String]) -> Vec<String> {
        let word = |name: &String| {
            let (value, title) = (self.setting(name), name.replace('_', " "));
            match name.as_str() {
                "launcher" | "mpi" | "model" | "sweep" => Some(value.to_owned()),
                "seed" => Some(format!("seed {value}")),
                _ if value == "–" || value == "false" || value == "no" || value.parse() == Ok(0.0) => None,
                _ if value == "true" => Some(title),
                _ => Some(format!("{title} {value}")),
            }
        };
        varied.iter().filter_map(word).collect()
    }
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
    // Other samples have another digest, which says nothing where the options already tell.
    let is_told = |name: &&String| {
        let told = |a: &Row<'_>, b: &Row<'_>| SAMPLES.iter().any(|name| a.setting(name) != b.setting(name));
        let same = |a: &Row<'_>, b: &Row<'_>| a.setting("data") == b.setting("data");
        name.as_str() == "data" && rows.iter().all(|a| rows.iter().all(|b| same(a, b) || told(a, b)))
    };
    let shown = |name: &&String| !own_column(name) && !is_told(name);
    names.into_iter().filter(differs).filter(shown).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    #[test]
    fn runs_with_equal_settings_are_repeats() {
        let runs =
            [run((1, 2), &[], 3.0), run((1, 1), &[], 8.0), run((1, 2), &[], 5.0), run((1, 2), &[], 4.0)];
        let rows = group(&runs);
        assert_eq!(rows.iter().map(|row| row.runs.len()).collect::<Vec<_>>(), [1, 3]);
        let spread = rows[1].train_seconds();
        assert_eq!((spread.median, spread.min, spread.max, spread.range_percent()), (4.0, 3.0, 5.0, 50.0));
        assert!(varied(&rows).is_empty());
        assert!(spread.is_known() && !Spread::of(vec![1.0, f64::NAN]).is_known());
    }

    #[test]
    fn runs_on_other_samples_processors_or_of_other_lengths_are_no_repeats() {
        let other = |edit: fn(&mut Run)| {
            let options = ["--early-stopping", "1"];
            let mut runs = [run((1, 1), &options, 8.0), run((1, 1), &options, 8.0)];
            for run in &mut runs {
                run.record.data.as_mut().unwrap().train_sha256 = "0123456789abcdef".into();
            }
            edit(&mut runs[1]);
            let rows = group(&runs);
            (rows.len(), varied(&rows), rows[0].baseline(&rows, "1x1").is_some())
        };
        assert_eq!(other(|_| {}), (1, vec![], true));
        let of = |name: &str| (2, vec![name.to_owned()], true);
        assert_eq!(
            other(|run| run.record.data.as_mut().unwrap().train_sha256 = "fedcba98".into()),
            of("data")
        );
        assert_eq!(other(|run| run.record.simd_level = Some("portable".into())), of("simd_level"));
        assert_eq!(other(|run| run.results.stopped_early_after = Some(2)), of("epochs_run"));
        let fewer = other(|run| {
            run.record.data.as_mut().unwrap().train_sha256 = "fedcba98".into();
            run.record.data.as_mut().unwrap().train_samples = 100;
            run.record.config.insert("train_samples".into(), 100.into());
        });
        assert_eq!(fewer, of("train_samples"), "whose digest is another one, of course");
    }

    #[test]
    fn varied_settings_are_found_and_sorted_as_numbers() {
        let batch = |size| run((1, 1), &["--batch-size", size], 8.0);
        let runs = [batch("128"), batch("16"), batch("32")];
        let rows = group(&runs);
        assert_eq!(varied(&rows), ["train_batch_size"]);
        assert_eq!(
            rows.iter().map(|row| row.setting("train_batch_size")).collect::<Vec<_>>(),
            ["16", "32", "128"]
        );
        assert_eq!(rows[0].label(&varied(&rows)), "mpi, train batch size 16");
        let on = [run((1, 1), &["--shuffle", "--weight-decay", "0"], 8.0), run((1, 1), &[], 8.0)];
        let rows = group(&on);
        let labels: Vec<String> = rows.iter().map(|row| row.label(&varied(&rows))).collect();
        assert_eq!(labels, ["mpi, weight decay 0.0005", "mpi, shuffle"]);
        let seeds = ["0", "1"].map(|seed| run((1, 1), &["--seed", seed], 8.0));
        assert_eq!(group(&seeds)[0].label(&["seed".to_owned()]), "mpi, seed 0", "0 is a seed like others");
        let mut mixed = ["2", "1a", "10", "–"];
        mixed.sort_by(|a, b| compare(a, b));
        assert_eq!(mixed, ["2", "10", "1a", "–"]);
    }

    #[test]
    fn an_option_typed_at_its_default_makes_no_other_row() {
        let qat = ["--quantize", "ptq"];
        for (plain, typed) in [
            (&[][..], &["--num-classes", "10"][..]),
            (&["--optimizer", "sgd"], &["--optimizer", "sgd", "--momentum", "0"]),
            (&["--model", "mlp"], &["--model", "mlp", "--hidden", "32"]),
            (&qat, &[&qat[..], &["--calibration", "1024"]].concat()),
            (&[], &["--gloo-algorithm", "bcube", "--interface", "lo"]),
            (&[], &["--keep", "5", "--checkpoint-every", "9"]),
            (&[], &["--test-samples", "10000", "--train-samples", "99999"]),
        ] {
            let runs = [run((1, 2), plain, 3.0), run((1, 2), typed, 3.0)];
            assert_eq!(group(&runs).len(), 1, "{typed:?}");
        }
        let runs = [run((1, 1), &[], 3.0), run((1, 1), &["--test-samples", "99"], 3.0)];
        assert_eq!(group(&runs).len(), 2);
    }

    #[test]
    fn seeds_of_a_sweep_are_one_row() {
        let seeded = |seed, sweep: Option<&str>| {
            let sweep = sweep.map(Into::into);
            Run { sweep, ..run((1, 1), &["--seed", seed], 3.0) }
        };
        let runs = ["3", "1", "2"].map(|seed| seeded(seed, Some("s")));
        let rows = group(&runs);
        assert_eq!((rows.len(), rows[0].setting("seed")), (1, "1, 2, 3"));
        assert_eq!(
            group(&["3", "1"].map(|seed| seeded(seed, None))).len(),
            2,
            "no sweep says that they are one"
        );
    }

    #[test]
    fn oversubscribed_runs_are_not_repeats_of_others() {
        let mut runs = [run((1, 2), &[], 3.0), run((1, 2), &[], 9.0)];
        runs[1].record.oversubscribed = true;
        let rows = group(&runs);
        assert_eq!(rows.len(), 2);
        assert!(varied(&rows).is_empty(), "oversubscription has a fixed column");
    }

    #[test]
    fn the_baseline_has_the_same_computation_and_the_closest_transport() {
        let gloo = ["--backend", "gloo"];
        let runs = [
            run((1, 1), &[], 8.0),
            run((1, 1), &gloo, 7.0),
            run((1, 1), &["--lr", "1"], 6.0),
            run((2, 1), &gloo, 4.0),
            run((2, 1), &["--backend", "mpi", "--bucket-mb", "1"], 4.0),
            run((2, 1), &["--epochs", "9"], 4.0),
        ];
        let rows = group(&runs);
        let base_of = |backend: &str, epochs: &str| {
            let row = rows.iter().find(|row| {
                let wanted = (row.setting("topology"), row.setting("backend"), row.setting("epochs"));
                wanted == ("2x1", backend, epochs)
            });
            row.expect("the row").baseline(&rows, "1x1").map(|base| base.train_seconds().median)
        };
        assert_eq!(
            (base_of("gloo", "3"), base_of("mpi", "3"), base_of("mpi", "9")),
            (Some(7.0), Some(8.0), None)
        );
        let [gloo, mpi] = [3, 4].map(|n| rows.iter().find(|row| row.first().path == runs[n].path).unwrap());
        assert!(
            mpi.baseline(std::slice::from_ref(gloo), "2x1").is_none(),
            "two ranks communicate over another backend"
        );
    }
}
