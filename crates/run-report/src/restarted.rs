//! Runs of which attempts failed and were started again (`mpiburn launch --restart`).
//!
//! Their times can be compared: a process that goes on after a checkpoint takes over the seconds that
//! led to it, so `train_seconds` and `total_seconds` have each step that counts once. Steps that were
//! lost with an attempt, and the time between attempts, are in neither.

use super::rows::Row;
use super::runs::{Run, one_line};
use run_record::FailedAttempt;
use run_record::count;

/// The mark of rows with such runs.
pub const MARK: &str = "ᵉ";

/// How many attempts of the row's runs failed.
pub fn failures(row: &Row<'_>) -> usize {
    row.runs.iter().map(|run| run.record.failed_attempts.len()).sum()
}

/// The footnote below a table whose rows have these names, if one has such runs.
pub fn footnote(rows: &[Row<'_>], names: &[String]) -> Option<String> {
    let of_row = |(row, name): (&Row<'_>, &String)| {
        let runs: Vec<String> = row.runs.iter().filter_map(|run| attempts(run)).collect();
        (!runs.is_empty()).then(|| format!("{name}: {}", runs.join(", ")))
    };
    let found: Vec<String> = rows.iter().zip(names).filter_map(of_row).collect();
    (!found.is_empty()).then(|| {
        format!(
            "{MARK} Started again after failures (launch --restart); times have each step that counts once, \
             without the steps that were lost and the time between attempts. {}.",
            found.join(". ")
        )
    })
}

/// The failed attempts of a run.
fn attempts(run: &Run) -> Option<String> {
    let failed = &run.record.failed_attempts;
    let lines: Vec<String> = failed.iter().map(attempt).collect();
    (!failed.is_empty()).then(|| format!("{} ({})", count(failed.len(), "failed attempt"), lines.join("; ")))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::runs::Section;
    use crate::summary::summary;
    use crate::testing::run;

    fn failed([from_step, step]: [usize; 2], cause: Option<&str>) -> FailedAttempt {
        let [started_at, ended_at] = [String::new(), String::new()];
        let cause = cause.map(Into::into);
        FailedAttempt { started_at, ended_at, from_step, step, exit_code: 137, cause }
    }

    #[test]
    fn a_restarted_run_has_a_mark_and_a_footnote_and_its_ratio() {
        let mut runs = [run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
        let cause = Some("rank 1 (node-b):\n killed");
        runs[1].record.failed_attempts = vec![failed([0, 57], cause), failed([40, 40], None)];
        let rows = group(&runs);
        let sheet = summary(&Section::default(), &rows, "1x1");
        let note = sheet.remarks.iter().find(|remark| remark.starts_with(MARK)).unwrap();
        let expected = "1x2 mpi: 2 failed attempts (after step 57: rank 1 (node-b): killed; before its first \
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
