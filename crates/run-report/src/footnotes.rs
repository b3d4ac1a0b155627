//! Marks beside the times of a row, each with a footnote: reasons to doubt a time, options that a resume changed,
//! and attempts that failed.

use indexmap::IndexMap;
use itertools::Itertools;
use serde_json::Value;

use super::rows::Row;
use super::runs::{Run, one_line};
use run_record::{Change, FailedAttempt, count};

/// Shorter trainings, in seconds, can be compared only if they are repeated: one busy moment changes the time of a
/// single one by several times.
const SHORTEST_SECONDS: f64 = 2.0;
/// Repeats of a shorter training, whose median says something.
pub const REPEATS: usize = 3;
/// Percent of a machine's CPU time that other programs may use.
const OTHERS_PERCENT: f64 = 10.0;
/// Range of repeated times, in percent of their median, beyond which no ratio is computed: it would be off by more
/// than what a second transport or launcher usually costs.
const RANGE_PERCENT: f64 = 25.0;

/// A reason to doubt a row's times.
pub struct TimingWarning {
    mark: &'static str,
    /// Its name for programs.
    pub name: &'static str,
    footnote: fn() -> String,
    /// Whether a row has it, among the rows of a table.
    is_of: fn(&Row<'_>, &[Row<'_>]) -> bool,
}

/// All of them, in the order of their marks. Load and time are medians over repeats.
const WARNINGS: [TimingWarning; 4] = [
    TimingWarning {
        mark: "ᵃ",
        name: "short",
        footnote: || {
            format!(
                "Too short: under {SHORTEST_SECONDS} s of training, in fewer than {REPEATS} runs. No ratio is computed \
                 from such a row."
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
        footnote: || "Not repeated: one run, where other rows have several.".into(),
        is_of: |row, rows| row.runs.len() == 1 && rows.iter().any(|other| other.runs.len() > 1),
    },
    TimingWarning {
        mark: "ᶠ",
        name: "unsteady",
        footnote: || {
            format!(
                "Unsteady: times of repeats have a range of more than {RANGE_PERCENT}% of their median. No ratio is \
                 computed from such a row."
            )
        },
        is_of: |row, _| row.train_seconds().range_percent() > RANGE_PERCENT,
    },
];

/// The reasons to doubt the times of `row`, one of `rows`.
pub fn warnings(row: &Row<'_>, rows: &[Row<'_>]) -> impl Iterator<Item = &'static TimingWarning> {
    WARNINGS.iter().filter(move |warning| (warning.is_of)(row, rows))
}

/// Whether ratios of the row's times mean something: it is neither too short, nor disturbed, nor unsteady.
pub fn is_sound(row: &Row<'_>) -> bool {
    warnings(row, &[]).next().is_none()
}

/// The mark of rows with runs whose options a resume changed: their settings are those of their last part.
const CHANGED: &str = "ᵈ";
/// The mark of rows with runs of which attempts failed and were started again (`mpiburn launch --restart`). Their
/// times can be compared: a process that goes on after a checkpoint takes over the seconds that led to it.
const RESTARTED: &str = "ᵉ";

/// The marks of `row`, one of `rows`.
pub fn marks(row: &Row<'_>, rows: &[Row<'_>]) -> String {
    let changed = (!changes_of(row).is_empty()).then_some(CHANGED);
    let restarted = (failures(row) > 0).then_some(RESTARTED);
    warnings(row, rows).map(|warning| warning.mark).chain(changed).chain(restarted).collect()
}

/// The footnotes of the marks in a table of `rows`, which have these names.
pub fn footnotes(rows: &[Row<'_>], names: &[String]) -> Vec<String> {
    let is_found = |warning: &&TimingWarning| rows.iter().any(|row| (warning.is_of)(row, rows));
    let found = WARNINGS.iter().filter(is_found);
    let found = found.map(|warning| format!("{} {}", warning.mark, (warning.footnote)()));
    let changed = "Resumed with other options, of which the columns have the last value.";
    let restarted = "Started again after failures (launch --restart); times have each step that counts once, without the \
                     steps that were lost and the time between attempts.";
    let named =
        |mark, what, of: fn(&Row<'_>) -> Vec<String>| footnote(mark, what, rows.iter().map(of).zip(names));
    found.chain(named(CHANGED, changed, changes_of)).chain(named(RESTARTED, restarted, attempts)).collect()
}

/// A footnote on what is found in rows, with their names; equal finds are said once.
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

/// How many attempts of the row's runs failed.
pub fn failures(row: &Row<'_>) -> usize {
    row.runs.iter().map(|run| run.record.failed_attempts.len()).sum()
}

/// The failed attempts of each run that has any.
fn attempts(row: &Row<'_>) -> Vec<String> {
    let of_run = |run: &&Run| {
        let failed = &run.record.failed_attempts;
        let lines = failed.iter().map(attempt).join("; ");
        (!failed.is_empty()).then(|| format!("{} ({lines})", count(failed.len(), "failed attempt")))
    };
    row.runs.iter().filter_map(of_run).collect()
}

fn attempt(failed: &FailedAttempt) -> String {
    let place = match failed.step > failed.from_step {
        true => format!("after step {}", failed.step),
        false => "before its first step".to_owned(),
    };
    match &failed.cause {
        Some(cause) => format!("{place}: {}", one_line(Some(cause))),
        None => format!("{place}: exit code {}", failed.exit_code),
    }
}

/// Options that have no effect on results.
const WITHOUT_EFFECT: [&str; 4] = ["checkpoint_every", "comm_timeout", "keep", "log_every"];

/// The changes of a run's options that affect results, as a setting that distinguishes runs; `None` without any.
pub fn changed_setting(run: &Run) -> Option<String> {
    let lines = changes(run, |change| !WITHOUT_EFFECT.contains(&change.field.as_str()));
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// The changes of all runs of a row, each once.
pub fn changes_of(row: &Row<'_>) -> Vec<String> {
    let mut lines: Vec<String> = row.runs.iter().flat_map(|run| changes(run, |_| true)).collect();
    lines.dedup();
    lines
}

/// A line for each change of which `is_shown` is true, in order: the option, its values, and from which step and
/// epoch. Several of an option at one step are one: no step was made between them, as after an attempt that failed
/// at once.
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
    let epochs = run.results.epochs_run.unwrap_or_else(|| run.epochs_done());
    let steps = run.results.steps.checked_div(epochs).filter(|steps| *steps > 0);
    let line = |(step, change): &(usize, Change)| {
        let [from, to] = [&change.from, &change.to].map(shown);
        let epoch = steps.map_or_else(String::new, |steps| format!(" (epoch {})", step / steps + 1));
        let option = change.field.replace('_', "-");
        format!("--{option} {from} → {to} from step {}{epoch}", step + 1).replace(char::is_control, " ")
    };
    let shown = changes.iter().filter(|(_, change)| change.from != change.to && is_shown(change));
    shown.map(line).collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::runs::Section;
    use crate::summary::summary;
    use crate::testing::run;
    use run_record::Attempt;

    fn names(row: &Row<'_>, rows: &[Row<'_>]) -> String {
        warnings(row, rows).map(|warning| warning.name).collect::<Vec<_>>().join(" ")
    }

    fn resumed(mut run: Run, step: usize, field: &str, [from, to]: [Value; 2]) -> Run {
        let changed = vec![Change { field: field.into(), from, to }];
        run.record.history.push(Attempt { started_at: String::new(), step, changed });
        run
    }

    fn failed([from_step, step]: [usize; 2], cause: Option<&str>) -> FailedAttempt {
        let [started_at, ended_at] = [String::new(), String::new()];
        let cause = cause.map(Into::into);
        FailedAttempt { started_at, ended_at, from_step, step, exit_code: 137, cause }
    }

    #[test]
    fn short_disturbed_and_single_rows_are_doubted() {
        let mut runs = vec![run((1, 1), &[], 8.0), run((1, 1), &[], 9.0), run((1, 2), &[], 1.9)];
        runs.push(run((2, 1), &[], 4.0));
        runs[3].results.others_cpu_percent = Some(10.1);
        let rows = group(&runs);
        let found: Vec<String> = rows.iter().map(|row| names(row, &rows)).collect();
        assert_eq!(found, ["", "short single", "disturbed single"]);
        assert_eq!(rows.iter().map(is_sound).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(marks(&rows[1], &rows), "ᵃᶜ");
        let notes = footnotes(&rows, &["a", "b", "c"].map(String::from));
        assert!(notes.len() == 3 && notes[0].starts_with("ᵃ Too short: under 2 s"), "{notes:?}");
    }

    #[test]
    fn a_short_training_that_is_repeated_can_be_compared() {
        let runs = |count| (0..count).map(|_| run((1, 1), &[], 0.3)).collect::<Vec<_>>();
        assert!(!is_sound(&group(&runs(2))[0]));
        assert!(is_sound(&group(&runs(3))[0]));
    }

    #[test]
    fn times_of_a_wide_range_are_doubted() {
        let of = |slowest| [run((1, 1), &[], 4.0), run((1, 1), &[], 4.0), run((1, 1), &[], slowest)];
        assert!(is_sound(&group(&of(5.0))[0]));
        let wide = of(6.4);
        let rows = group(&wide);
        assert_eq!((names(&rows[0], &rows).as_str(), is_sound(&rows[0])), ("unsteady", false));
    }

    #[test]
    fn one_disturbed_repeat_of_three_does_not_count() {
        let mut runs: Vec<_> = (0..3).map(|_| run((1, 1), &[], 8.0)).collect();
        runs[0].results.others_cpu_percent = Some(90.0);
        assert!(is_sound(&group(&runs)[0]));
        runs[1].results.others_cpu_percent = Some(90.0);
        assert!(!is_sound(&group(&runs)[0]));
    }

    #[test]
    fn a_resumed_run_with_another_rate_is_no_repeat_and_has_a_footnote() {
        let rates = || [0.001.into(), 0.0001.into()];
        let plain = || run((1, 2), &["--lr", "1e-4"], 8.0);
        let runs = [plain(), resumed(plain(), 1876, "lr", rates()), run((1, 1), &["--lr", "1e-4"], 9.0)];
        let rows = group(&runs);
        assert_eq!(rows.len(), 3);
        let sheet = summary(&Section { runs: Vec::new(), ..Section::default() }, &rows, "1x1");
        let note = sheet.remarks.iter().find(|remark| remark.starts_with(CHANGED)).unwrap();
        let expected = "ᵈ Resumed with other options, of which the columns have the last value. 1x2 (mpi, changed by a resume): --lr 0.001 → \
                        0.0001 from step 1877 (epoch 3).";
        assert_eq!(note, expected);
        let marked =
            sheet.rows.iter().filter(|row| row.iter().any(|cell| cell.marks.contains(CHANGED))).count();
        assert_eq!(marked, 1);
        assert!(sheet.csv().unwrap().contains("--lr 0.001 → 0.0001 from step 1877"), "programs read it too");
        let without = summary(&Section::default(), &group(&runs[..1]), "1x1");
        assert!(without.columns.iter().all(|column| column.key != "changed"));
    }

    #[test]
    fn rows_with_the_same_changes_are_named_together() {
        let rates = || [0.001.into(), 0.0001.into()];
        let on = |topology| resumed(run(topology, &["--lr", "1e-4"], 8.0), 1876, "lr", rates());
        let gloo = resumed(run((1, 2), &["--lr", "1e-4", "--backend", "gloo"], 8.0), 1876, "lr", rates());
        let decay = [0.0005.into(), 0.into()];
        let runs =
            [on((1, 2)), on((2, 1)), resumed(gloo, 2000, "weight_decay", decay), run((2, 2), &[], 4.0)];
        let rows = group(&runs);
        let names: Vec<String> = rows.iter().map(|row| row.place(&crate::rows::varied(&rows))).collect();
        let rate = "--lr 0.001 → 0.0001 from step 1877 (epoch 3)";
        assert_eq!(
            footnotes(&rows, &names),
            [format!(
                "ᵈ Resumed with other options, of which the columns have the last value. 1x2 (gloo, lr 0.0001, changed by a resume): {rate}, \
                 --weight-decay 0.0005 → 0 from step 2001 (epoch 3). 1x2 (mpi, lr 0.0001, changed by a resume), 2x1 (mpi, lr 0.0001, changed by a resume): {rate}."
            )]
        );
        assert_eq!(rows.iter().map(|row| marks(row, &rows)).collect::<Vec<_>>(), ["ᵈ", "ᵈ", "ᵈ", ""]);
    }

    #[test]
    fn a_value_without_a_step_is_no_change() {
        let to = |run: Run, values: [f64; 2]| resumed(run, 96, "lr", values.map(Value::from));
        let tried = to(to(run((1, 1), &[], 8.0), [0.001, 1e30]), [1e30, 0.0005]);
        assert_eq!(changes(&tried, |_| true), ["--lr 0.001 → 0.0005 from step 97 (epoch 1)"]);
        let back = to(to(run((1, 1), &[], 8.0), [0.001, 1e30]), [1e30, 0.001]);
        assert_eq!((changes(&back, |_| true), changed_setting(&back)), (vec![], None));
    }

    #[test]
    fn options_without_effect_leave_repeats_repeats() {
        let runs =
            [run((1, 1), &[], 8.0), resumed(run((1, 1), &[], 8.0), 5625, "keep", [Value::Null, 3.into()])];
        let rows = group(&runs);
        assert_eq!(rows.len(), 1);
        let notes = footnotes(&rows, &["1x1 mpi".to_owned()]);
        assert!(notes[0].contains("--keep none → 3 from step 5626"), "{notes:?}");
    }

    #[test]
    fn a_restarted_run_has_a_mark_and_a_footnote_and_its_ratio() {
        let mut runs = [run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
        let cause = Some("rank 1 (node-b):\n killed");
        runs[1].record.failed_attempts = vec![failed([0, 57], cause), failed([40, 40], None)];
        let rows = group(&runs);
        let sheet = summary(&Section::default(), &rows, "1x1");
        let note = sheet.remarks.iter().find(|remark| remark.starts_with(RESTARTED)).unwrap();
        let expected = "1x2 (mpi): 2 failed attempts (after step 57: rank 1 (node-b): killed; before its first \
                        step: exit code 137).";
        assert!(note.ends_with(expected), "{note}");
        let text = sheet.markdown();
        assert!(text.contains("| 4.00 ᵉ | 2.00 | 100 |") && text.contains("| 8.00 | 1.00 |"), "{text}");
        let csv = sheet.csv().unwrap();
        assert!(csv.lines().next().unwrap().ends_with(",failed_attempts") && csv.ends_with(",2\n"), "{csv}");
        let without = summary(&Section::default(), &group(&runs[..1]), "1x1");
        assert!(without.columns.iter().all(|column| column.key != "failed_attempts"));
    }
}
