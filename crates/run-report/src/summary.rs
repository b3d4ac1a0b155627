//! The main table, with a row for each configuration.

use itertools::Itertools;
use std::collections::BTreeSet;
use std::path::PathBuf;

use super::footnotes::{changes_of, failures, is_sound, marks, warnings};
use super::measures::{OTHERS, TRAIN};
use super::noise::Interval;
use super::remarks::remarks;
use super::rows::{Row, varied};
use super::runs::{Section, overfitting_epochs};
use super::sheet::{Cell, Column, Field, Sheet, Value};

/// Speed-up over `base` and parallel efficiency in percent, from medians; `None` unless the times of both
/// rows can be compared.
pub fn speed_up(row: &Row<'_>, base: &Row<'_>) -> Option<(f64, f64)> {
    let faster = base.train_seconds().median / row.train_seconds().median;
    let efficiency = 100.0 * faster * base.ranks() as f64 / row.ranks() as f64;
    (is_sound(row) && is_sound(base)).then_some((faster, efficiency))
}

/// The table of `rows`; speed-up and efficiency are relative to `baseline`.
pub fn summary(section: &Section, rows: &[Row<'_>], baseline: &str) -> Sheet {
    // One topology alone has no speed-up.
    let several = rows.iter().any(|row| row.setting("topology") != baseline);
    let sped_up = |row: &Row<'_>| {
        let base = row.baseline(rows, baseline).filter(|_| several)?;
        Some((speed_up(row, base)?, [paths(row), paths(base)].concat()))
    };
    let marked = |row: &Row<'_>| Cell { marks: marks(row, rows), ..TRAIN.cell(row) };
    let number = |number: usize, row: &Row<'_>| Cell::number(number as f64, 0, paths(row));
    let bound = |row: &Row<'_>, of: fn(Interval) -> f64| {
        let interval = Interval::of(row, |run| run.results.test_accuracy);
        Cell::maybe(interval.map(|interval| Cell::number(of(interval), 2, Vec::new())))
    };
    let relative = format!("Median train s of {baseline} with the same settings, over this row's");
    let share = format!("Speed-up over the number of ranks relative to {baseline}");
    let own = own_columns(rows);
    let settings = ["topology", "backend", "launcher"].into_iter().chain(own.iter().map(String::as_str));
    let settings = settings.chain(["oversubscribed"]);
    let mut columns: Vec<Field<'_, Row<'_>>> = settings.map(|name| setting(name, |row| row)).collect();
    columns.extend([
        Column::number("ranks", "ranks")
            .means("Processes of all machines")
            .ranked(9)
            .of(|row: &Row<'_>| number(row.ranks(), row)),
        TRAIN.column().of(marked),
        Column::number("speed-up", "speed_up").means(&relative).ranked(1).of(|row: &Row<'_>| {
            Cell::maybe(sped_up(row).map(|((faster, _), runs)| Cell::number(faster, 2, runs)))
        }),
        Column::number("effic. %", "efficiency_percent").means(&share).ranked(2).of(|row: &Row<'_>| {
            Cell::maybe(sped_up(row).map(|((_, efficiency), runs)| Cell::number(efficiency, 0, runs)))
        }),
    ]);
    columns.extend(OTHERS.map(|measure| measure.column().of(move |row: &Row<'_>| measure.cell(row))));
    columns.extend([
        Column::words("overfits after epoch", "overfits_after_epoch")
            .means("Epoch with the lowest test loss, after which test loss rises while training loss falls")
            .of(|row: &Row<'_>| Cell::maybe(overfitting_epochs(&row.runs).map(Cell::text))),
        Column::words("weights", "weights")
            .means("Whether repeats of one seed ended with the same weights")
            .of(|row: &Row<'_>| {
                let same = row.same_weights();
                Cell::maybe(same.map(|same| Cell::text(if same { "same" } else { "differ" })))
            }),
        Column::number("runs", "runs")
            .means("Repeats, of one seed or several")
            .ranked(4)
            .of(|row: &Row<'_>| number(row.runs.len(), row)),
        Column::number("test acc % low", "test_accuracy_low")
            .means("Lower bound of its 95% interval")
            .for_programs()
            .of(|row: &Row<'_>| bound(row, |of| of.low)),
        Column::number("test acc % high", "test_accuracy_high")
            .means("Upper bound of its 95% interval")
            .for_programs()
            .of(|row: &Row<'_>| bound(row, |of| of.high)),
        Column::words("doubts", "doubts")
            .means("Why its times are doubted")
            .for_programs()
            .of(|row: &Row<'_>| Cell::text(warnings(row, rows).map(|warning| warning.name).join(" "))),
        Column::words("changed", "changed").for_programs().of(|row: &Row<'_>| {
            let changes = changes_of(row);
            Cell::maybe((!changes.is_empty()).then(|| Cell::text(changes.join(", "))))
        }),
        Column::words("failed attempts", "failed_attempts").for_programs().of(|row: &Row<'_>| {
            let failures = failures(row);
            Cell::maybe((failures > 0).then(|| Cell::text(failures.to_string())))
        }),
    ]);
    let optional = [
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
    let sheet = Sheet::of(&section.name, title(section, rows), columns, rows);
    sheet.with_remarks(remarks(rows, baseline, overfits)).without(|column, cells| {
        optional.contains(&column.key.as_str()) && cells.iter().all(|cell| cell.value == Value::Nothing)
    })
}

/// Names of varied settings that get columns; the launcher has its own anyway.
pub fn own_columns(rows: &[Row<'_>]) -> Vec<String> {
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

/// Directories of a row's runs.
pub fn paths(row: &Row<'_>) -> Vec<PathBuf> {
    row.runs.iter().map(|run| run.path.clone()).collect()
}

/// Names of the settings that are columns.
pub struct Labels(Vec<String>);

impl Labels {
    /// The topology, and the settings that differ between `rows`.
    pub fn of(rows: &[&Row<'_>]) -> Self {
        let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.settings.keys()).collect();
        let differs = |name: &str| rows.iter().any(|row| row.setting(name) != rows[0].setting(name));
        // What was changed in mid-run is a footnote of the main table.
        let own = |name: &&&String| !["topology", "changed"].contains(&name.as_str()) && differs(name);
        Self(
            ["topology".to_owned()]
                .into_iter()
                .chain(names.iter().filter(own).map(|name| (*name).clone()))
                .collect(),
        )
    }

    /// The columns of a table of rows from which `row` takes the one that is labelled.
    pub fn columns<'a, R: 'a>(
        &self,
        row: impl for<'r> Fn(&'r R) -> &'r Row<'a> + Copy + 'a,
    ) -> Vec<Field<'a, R>> {
        self.0.iter().map(|name| setting(name, row)).collect()
    }
}

/// The column of a setting of the row that `row` takes.
pub fn setting<'a, R: 'a>(name: &str, row: impl for<'r> Fn(&'r R) -> &'r Row<'a> + 'a) -> Field<'a, R> {
    let title = if name == "oversubscribed" { "oversub.".to_owned() } else { name.replace('_', " ") };
    let option = name.replace('_', "-");
    let definition = match name {
        "topology" => "Machines x processes on each",
        "backend" => "Transport of the gradients",
        "launcher" => "What started the ranks",
        "oversubscribed" => {
            "yes: more ranks than cores, which take turns; shared: several hosts are one machine"
        }
        _ => &format!("The option --{option}"),
    };
    let name = name.to_owned();
    let column = Column::words(&title, &name).means(definition);
    column.of(move |of: &R| Cell::text(row(of).setting(&name)))
}

/// Whether a row is of a quantized training.
pub fn is_quantized(row: &Row<'_>) -> bool {
    row.setting("quantized") != "no"
}

/// `title` of a table of quantized `rows`, with their kind if they have one.
pub fn titled(title: &str, rows: &[&Row<'_>]) -> String {
    let kinds: BTreeSet<&str> = rows.iter().map(|row| row.setting("quantized")).collect();
    match kinds.len() {
        1 => format!("{title}, {}", rows[0].setting("quantized")),
        _ => title.to_owned(),
    }
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
