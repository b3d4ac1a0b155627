//! The main table, with a row for each configuration.

use std::path::PathBuf;

use super::history::overfitting_epochs;
use super::measures::{Measure, OTHERS, TRAIN};
use super::noise::Interval;
use super::quality::{doubts, is_sound, marks};
use super::remarks::remarks;
use super::rows::{Row, varied};
use super::runs::Section;
use super::sheet::{Cell, Column, Sheet, Value};
use super::{changed, restarted};

/// Speed-up over `base` and parallel efficiency in percent, from medians; `None` unless the times of both
/// rows can be compared.
pub fn speed_up(row: &Row<'_>, base: &Row<'_>) -> Option<(f64, f64)> {
    let faster = base.train_seconds().median / row.train_seconds().median;
    let efficiency = 100.0 * faster * base.ranks() as f64 / row.ranks() as f64;
    (is_sound(row) && is_sound(base)).then_some((faster, efficiency))
}

/// The table of `rows`; speed-up and efficiency are relative to `baseline`.
pub fn summary(section: &Section, rows: &[Row<'_>], baseline: &str) -> Sheet {
    let varied = own_columns(rows);
    let epochs: Vec<Option<String>> = rows.iter().map(|row| overfitting_epochs(&row.runs)).collect();
    let overfits = epochs.iter().any(Option::is_some);
    let notes = changed::Notes::of(rows);
    // One topology alone has no speed-up.
    let several = rows.iter().any(|row| row.setting("topology") != baseline);
    let lines = rows.iter().zip(&epochs).enumerate().map(|(number, (row, epoch))| {
        let paths = paths(row);
        let doubts = doubts(row, rows);
        let mut cells: Vec<Cell> =
            ["topology", "backend", "launcher"].map(|name| Cell::text(row.setting(name))).to_vec();
        cells.extend(varied.iter().map(|name| Cell::text(row.setting(name))));
        cells.push(Cell::text(row.setting("oversubscribed")));
        cells.push(Cell::number(row.ranks() as f64, 0, paths.clone()));
        let changes = changed::of_row(row);
        let failures = restarted::failures(row);
        let restarted = if failures == 0 { "" } else { restarted::MARK };
        cells.push(Cell { marks: marks(&doubts) + &notes.marks(number) + restarted, ..TRAIN.cell(row) });
        let base = row.baseline(rows, baseline).filter(|_| several);
        match base.and_then(|base| Some((base, speed_up(row, base)?))) {
            Some((base, (faster, efficiency))) => {
                let both: Vec<PathBuf> = paths.iter().cloned().chain(self::paths(base)).collect();
                cells.push(Cell::number(faster, 2, both.clone()));
                cells.push(Cell::number(efficiency, 0, both));
            }
            None => cells.extend([Cell::nothing(), Cell::nothing()]),
        }
        cells.extend(OTHERS.iter().map(|measure| measure.cell(row)));
        cells.push(match epoch {
            Some(epoch) if overfits => Cell::text(epoch.clone()),
            _ => Cell::nothing(),
        });
        cells.push(
            row.same_weights()
                .map_or_else(Cell::nothing, |same| Cell::text(if same { "same" } else { "differ" })),
        );
        cells.push(Cell::number(row.runs.len() as f64, 0, paths));
        let interval = Interval::of(row, |run| run.results.test_accuracy);
        cells.extend(
            [interval.map(|of| of.low), interval.map(|of| of.high)]
                .map(|bound| bound.map_or_else(Cell::nothing, |bound| Cell::number(bound, 2, Vec::new()))),
        );
        let names: Vec<&str> = doubts.iter().map(|doubt| doubt.name()).collect();
        cells.push(Cell::text(names.join(" ")));
        cells.push(if changes.is_empty() { Cell::nothing() } else { Cell::text(changes.join(", ")) });
        cells.push(if failures == 0 { Cell::nothing() } else { Cell::text(failures.to_string()) });
        cells
    });
    let sheet = Sheet {
        name: section.name.clone(),
        title: title(section, rows),
        rows: lines.collect(),
        remarks: remarks(rows, baseline, overfits),
        columns: columns(&varied, baseline),
    };
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
    sheet.without(|column, cells| {
        optional.contains(&column.key.as_str()) && cells.iter().all(|cell| cell.value == Value::Nothing)
    })
}

fn columns(varied: &[String], baseline: &str) -> Vec<Column> {
    let mut columns = vec![
        Column::words("topology", "topology").means("Machines x processes on each"),
        Column::words("backend", "backend").means("Transport of the gradients"),
        Column::words("launcher", "launcher").means("What started the ranks"),
    ];
    columns.extend(varied.iter().map(|name| {
        let option = name.replace('_', "-");
        Column::words(&name.replace('_', " "), name).means(&format!("The option --{option}"))
    }));
    columns.push(
        Column::words("oversub.", "oversubscribed")
            .means("yes: more ranks than cores, which take turns; shared: several hosts are one machine"),
    );
    columns.push(Column::number("ranks", "ranks").means("Processes of all machines").ranked(9));
    columns.push(TRAIN.column());
    let relative = format!("Median train s of {baseline} with the same settings, over this row's");
    columns.push(Column::number("speed-up", "speed_up").means(&relative).ranked(1));
    let share = format!("Speed-up over the number of ranks relative to {baseline}");
    columns.push(Column::number("effic. %", "efficiency_percent").means(&share).ranked(2));
    columns.extend(OTHERS.iter().map(Measure::column));
    columns.push(
        Column::words("overfits after epoch", "overfits_after_epoch")
            .means("Epoch with the lowest test loss, after which test loss rises while training loss falls"),
    );
    columns.push(
        Column::words("weights", "weights").means("Whether repeats of one seed ended with the same weights"),
    );
    columns.push(Column::number("runs", "runs").means("Repeats, of one seed or several").ranked(4));
    columns.push(Column::number("test acc % low", "test_accuracy_low").for_programs());
    columns.push(Column::number("test acc % high", "test_accuracy_high").for_programs());
    columns.push(Column::words("doubts", "doubts").for_programs());
    columns.push(Column::words("changed", "changed").for_programs());
    columns.push(Column::words("failed attempts", "failed_attempts").for_programs());
    columns
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

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
