//! The result of a configuration, which is one run or its repeats, at a glance: accuracy, largest class, data
//! set, network and time.
//!
//! The page of a single configuration begins with these values. If a table has several configurations, the
//! most accurate one on each data set is shown, for at most three data sets.

use std::collections::BTreeSet;
use std::path::Path;

use itertools::Itertools;
use run_record::{ByClass, ClassRecord, count};

use super::findings::{Finding, Question};
use super::rows::{Interval, Row, chance, varied};
use super::runs::{Run, overfitting_epoch};
use super::sheet::significant;
use super::summary::{STEP, balanced_accuracy};
use terminal::digits::seconds;

/// Maximum number of data sets for which the card shows the highest accuracy.
const MOST_SETS: usize = 3;

/// Returns the answers on the page's card about the only configuration of a table.
pub fn of_row(row: &Row<'_>) -> Vec<Finding> {
    let accuracy = tested(row).map(|(percent, text)| {
        let balanced = row.spread(balanced_accuracy);
        let text = if balanced.is_known() {
            format!("{text}; balanced accuracy {:.2}%", balanced.median)
        } else {
            text
        };
        Finding {
            weight: accuracy(row),
            ..Finding::of_card(Question::Result, "test accuracy", percent, text)
        }
    });
    accuracy.into_iter().chain(largest_class(row)).chain([data(row), network(row), time(row)]).collect()
}

/// Returns the answers about several configurations: for each of the first `MOST_SETS` data sets, the highest
/// test accuracy and the share of the largest class. If all rows have the same data set and numbers of
/// samples, the data set is described too.
pub fn of_rows(rows: &[Row<'_>]) -> Vec<Finding> {
    let set = |row: &Row<'_>| data_name(row.first());
    let sets: Vec<String> = rows.iter().map(set).unique().collect();
    let varied = varied(rows);
    let highest = sets.iter().filter_map(|of_set| {
        let own: Vec<&Row<'_>> =
            rows.iter().filter(|row| set(row) == *of_set && tested(row).is_some()).collect();
        let best = own.iter().max_by(|a, b| accuracy(a).total_cmp(&accuracy(b)))?;
        let (percent, text) = tested(best)?;
        let largest = chance(best.first());
        let text = format!("{}: {text}; largest class {largest:.2}%", best.name(rows, &varied));
        let label = format!("highest test accuracy on {of_set}");
        Some(Finding { weight: accuracy(best), ..Finding::of_card(Question::Result, label, percent, text) })
    });
    let mut found: Vec<Finding> = highest.collect();
    let more = found.len().saturating_sub(MOST_SETS);
    found.truncate(MOST_SETS);
    if let Some(last) = found.last_mut().filter(|_| more > 0) {
        last.text += &format!("; {} in the table", count(more, "more data set"));
    }
    let samples: BTreeSet<String> = rows.iter().map(|row| samples(row.first())).collect();
    match &sets[..] {
        [_] if samples.len() == 1 => found.push(data(&rows[0])),
        _ => {}
    }
    found
}

/// Returns the findings about the test and the curves of one configuration, each as one line.
pub fn of_test(row: &Row<'_>) -> Vec<String> {
    // Repeats with different weights also differ in their recalls, so no class is named for them.
    let is_of_all = row.runs.len() == 1 || row.same_weights() == Some(true);
    let weakest = row.first().results.by_class.as_ref().filter(|_| is_of_all).and_then(weakest);
    let epochs: Vec<usize> = row.runs.iter().filter_map(|run| overfitting_epoch(run)).collect();
    let (of, all) = (epochs.iter().sorted().dedup().join(", "), row.runs.len());
    let overfits = match epochs.len() {
        0 => None,
        count if count == all => Some(format!("overfits after epoch {of}")),
        count => Some(format!("{count} of {all} runs overfit after epoch {of}")),
    };
    let overfits =
        overfits.map(|which| format!("{which}: since then, test loss is higher and training loss is lower"));
    weakest.into_iter().chain(overfits).collect()
}

/// Names the class with the lowest recall. If several classes have this recall, names up to three of them.
/// `None` if every recall is 100%.
fn weakest(by_class: &ByClass) -> Option<String> {
    /// Maximum number of classes to name. The others are counted.
    const MOST: usize = 3;
    let known = || by_class.classes.iter().filter_map(|class| Some((class.recall?, class)));
    let lowest = known().map(|(recall, _)| recall).min_by(f64::total_cmp).filter(|&recall| recall < 100.0)?;
    let classes: Vec<&ClassRecord> =
        known().filter(|&(recall, _)| recall <= lowest).map(|(_, class)| class).collect();
    if let [class] = classes[..] {
        let other = class.taken_for.as_ref()?;
        return Some(format!(
            "lowest recall: class {}, {lowest:.2}% of {}; most often confused with {other}",
            class.name,
            count(class.samples as usize, "test sample")
        ));
    }
    let names = classes.iter().take(MOST).map(|class| &class.name).join(", ");
    let more = match classes.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("lowest recall: {lowest:.2}%, of classes {names}{more}"))
}

fn accuracy(row: &Row<'_>) -> f64 {
    row.spread(|run| run.results.test_accuracy).median
}

/// Returns the test accuracy and its interval as text; `None` if nothing was tested.
fn tested(row: &Row<'_>) -> Option<(String, String)> {
    let interval = Interval::of_row(row, |run| run.results.test_accuracy)?;
    let data = &row.first().record.data;
    let part = if data.test_samples < data.test_available { "the first " } else { "" };
    let runs =
        if row.runs.len() > 1 { format!(", median of {} runs", row.runs.len()) } else { String::new() };
    let text = format!(
        "95% interval {:.2}–{:.2}%, over {part}{}{runs}",
        interval.low,
        interval.high,
        count(data.test_samples, "test sample")
    );
    Some((format!("{:.2}%", accuracy(row)), text))
}

/// Returns the answer about the accuracy of a model that always predicts the largest class.
fn largest_class(row: &Row<'_>) -> Option<Finding> {
    let run = row.first();
    let samples = run.record.data.test_largest_class;
    let classes = run.results.by_class.iter().flat_map(|by_class| &by_class.classes);
    let name = classes.max_by_key(|class| class.samples).map_or("one class", |class| &class.name);
    let text = format!(
        "always predicting {name} is correct for {samples} of {} test samples",
        run.record.data.test_samples
    );
    (samples > 0)
        .then(|| Finding::of_card(Question::Largest, "largest class", format!("{:.2}%", chance(run)), text))
}

fn data(row: &Row<'_>) -> Finding {
    Finding::of_card(Question::Data, "data set", data_name(row.first()), samples(row.first()))
}

/// Returns the last folder of the data set's path.
fn data_name(run: &Run) -> String {
    let root = run.record.config.get("data_root").and_then(|root| root.as_str()).unwrap_or_default();
    let name = Path::new(root).file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| if root.is_empty() { "unnamed".into() } else { root.into() })
}

/// Describes the classes and samples of a run.
fn samples(run: &Run) -> String {
    let data = &run.record.data;
    let part = |used: usize, all: usize, what: &str| {
        if used < all {
            format!("{used} of {all} {what} samples")
        } else {
            count(used, &format!("{what} sample"))
        }
    };
    let [channels, height, width] = data.shape;
    let size = match data.features.len() {
        0 if channels <= 1 => format!("{height}x{width} values"),
        0 => format!("{height}x{width} values in {channels} channels"),
        features => count(features, "feature"),
    };
    format!(
        "{}; {} and {}, each of {size}",
        count(data.classes, "class"),
        part(data.train_samples, data.train_available, "training"),
        part(data.test_samples, data.test_available, "test")
    )
}

fn network(row: &Row<'_>) -> Finding {
    let run = row.first();
    let option = |name: &str| row.setting(name).to_owned();
    let text = format!(
        "{} parameters; {}, learning rate {}, batch size {} on each rank",
        run.record.params,
        option("optimizer"),
        option("lr"),
        run.option("train_batch_size")
    );
    Finding::of_card(Question::Network, "network", run.text("model").to_owned(), text)
}

fn time(row: &Row<'_>) -> Finding {
    let (time, results) = (row.train_seconds(), &row.first().results);
    let range = match time.count {
        1 => String::new(),
        count => format!("; {count} runs, {}–{} s", seconds(time.min), seconds(time.max)),
    };
    let text = format!(
        "{} ms a step, {} in {} on {}{range}",
        significant(row.spread(STEP.read).median, 3),
        count(results.steps, "step"),
        if results.epochs_run == 1 { "1 epoch".into() } else { format!("{} epochs", results.epochs_run) },
        row.place(&[])
    );
    Finding::of_card(Question::Time, "training time", format!("{} s", seconds(time.median)), text)
}

#[cfg(test)]
mod tests {
    use run_record::Confusion;

    use super::*;
    use crate::findings::findings;
    use crate::findings::tests::{card, check_card};
    use crate::rows::group;
    use crate::testing::{run, tells};

    /// A run with 40 test samples of two classes.
    fn tested(options: &[&str], accuracy: f64) -> Run {
        let mut run = run((1, 1), options, 0.25);
        let confusion: Confusion = [(0, 0, 27), (0, 1, 3), (1, 1, 10)].into_iter().collect();
        run.results.by_class = ByClass::from_confusion(&confusion, &["cat".to_owned(), "dog".to_owned()]);
        (run.results.steps, run.results.ms_per_step) = (50, 2.5);
        run.results.test_accuracy = accuracy;
        let data = &mut run.record.data;
        (data.classes, data.shape) = (2, [1, 8, 8]);
        (data.test_samples, data.test_available, data.test_largest_class) = (40, 40, 30);
        run
    }

    #[test]
    fn a_page_of_one_run_has_its_result() {
        let runs = [tested(&["--train-samples", "160"], 92.5)];
        let expected: [(_, _, &[&str]); 6] = [
            (
                "test accuracy",
                "92.50%",
                &["95% interval 80.14–97.42%", "40 test samples", "balanced accuracy 95.00%"],
            ),
            ("largest class", "75.00%", &["cat", "30 of 40"]),
            (
                "data set",
                "digits",
                &["2 classes", "160 of 60000 training samples", "40 test samples", "8x8 values"],
            ),
            (
                "network",
                "convnet",
                &["4266 parameters", "adam", "learning rate 0.0005", "batch size 32 on each rank"],
            ),
            ("training time", "0.250 s", &["2.5 ms", "50 steps", "3 epochs", "1x1 (mpi)"]),
            ("memory", "50 MB", &["peak", "1x1 (mpi)"]),
        ];
        check_card(&card(&runs), &expected);
        let found = findings(&group(&runs), "1x1");
        let lines: Vec<String> =
            found.iter().filter(|found| found.is_listed).map(Finding::to_string).collect();
        let facts = ["lowest recall", "cat", "90.00%", "30 test samples", "dog"];
        assert!(lines.len() == 1 && tells(&lines[0], &facts), "{lines:?}");
    }

    #[test]
    fn classes_of_one_recall_are_named_together_and_not_of_runs_with_other_weights() {
        let mut run = tested(&[], 20.0);
        let names: Vec<String> = ["a", "b", "c", "d", "e"].map(String::from).into();
        let confusion: Confusion = (0..5).map(|class| (class, 0, 8)).collect();
        run.results.by_class = ByClass::from_confusion(&confusion, &names);
        let lines = |runs: &[Run]| of_test(&group(runs)[0]);
        let is_expected = |lines: &[String]| match lines {
            [line] => tells(line, &["lowest recall", "0.00%", "b, c, d and 1 more"]),
            _ => false,
        };
        assert!(is_expected(&lines(&[run.clone()])), "{:?}", lines(&[run.clone()]));
        let mut other = run.clone();
        let equal = lines(&[run.clone(), other.clone()]);
        assert!(is_expected(&equal), "{equal:?}");
        other.results.weights_sha256 = "other".into();
        assert_eq!(lines(&[run.clone(), other]), [""; 0]);
        run.results.by_class =
            ByClass::from_confusion(&(0..5).map(|class| (class, class, 8)).collect(), &names);
        assert_eq!(lines(&[run]), [""; 0], "all samples are right");
    }

    #[test]
    fn the_most_accurate_of_several_is_named_for_each_data_set() {
        let mut runs = vec![tested(&["--lr", "0.1"], 80.0), tested(&["--lr", "0.2"], 92.5)];
        let results_of = |runs: &[Run]| -> Vec<String> {
            let results = card(runs).into_iter();
            let results = results.filter(|[label, ..]| label.starts_with("highest") || label == "data set");
            results.map(|[label, value, text]| format!("{label} {value}; {text}")).collect()
        };
        let found = results_of(&runs);
        let interval = "95% interval 80.14–97.42%";
        let highest = ["on digits 92.50%; lr 0.2: ", interval, "40 test samples", "largest class 75.00%"];
        let data = ["data set digits; 2 classes", "60000 training samples", "40 test samples", "8x8 values"];
        let [of_test, of_data] = &found[..] else { panic!("{found:?}") };
        assert!(tells(of_test, &highest) && tells(of_data, &data), "{found:?}");
        runs.push(tested(&["--data-root", "pets/"], 85.0));
        let found = results_of(&runs);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("highest test accuracy on digits 92.50%"), "{found:?}");
        assert!(found[1].starts_with("highest test accuracy on pets 85.00%"), "{found:?}");
        runs.extend(["cars/", "boats/"].map(|root| tested(&["--data-root", root], 70.0)));
        let found = results_of(&runs);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.iter().any(|line| line.contains("1 more data set")), "{found:?}");
        runs.truncate(3);
        runs[2].record.data.test_samples = 0;
        assert_eq!(results_of(&runs).len(), 1, "nothing was tested");
        // A run on fewer training samples is still on the same data set.
        let mut fewer = tested(&["--lr", "0.3", "--train-samples", "160"], 60.0);
        fewer.record.data.train_sha256 = "of 160 samples".into();
        runs[2] = fewer;
        let found = results_of(&runs);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("highest test accuracy on digits 92.50%"), "{found:?}");
    }
}
