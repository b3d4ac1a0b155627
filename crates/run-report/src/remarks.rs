//! Remarks below the main table, so that readers do not draw wrong conclusions. A row of the table is a
//! configuration: one run or its repeats.
//!
//! Marks beside a row's time refer to footnotes. A footnote gives reasons to doubt the time, options that a
//! resume changed, or failed attempts.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use itertools::Itertools;
use run_record::{Affects, Change, FailedAttempt, LEAST_RISE, WORLD_SIZE, count};
use serde_json::Value;

use super::rows::{Interval, Row, typed, varied};
use super::runs::{Run, one_line};
use super::summary::speed_up;
use super::target::accurate_on_most_ranks;

/// Returns the remarks below the table of `rows`. Speed-ups are relative to the topology `baseline`.
/// `overfits` is true if the table has the column of overfitting.
pub fn remarks(rows: &[Row<'_>], baseline: &str, overfits: bool) -> Vec<String> {
    let varied = varied(rows);
    let names: Vec<String> = rows.iter().map(|row| row.place(&varied)).collect();
    let any = |is: fn(&Row<'_>) -> bool| rows.iter().any(is);
    let distinct = |of: fn(&Run) -> String| -> Vec<String> {
        rows.iter().flat_map(|row| &row.runs).map(|run| of(run)).sorted().dedup().collect()
    };
    let seeds = rows.iter().filter(|row| row.seeds().len() > 1).map(|row| row.setting("seed"));
    let seeds = seeds.sorted().dedup().join(" or ");
    let processors = distinct(Run::processors);
    let builds = distinct(|run| run.record.git.clone());
    let rules = [
        fewer_updates(rows),
        accurate_on_most_ranks(rows, baseline),
        varied.iter().any(|name| name == "accumulate").then(|| {
            "Accumulation: a step takes `accumulate` batches of each rank. So ms/step is the time of several batches, and \
             an epoch has fewer updates."
                .into()
        }),
        overfits.then(|| {
            format!(
                "Overfits after: the epoch with the lowest test loss, if at least two epochs follow it. All later epochs \
                 have a higher test loss, the last one by {:.0}% or more. The last epoch also has a lower training loss.",
                100.0 * LEAST_RISE
            )
        }),
        any(|row| Interval::of_row(row, |run| run.results.test_accuracy).is_some()).then(|| {
            "Test acc %: the 95% interval (Wilson) for this number of test samples is in square brackets. The interval of \
             several runs is from the lowest bound to the highest."
                .into()
        }),
        any(|row| row.runs.len() > 1)
            .then(|| "Repeats: a value is the median. The range of times, from minimum to maximum, is in brackets.".into()),
        (!seeds.is_empty()).then(|| {
            format!(
                "Rows with several seeds ({}): ± is the sample standard deviation of an accuracy over the seeds.",
                seeds
            )
        }),
        any(|row| row.first().record.oversubscribed).then(|| {
            "Oversubscribed: threads of ranks shared cores and took turns; timings are not representative of the topology."
                .into()
        }),
        (processors.len() > 1).then(|| {
            format!(
                "These runs are from several kinds of machines ({}). Their times cannot be compared.",
                processors.join("; ")
            )
        }),
        (builds.len() > 1).then(|| {
            format!(
                "These runs are from several builds of the program ({}). This may explain differences.",
                builds.join(", ")
            )
        }),
        any(|row| row.first().record.shared_machine)
            .then(|| "Shared: the hosts are one machine under several names.".into()),
    ];
    let footnotes = footnotes(rows, &names);
    [basis(rows, baseline)].into_iter().chain(footnotes).chain(rules.into_iter().flatten()).collect()
}

/// Returns the number of samples of one rank in a training step. `option` returns the value of an option. The
/// result may be 0 if somebody edited the options.
pub fn step_samples<'a>(option: impl Fn(&str) -> &'a Value) -> usize {
    let number = |field| option(field).as_u64().unwrap_or(1) as usize;
    number("train_batch_size").saturating_mul(number("accumulate"))
}

/// Explains what times, speed-ups, accuracies and memory in the table refer to.
fn basis(rows: &[Row<'_>], baseline: &str) -> String {
    let has_speed_up = |row: &Row<'_>| speed_up(row, row.baseline(rows, baseline)?);
    let is_base = |row: &Row<'_>| row.setting("topology") == baseline;
    let relative = if !rows.iter().any(is_base) {
        format!(" There is no run on {baseline}, so there is no speed-up.")
    } else if rows.iter().all(is_base) || !rows.iter().any(|row| has_speed_up(row).is_some()) {
        // The footnotes of rows with unreliable times explain why there is no speed-up.
        String::new()
    } else {
        let other = |row: &Row<'_>| {
            let base = row.baseline(rows, baseline)?;
            (speed_up(row, base).is_some() && base.setting("backend") != row.setting("backend")).then_some(())
        };
        let other = if rows.iter().any(|row| other(row).is_some()) {
            " If a backend has no such run, a run of another backend is used: one rank does not communicate."
        } else {
            ""
        };
        format!(" Speed-up and efficiency are relative to {baseline} with the same settings.{other}")
    };
    format!(
        "Train s excludes tests.{relative} Accuracies are from the last epoch, and test accuracy is over {}. Memory is from \
         the rank with the highest peak.",
        tested(rows)
    )
}

/// Says which samples were tested. If a part of the data set was used, also says how many samples were
/// trained on.
pub fn tested(rows: &[Row<'_>]) -> String {
    let words_of = |row: &Row<'_>| {
        let data = &row.first().record.data;
        let part = |used: usize, all: usize| {
            if used < all { format!("the first {used} of {all}") } else { format!("all {all}") }
        };
        let whole = data.test_samples == data.test_available && data.train_samples == data.train_available;
        if whole {
            "the whole test set".to_owned()
        } else {
            format!(
                "{} test samples, after training on {} samples",
                part(data.test_samples, data.test_available),
                part(data.train_samples, data.train_available)
            )
        }
    };
    // The settings that distinguish rows with different samples. They name these rows in the text.
    let mut varied = varied(rows);
    varied.retain(|name| {
        ["data", "test_available", "test_samples"].contains(&name.as_str()) || rows[0].is_of_samples(name)
    });
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in rows {
        texts.entry(words_of(row)).or_default().insert(row.told(&varied).join(", "));
    }
    let is_one = texts.len() == 1;
    let text = |(text, names): (String, BTreeSet<String>)| {
        if is_one { text } else { format!("{text} ({})", names.iter().join("; ")) }
    };
    texts.into_iter().map(text).join(", or ")
}

/// Explains that more ranks make fewer updates, because each rank keeps its batch size. `None` if no two rows
/// show this.
fn fewer_updates(rows: &[Row<'_>]) -> Option<String> {
    let is_excepted = |name: &str| {
        rows[0].is_of_backend(name) || ["topology", "oversubscribed", "launcher"].contains(&name)
    };
    let mut varied = varied(rows);
    varied.retain(|name| !is_excepted(name));
    let mut found: BTreeMap<Vec<String>, Option<String>> = BTreeMap::new();
    for few in rows {
        let same = |row: &&Row<'_>| row.equals_except(few, is_excepted) && row.ranks() > few.ranks();
        let Some(many) = rows.iter().rev().find(same) else {
            found.entry(few.told(&varied)).or_default();
            continue;
        };
        let steps = |row: &Row<'_>| row.first().results.steps;
        // Early stopping or --stop-at-target may have ended one of the two trainings earlier.
        let epochs = |row: &Row<'_>| row.first().epochs_trained();
        let in_equal_epochs = epochs(many) == epochs(few);
        let fewer = (in_equal_epochs && steps(many) < steps(few)).then(|| {
            format!(
                "{} makes {} and {} makes {}",
                many.setting("topology"),
                count(steps(many), "update"),
                few.setting("topology"),
                steps(few)
            )
        });
        let of_words = found.entry(few.told(&varied)).or_default();
        *of_words = of_words.take().or(fewer);
    }
    let (words, fewer) = found.iter().find_map(|(words, fewer)| Some((words, fewer.as_ref()?)))?;
    let topologies = if found.values().all(|other| other.as_ref() == Some(fewer)) {
        String::new()
    } else {
        format!(" ({})", words.join(", "))
    };
    Some(format!(
        "Each rank has its own batch, so more ranks make fewer updates: in the same number of epochs, {fewer}{topologies}."
    ))
}

/// Trainings shorter than this, in seconds, are only compared if they were run [`REPEATS`] times or more. One
/// busy moment of the machine can multiply the time of a single short training.
const SHORTEST_SECONDS: f64 = 2.0;
/// Minimum number of runs for which the median of a short training is reliable.
pub const REPEATS: usize = 3;
/// Percent of a machine's CPU time that other programs may use without disturbing a run.
const OTHERS_PERCENT: f64 = 10.0;
/// Range of repeated times, in percent of their median, above which no ratio is computed. The error of the
/// ratio would be larger than the usual cost of another transport or launcher.
const RANGE_PERCENT: f64 = 25.0;

/// A reason to doubt a row's times.
pub struct TimingWarning {
    mark: &'static str,
    /// Name of the warning in files for programs.
    pub name: &'static str,
    footnote: fn() -> String,
    /// Whether a row, the first argument, has the warning. The second argument is all rows of the table.
    is_of: fn(&Row<'_>, &[Row<'_>]) -> bool,
}

/// All warnings, in the order of their marks. CPU load and time are medians over repeats.
const WARNINGS: [TimingWarning; 5] = [
    TimingWarning {
        mark: "ᵃ",
        name: "short",
        footnote: || {
            format!(
                "Too short: less than {SHORTEST_SECONDS} s of training, and fewer than {REPEATS} runs. No ratio is \
                 computed from such a row."
            )
        },
        is_of: |row, _| row.train_seconds().median < SHORTEST_SECONDS && row.runs.len() < REPEATS,
    },
    TimingWarning {
        mark: "ᵇ",
        name: "disturbed",
        footnote: || {
            format!(
                "Disturbed: other programs used more than {OTHERS_PERCENT}% of the machine's CPU time. No ratio is \
                 computed from such a row."
            )
        },
        is_of: |row, _| {
            row.spread(|run| run.results.others_cpu_percent.unwrap_or(0.0)).median > OTHERS_PERCENT
        },
    },
    TimingWarning {
        mark: "ᶜ",
        name: "single",
        footnote: || "Not repeated: one run, while other rows have several.".into(),
        is_of: |row, rows| row.runs.len() == 1 && rows.iter().any(|other| other.runs.len() > 1),
    },
    TimingWarning {
        mark: "ᶠ",
        name: "unsteady",
        footnote: || {
            format!(
                "Unsteady: the times of repeats differ by more than {RANGE_PERCENT}% of their median. No ratio is \
                 computed from such a row."
            )
        },
        is_of: |row, _| row.train_seconds().range_percent() > RANGE_PERCENT,
    },
    TimingWarning {
        mark: "ᵍ",
        name: "ranks changed",
        footnote: || {
            "Ranks changed: a part of the training ran on another number of ranks. No ratio is computed from such a row."
                .into()
        },
        is_of: |row, _| has_changed_ranks(row),
    },
];

/// Returns the reasons to doubt the times of `row`. `rows` are all rows of the table.
pub fn warnings(row: &Row<'_>, rows: &[Row<'_>]) -> impl Iterator<Item = &'static TimingWarning> {
    WARNINGS.iter().filter(move |warning| (warning.is_of)(row, rows))
}

/// Whether the row's times are reliable, so that ratios of them are meaningful. Times are unreliable if the
/// row is too short, disturbed or unsteady, or from several numbers of ranks.
pub fn is_sound(row: &Row<'_>) -> bool {
    warnings(row, &[]).next().is_none()
}

/// Whether a run of the row had several numbers of ranks.
pub fn has_changed_ranks(row: &Row<'_>) -> bool {
    row.runs.iter().any(|run| run.rank_counts().len() > 1)
}

/// Mark of rows with a run that was resumed with other options. The row has the settings after the last
/// resume.
const CHANGED: &str = "ᵈ";
/// Mark of rows with a run that failed and was started again (`mpiburn launch --restart`). The row's time can
/// be compared: a process that resumes from a checkpoint adds the training time up to this checkpoint.
const RESTARTED: &str = "ᵉ";

/// Returns the marks of `row`. `rows` are all rows of the table.
pub fn marks(row: &Row<'_>, rows: &[Row<'_>]) -> String {
    let changed = (!changes_of(row).is_empty()).then_some(CHANGED);
    let restarted = (failures(row) > 0).then_some(RESTARTED);
    warnings(row, rows).map(|warning| warning.mark).chain(changed).chain(restarted).collect()
}

/// Returns the footnotes of the marks in a table of `rows`. `names` has the name of each row.
pub fn footnotes(rows: &[Row<'_>], names: &[String]) -> Vec<String> {
    let is_found = |warning: &&TimingWarning| rows.iter().any(|row| (warning.is_of)(row, rows));
    let found = WARNINGS.iter().filter(is_found);
    let found = found.map(|warning| format!("{} {}", warning.mark, (warning.footnote)()));
    let changed = "Resumed with other options. The columns show the values after the last resume.";
    let restarted = "Started again after failures (launch --restart). Times count each step once; lost steps and the \
                     time between attempts are excluded.";
    let named =
        |mark, what, of: fn(&Row<'_>) -> Vec<String>| footnote(mark, what, rows.iter().map(of).zip(names));
    found.chain(named(CHANGED, changed, changes_of)).chain(named(RESTARTED, restarted, attempts)).collect()
}

/// Makes the footnote of `mark`. `found` has the lines about each row, and the row's name. Equal lines are
/// written once, with the names of all their rows.
fn footnote<'a>(
    mark: &str,
    what: &str,
    found: impl Iterator<Item = (Vec<String>, &'a String)>,
) -> Option<String> {
    let mut texts: IndexMap<String, Vec<&str>> = IndexMap::new();
    for (lines, name) in found.filter(|(lines, _)| !lines.is_empty()) {
        texts.entry(lines.join(", ")).or_default().push(name);
    }
    let lines = texts.iter().map(|(text, names)| format!("{}: {text}", names.join(", "))).join(". ");
    (!texts.is_empty()).then(|| format!("{mark} {what} {lines}."))
}

/// Returns the number of failed attempts of all runs of the row.
pub fn failures(row: &Row<'_>) -> usize {
    row.runs.iter().map(|run| run.record.failed_attempts.len()).sum()
}

/// Describes the failed attempts of each run that has failed attempts.
fn attempts(row: &Row<'_>) -> Vec<String> {
    let of_run = |run: &&Run| {
        let failed = &run.record.failed_attempts;
        let lines = failed.iter().map(attempt).join("; ");
        (!failed.is_empty()).then(|| format!("{} ({lines})", count(failed.len(), "failed attempt")))
    };
    row.runs.iter().filter_map(of_run).collect()
}

fn attempt(failed: &FailedAttempt) -> String {
    let place = if failed.step > failed.from_step {
        format!("after step {}", failed.step)
    } else {
        "before its first step".to_owned()
    };
    match &failed.cause {
        Some(cause) => format!("{place}: {}", one_line(cause)),
        None => format!("{place}: exit code {}", failed.exit_code),
    }
}

/// Describes the changed options of a run that affect results or times. The text is a setting that
/// distinguishes runs. `None` if no such option was changed.
pub fn changed_setting(run: &Run) -> Option<String> {
    let is_nothing =
        |field: &str| run.record.schema.row(field).is_some_and(|row| row.affects == Affects::Nothing);
    let lines = changes(run, |change| !is_nothing(&change.field));
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// Describes the changed options of all runs of a row. Equal lines are listed once.
pub fn changes_of(row: &Row<'_>) -> Vec<String> {
    row.runs.iter().flat_map(|run| changes(run, |_| true)).unique().collect()
}

/// Describes the changes of options for which `is_shown` returns true, in the order of the changes. A
/// description names the option, the old and the new value, and the first step and epoch with the new value.
///
/// Several changes of an option at the same step are combined into one. No step was made between them, for
/// example because an attempt failed at once.
fn changes(run: &Run, is_shown: impl Fn(&Change) -> bool) -> Vec<String> {
    let mut changes: Vec<(usize, Change)> = Vec::new();
    for attempt in &run.record.history {
        for change in &attempt.changed {
            let at_once =
                |known: &&mut (usize, Change)| known.0 == attempt.step && known.1.field == change.field;
            match changes.iter_mut().find(at_once) {
                Some((_, known)) => known.to = change.to.clone(),
                None => changes.push((attempt.step, change.clone())),
            }
        }
    }
    let steps = run.steps_of_epoch();
    let line = |(step, change): &(usize, Change)| {
        let [from, to] = [&change.from, &change.to].map(|value| typed(&shown(value)).to_owned());
        let epoch = format!(" (epoch {})", step / steps + 1);
        let what = match change.field.as_str() {
            WORLD_SIZE => "ranks".to_owned(),
            option => format!("--{}", option.replace('_', "-")),
        };
        format!("{what} {from} → {to} from step {}{epoch}", step + 1).replace(char::is_control, " ")
    };
    let shown = changes.iter().filter(|(_, change)| change.from != change.to && is_shown(change));
    shown.map(line).collect()
}

/// Returns the value of an option as text.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[path = "remarks_tests.rs"]
mod tests;
