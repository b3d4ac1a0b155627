//! The main table, with a row for each configuration, and the ratios of the backends.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::history::overfitting_epochs;
use super::rows::{Row, varied};
use super::runs::{Run, Section};
use super::sheet::{Cell, Column, Sheet, Value};

/// A measurement of a run: title, key, digits, and how to read it.
type Measure = (&'static str, &'static str, usize, fn(&Run) -> f64);

const TIMES: [Measure; 3] = [
    ("train s", "train_seconds", 2, |run| run.results.train_seconds),
    ("ms/step", "ms_per_step", 3, |run| run.results.ms_per_step),
    ("images/s", "images_per_second", 0, |run| run.results.images_per_second),
];
const OTHERS: [Measure; 5] = [
    ("exposed comm %", "exposed_comm_percent", 1, exposed_percent),
    ("peak RSS MB", "peak_rss_mb", 0, |run| run.results.peak_rss_mb),
    ("live MB", "live_mb", 2, |run| run.results.live_mb.unwrap_or(f64::NAN)),
    ("train acc %", "train_accuracy", 2, |run| run.results.train_accuracy),
    ("test acc %", "test_accuracy", 2, |run| run.results.test_accuracy),
];

/// Where a run was quantized.
const INT8: Measure =
    ("int8 test acc %", "int8_test_accuracy", 2, |run| run.results.int8_test_accuracy.unwrap_or(f64::NAN));

/// Share of the training time in which a rank only waited for gradients.
pub fn exposed_percent(run: &Run) -> f64 {
    100.0 * run.results.comm_seconds / run.results.train_seconds
}

/// Speed-up over `base` and parallel efficiency in percent.
pub fn speed_up(row: &Row<'_>, base: &Row<'_>) -> (f64, f64) {
    let faster = base.train_seconds().median / row.train_seconds().median;
    (faster, 100.0 * faster * base.ranks() as f64 / row.ranks() as f64)
}

/// The table of `rows`; speed-up and efficiency are relative to `baseline`.
pub fn summary(section: &Section, rows: &[Row<'_>], baseline: &str) -> Sheet {
    let varied = own_columns(rows);
    let mut columns = vec![
        Column::words("topology", "topology"),
        Column::words("backend", "backend"),
        Column::words("launcher", "launcher"),
    ];
    columns.extend(varied.iter().map(|name| Column::words(&name.replace('_', " "), name)));
    columns.push(Column::words("oversub.", "oversubscribed"));
    columns.push(Column::number("ranks", "ranks"));
    columns.extend(TIMES.map(|(title, key, ..)| Column::spread(title, key)));
    columns.push(Column::number("speed-up", "speed_up"));
    columns.push(Column::number("effic. %", "efficiency_percent"));
    columns.extend(OTHERS.map(|(title, key, ..)| Column::spread(title, key)));
    let epochs: Vec<Option<String>> = rows.iter().map(|row| overfitting_epochs(&row.runs)).collect();
    let overfits = epochs.iter().any(Option::is_some);
    let quantized =
        rows.iter().any(|row| row.runs.iter().any(|run| run.results.int8_test_accuracy.is_some()));
    columns.extend(quantized.then(|| Column::spread(INT8.0, INT8.1)));
    columns.extend(overfits.then(|| Column::words("overfits after epoch", "overfits_after_epoch")));
    columns.push(Column::number("runs", "runs"));
    let lines = rows.iter().zip(&epochs).map(|(row, epoch)| {
        let paths = paths(row);
        let measured = |(_, _, digits, read): Measure| {
            let spread = row.spread(read);
            let value = if spread.is_known() { Value::Number(spread, digits) } else { Value::Nothing };
            Cell { value, runs: paths.clone() }
        };
        let mut cells: Vec<Cell> =
            ["topology", "backend", "launcher"].map(|name| Cell::text(row.setting(name))).to_vec();
        cells.extend(varied.iter().map(|name| Cell::text(row.setting(name))));
        cells.push(Cell::text(row.setting("oversubscribed")));
        cells.push(Cell::number(row.ranks() as f64, 0, paths.clone()));
        cells.extend(TIMES.map(measured));
        match row.baseline(rows, baseline) {
            Some(base) => {
                let (faster, efficiency) = speed_up(row, base);
                let both: Vec<PathBuf> = paths.iter().cloned().chain(self::paths(base)).collect();
                cells.push(Cell::number(faster, 2, both.clone()));
                cells.push(Cell::number(efficiency, 0, both));
            }
            None => cells.extend([Cell::nothing(), Cell::nothing()]),
        }
        cells.extend(OTHERS.map(measured));
        cells.extend(quantized.then(|| measured(INT8)));
        cells.extend(overfits.then(|| epoch.clone().map_or_else(Cell::nothing, Cell::text)));
        cells.push(Cell::number(row.runs.len() as f64, 0, paths));
        cells
    });
    Sheet {
        name: section.name.clone(),
        title: title(section, rows),
        rows: lines.collect(),
        remarks: remarks(rows, baseline, overfits),
        columns,
    }
}

/// Names of varied settings that get columns; the launcher has its own anyway.
fn own_columns(rows: &[Row<'_>]) -> Vec<String> {
    varied(rows).into_iter().filter(|name| name != "launcher").collect()
}

/// The section's title and what all rows have in common.
fn title(section: &Section, rows: &[Row<'_>]) -> String {
    let varied = varied(rows);
    let common: Vec<String> = ["model", "epochs", "train_batch_size", "train_samples", "device", "mpi"]
        .into_iter()
        .filter(|name| !varied.iter().any(|v| v == name) && rows[0].settings.contains_key(*name))
        .map(|name| match name {
            "model" | "mpi" => rows[0].setting(name).to_owned(),
            "train_batch_size" => format!("batch {} a rank", rows[0].setting(name)),
            _ => format!("{} {}", name.replace('_', " "), rows[0].setting(name)),
        })
        .collect();
    format!("{}: {}", section.title, common.join(", "))
}

fn remarks(rows: &[Row<'_>], baseline: &str, overfits: bool) -> Vec<String> {
    let relative = match rows.iter().any(|row| row.setting("topology") == baseline) {
        true => format!("speed-up and efficiency are relative to {baseline} with the same settings"),
        false => format!("without a run on {baseline} there is no speed-up"),
    };
    let mut remarks = vec![format!(
        "Train s excludes tests; {relative}; accuracies are those of the last epoch, test accuracy over the \
         whole test set. Memory is that of the rank with the highest value: resident, and live tensors in a \
         training step."
    )];
    if overfits {
        remarks.push(
            "Overfits after the epoch with the lowest test loss, if two or more epochs follow, all with a higher \
             test loss, while training loss falls."
                .into(),
        );
    }
    if rows.iter().any(|row| row.runs.len() > 1) {
        remarks.push("Repeats: median ± half of the range from minimum to maximum.".into());
    }
    if rows.iter().any(|row| row.first().record.oversubscribed) {
        remarks.push(
            "Oversubscribed: ranks shared cores and took turns; timings are not representative of the topology."
                .into(),
        );
    }
    let runs = rows.iter().flat_map(|row| &row.runs);
    let builds: BTreeSet<&str> = runs.map(|run| run.record.git.as_str()).collect();
    if builds.len() > 1 {
        remarks.push(format!(
            "These runs are from several builds of the program ({}), which may explain differences.",
            builds.into_iter().collect::<Vec<_>>().join(", ")
        ));
    }
    if rows.iter().any(|row| row.first().record.shared_machine) {
        remarks.push("Shared: the hosts are one machine under several names.".into());
    }
    remarks
}

/// The other backend's time relative to mpi's, for rows with otherwise equal
/// settings; none if there are no such rows.
pub fn ratios(section: &Section, rows: &[Row<'_>]) -> Option<Sheet> {
    // gloo's options are settings of mpi runs as well, without an effect.
    const EXCEPT: [&str; 3] = ["backend", "gloo_algorithm", "interface"];
    let varied: Vec<String> =
        own_columns(rows).into_iter().filter(|name| !EXCEPT.contains(&name.as_str())).collect();
    let mut columns = vec![Column::words("topology", "topology"), Column::words("launcher", "launcher")];
    columns.extend(varied.iter().map(|name| Column::words(&name.replace('_', " "), name)));
    columns.extend([
        Column::words("backend", "backend"),
        Column::words("oversub.", "oversubscribed"),
        Column::spread("its train s", "train_seconds"),
        Column::spread("mpi train s", "mpi_train_seconds"),
        Column::number("ratio", "ratio"),
    ]);
    let mut lines = Vec::new();
    for mpi in rows.iter().filter(|row| row.setting("backend") == "mpi") {
        let others =
            rows.iter().filter(|row| row.setting("backend") != "mpi" && row.equals_except(mpi, &EXCEPT));
        for other in others {
            let time =
                |row: &Row<'_>| Cell { value: Value::Number(row.train_seconds(), 2), runs: paths(row) };
            let mut cells = vec![Cell::text(mpi.setting("topology")), Cell::text(mpi.setting("launcher"))];
            cells.extend(varied.iter().map(|name| Cell::text(mpi.setting(name))));
            cells.push(Cell::text(other.setting("backend")));
            cells.push(Cell::text(mpi.setting("oversubscribed")));
            cells.extend([time(other), time(mpi)]);
            let ratio = other.train_seconds().median / mpi.train_seconds().median;
            cells.push(Cell::number(ratio, 2, paths(other).into_iter().chain(paths(mpi)).collect()));
            lines.push(cells);
        }
    }
    (!lines.is_empty()).then(|| Sheet {
        name: format!("{}-ratios", section.name),
        title: format!("{}: comparison of backends, medians of train s", section.title),
        columns,
        rows: lines,
        remarks: vec!["A ratio above 1: mpi is faster.".into()],
    })
}

/// Directories of a row's runs.
pub fn paths(row: &Row<'_>) -> Vec<PathBuf> {
    row.runs.iter().map(|run| run.path.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::rows::group;
    use crate::report::testing::{run, with_test_losses};

    fn section(runs: Vec<Run>) -> Section {
        Section { name: "t".into(), title: "T".into(), runs, ..Section::default() }
    }

    #[test]
    fn speed_up_and_efficiency_are_those_of_medians() {
        let section = section(vec![run((1, 1), &[], 8.0), run((1, 1), &[], 10.0), run((2, 2), &[], 3.0)]);
        let sheet = summary(&section, &group(&section.runs), "1x1");
        let csv = sheet.csv().unwrap();
        let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
        let value =
            |row: usize, name: &str| lines[row][lines[0].iter().position(|n| *n == name).expect(name)];
        assert_eq!(
            (value(1, "train_seconds"), value(1, "train_seconds_max"), value(1, "runs")),
            ("9", "10", "2")
        );
        assert_eq!((value(2, "speed_up"), value(2, "efficiency_percent")), ("3", "75"));
        assert_eq!((value(2, "exposed_comm_percent"), value(2, "ranks")), ("10", "4"));
        let alone = summary(&section, &group(&section.runs)[1..], "1x1");
        let text = alone.markdown();
        assert!(text.contains("| – | – |") && text.contains("without a run on 1x1"), "{text}");
    }

    #[test]
    fn overfitting_rows_are_marked_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let up = with_test_losses(run((1, 1), &[], 8.0), &folder.path().join("up"), &[2.0, 1.5, 1.6, 1.7]);
        let lr = run((1, 1), &["--lr", "1"], 8.0);
        let mut down = with_test_losses(lr, &folder.path().join("down"), &[2.0, 1.5, 1.4, 1.3]);
        down.results.live_mb = None;
        let both = section(vec![up, down]);
        let text = summary(&both, &group(&both.runs), "1x1").markdown();
        assert!(
            text.contains("| overfits after epoch | runs |") && text.contains("Overfits after"),
            "{text}"
        );
        assert!(text.contains("| 50 | 5.00 | 95.00 | 97.50 | 2 | 1 |"), "{text}");
        assert!(text.contains("| 50 | – | 95.00 | 97.50 | – | 1 |"), "{text}");
        let better = section(vec![both.runs[1].clone()]);
        assert!(!summary(&better, &group(&better.runs), "1x1").markdown().contains("verfits"));
    }

    #[test]
    fn runs_of_several_builds_are_reported() {
        let mut runs = vec![run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
        runs.iter_mut().for_each(|run| run.record.git = "aaaa".into());
        let remarks = |runs: &[Run]| summary(&section(runs.to_vec()), &group(runs), "1x1").remarks.join(" ");
        assert!(!remarks(&runs).contains("builds"));
        runs[1].record.git = "bbbb".into();
        assert!(remarks(&runs).contains("(aaaa, bbbb)"), "{}", remarks(&runs));
    }

    #[test]
    fn ratios_compare_rows_with_equal_settings_only() {
        let gloo = ["--backend", "gloo", "--gloo-algorithm", "bcube"];
        let section = section(vec![run((2, 1), &[], 4.0), run((2, 1), &gloo, 5.0), run((2, 2), &gloo, 5.0)]);
        let sheet = ratios(&section, &group(&section.runs)).unwrap();
        assert_eq!(sheet.rows.len(), 1);
        assert_eq!(sheet.rows[0].last().unwrap().shown(), "1.25");
        assert!(ratios(&section, &group(&section.runs[1..])).is_none());
    }

    #[test]
    fn shared_cores_and_machines_are_marked_and_explained() {
        let mut runs = vec![run((2, 2), &[], 4.0)];
        runs[0].record.oversubscribed = true;
        runs[0].record.shared_machine = true;
        let section = section(runs);
        let text = summary(&section, &group(&section.runs), "1x1").markdown();
        assert!(
            text.contains("| yes, shared |")
                && text.contains("not representative")
                && text.contains("Shared:"),
            "{text}"
        );
    }
}
