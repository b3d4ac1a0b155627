//! Options of a run that `train --resume --set` changed: its settings are those of its last part.

use serde_json::Value;

use super::rows::Row;
use super::runs::Run;
use crate::record::Change;

/// The mark of rows with such runs.
pub const MARK: &str = "ᵈ";

/// Fields that have no effect on results.
const WITHOUT_EFFECT: [&str; 4] = ["checkpoint_every", "comm_timeout", "keep", "log_every"];

/// A line for each change, in order: the option, from which step and epoch, and its values.
pub fn changes(run: &Run) -> Vec<String> {
    changed(run).map(|(step, change)| line(run, step, change)).collect()
}

/// The changes that affect results, as a setting that distinguishes runs; `None` without any.
pub fn setting(run: &Run) -> Option<String> {
    let with_effect = changed(run).filter(|(_, change)| !WITHOUT_EFFECT.contains(&change.field.as_str()));
    let lines: Vec<String> = with_effect.map(|(step, change)| line(run, step, change)).collect();
    (!lines.is_empty()).then(|| lines.join(", "))
}

/// The changes of all runs of a row, each once.
pub fn of_row(row: &Row<'_>) -> Vec<String> {
    let mut lines: Vec<String> = row.runs.iter().flat_map(|run| changes(run)).collect();
    lines.dedup();
    lines
}

/// The footnote below a table, if a row has such runs.
pub fn footnote(rows: &[Row<'_>]) -> Option<String> {
    let of = |row: &Row<'_>| {
        let lines = of_row(row);
        (!lines.is_empty())
            .then(|| format!("{} {}: {}", row.setting("topology"), row.setting("backend"), lines.join(", ")))
    };
    let found: Vec<String> = rows.iter().filter_map(of).collect();
    (!found.is_empty()).then(|| {
        format!(
            "{MARK} Resumed with changed options (--set); the columns have the last values. {}.",
            found.join("; ")
        )
    })
}

/// The changes, each with the number of steps before it.
fn changed(run: &Run) -> impl Iterator<Item = (usize, &Change)> {
    run.record.history.iter().flat_map(|attempt| attempt.changed.iter().map(|change| (attempt.step, change)))
}

fn line(run: &Run, step: usize, change: &Change) -> String {
    let epochs = run.results.epochs_run.unwrap_or_else(|| run.epochs_done());
    let steps = run.results.steps.checked_div(epochs).filter(|steps| *steps > 0);
    let epoch = steps.map_or_else(String::new, |steps| format!(" (epoch {})", step / steps + 1));
    let option = change.field.replace('_', "-");
    format!("--{option} {} → {} from step {}{epoch}", shown(&change.from), shown(&change.to), step + 1)
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
    use crate::record::Attempt;
    use crate::report::rows::group;
    use crate::report::runs::Section;
    use crate::report::summary::summary;
    use crate::report::testing::run;

    fn resumed(mut run: Run, step: usize, field: &str, [from, to]: [Value; 2]) -> Run {
        let changed = vec![Change { field: field.into(), from, to }];
        run.record.history.push(Attempt { started_at: String::new(), step, changed });
        run
    }

    #[test]
    fn a_resumed_run_with_another_rate_is_no_repeat_and_has_a_footnote() {
        let rates = || [0.001.into(), 0.0001.into()];
        let plain = || run((1, 2), &["--lr", "1e-4"], 8.0);
        let runs = [plain(), resumed(plain(), 1876, "lr", rates()), run((1, 1), &["--lr", "1e-4"], 9.0)];
        let rows = group(&runs);
        assert_eq!(rows.len(), 3);
        let sheet = summary(&Section { runs: Vec::new(), ..Section::default() }, &rows, "1x1");
        let note = sheet.remarks.iter().find(|remark| remark.starts_with(MARK)).unwrap();
        let expected = "1x2 mpi: --lr 0.001 → 0.0001 from step 1877 (epoch 3).";
        assert!(note.ends_with(expected), "{note}");
        let marked = sheet.rows.iter().filter(|row| row.iter().any(|cell| cell.marks.contains(MARK))).count();
        assert_eq!(marked, 1);
        assert!(sheet.csv().unwrap().contains("--lr 0.001 → 0.0001 from step 1877"), "programs read it too");
        let without = summary(&Section::default(), &group(&runs[..1]), "1x1");
        assert!(without.columns.iter().all(|column| column.key != "changed"));
    }

    #[test]
    fn options_without_effect_leave_repeats_repeats() {
        let runs =
            [run((1, 1), &[], 8.0), resumed(run((1, 1), &[], 8.0), 5625, "keep", [Value::Null, 3.into()])];
        let rows = group(&runs);
        assert_eq!(rows.len(), 1);
        assert!(footnote(&rows).unwrap().contains("--keep none → 3 from step 5626"));
    }
}
