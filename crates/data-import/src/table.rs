//! The import of tables: a row is a sample, a column its class, and the other columns are its features.

use csv::{ByteRecord, Position};
use run_record::count;

use crate::job::Job;
use crate::labels::{Labels, twin};
use crate::plan;
use crate::set::Numbers;
use crate::table_file::{self, TableFile, is_missing, text};
use crate::tables::Tables;
use crate::writer::Writer;
use crate::{ImportError, Imported, parquet_file};

/// A row of a table.
#[derive(Debug, Clone)]
struct Row {
    position: Position,
    /// Number of its label among those that were found, in their order.
    label: u32,
}

pub(crate) fn import(tables: &Tables, job: &Job<'_>) -> Result<Imported, ImportError> {
    let args = job.args;
    args.refuse_those_of_pictures()?;
    let (mut train, test) = table_file::open(tables, job)?;
    let (label, names) = match train.is_parquet {
        true => {
            let (column, names) = parquet_file::label(tables, None, args.label.as_deref())?;
            (train.named(&column)?, names)
        }
        false => (train.label(args.label.as_deref())?, None),
    };
    let mut dropped: Vec<usize> =
        args.drop.iter().map(|column| train.column("drop", column)).collect::<Result<_, _>>()?;
    // It tells the order of the rows, and nothing of the samples.
    for column in (0..train.columns).filter(|&column| train.is_parquet && column != label) {
        if train.column_name(column).starts_with("__index_level_") {
            log::info!("left out: {}, an index of pandas", train.column_name(column));
            dropped.push(column);
        }
    }
    if dropped.contains(&label) {
        return Err(ImportError::option("drop", train.column_name(label), "is the column of the class"));
    }
    let features: Vec<usize> =
        (0..train.columns).filter(|column| *column != label && !dropped.contains(column)).collect();
    if features.is_empty() {
        bail!(&train.path, "has no column beside the class");
    }
    describe(&train, label);
    check_names(&train, &features)?;
    let mut labels = Labels::of(names);
    let mut ranges = vec![[f64::INFINITY, f64::NEG_INFINITY]; features.len()];
    let lines = train.lines() + test.as_ref().map_or(0, TableFile::lines);
    let tell = |row: usize| job.row(row, 2 * lines);
    let rows = read(&mut train, label, &features, &mut labels, &mut ranges, &tell)?;
    let (mut test, test_rows) = match test {
        None => (None, None),
        Some(mut test) => {
            let (label, features) = same_columns(&train, &test, label, &features)?;
            let tell = |row: usize| tell(rows.len() + row);
            let rows = read(&mut test, label, &features, &mut labels, &mut ranges, &tell)?;
            (Some((test, features)), Some(rows))
        }
    };
    warn_of_rounding(&train, &features, &ranges);
    let (classes, number) = labels.classes(&train.path)?;
    let class = |row: &Row| number[row.label as usize];
    let all = rows.len() + test_rows.as_ref().map_or(0, Vec::len);
    log::info!(
        "{}: {} of {} in {}",
        args.source.display(),
        count(all, "row"),
        count(features.len(), "feature"),
        count(classes.len(), "class")
    );
    let splits = plan::splits(args, rows, test_rows, classes.len(), class)?;
    let mut writer = Writer::create(job, [1, 1, features.len()], Numbers::F32, all)?;
    let (mut cells, mut sample, mut done) = (ByteRecord::new(), Vec::new(), 0);
    for (split, rows) in splits.iter().enumerate() {
        let (table, features) = match &mut test {
            Some((test, features)) if split == 1 => (test, &*features),
            _ => (&mut train, &features),
        };
        for row in rows {
            table.row(&row.position, &mut cells)?;
            let value = |&column: &usize| Some(table.number(cells.get(column)?)? as f32);
            sample.clear();
            sample.extend(features.iter().filter_map(value).flat_map(f32::to_le_bytes));
            if sample.len() != size_of::<f32>() * features.len() {
                return Err(table.wrong(&row.position, "has changed while it was read"));
            }
            let from = format!("{}:{}", table.name, table.line(&row.position));
            writer.add(split, &sample, class(row), from)?;
            done += 1;
            job.row(all + done, 2 * all)?;
        }
    }
    let names = features.iter().map(|&column| train.column_name(column));
    let names = if train.header.is_some() { names.collect() } else { Vec::new() };
    writer.finish(job, classes, names, None)
}

/// Reads all rows: their labels, and whether their features are numbers. `tell` is called with the number of each.
fn read(
    table: &mut TableFile,
    label: usize,
    features: &[usize],
    labels: &mut Labels,
    ranges: &mut [[f64; 2]],
    tell: &dyn Fn(usize) -> Result<(), ImportError>,
) -> Result<Vec<Row>, ImportError> {
    let mut rows = Vec::new();
    table.for_each_row(|table, row, position| {
        tell(rows.len())?;
        table.check_width(row, position)?;
        let wrong = |what: String| table.wrong(position, what);
        let cell = &row[label];
        if text(cell).is_ok_and(str::is_empty) {
            return Err(wrong(format!("has no class in column {}", table.column_name(label))));
        }
        for (&column, range) in features.iter().zip(&mut *ranges) {
            let cell = &row[column];
            let value = table.number(cell);
            if let Some(value) = value {
                *range = [range[0].min(value), range[1].max(value)];
            }
            if value.is_none_or(|value| !(value as f32).is_finite()) {
                let name = table.column_name(column);
                return Err(wrong(match (is_missing(cell), text(cell)) {
                    (false, Ok(text)) if value.is_some() => {
                        format!("column {name} is {text}, which is beyond f32: scale the column")
                    }
                    (true, _) => format!("column {name} has no value: fill it in, or leave the row out"),
                    (_, Ok(text)) => format!(
                        "column {name} is {text:?}, which is no number: make it one, or leave the column out with \
                         --drop {name}"
                    ),
                    (_, Err(what)) => format!("column {name}: {what}"),
                }));
            }
        }
        let name = text(cell).map_err(|what| wrong(format!("column {}: {what}", table.column_name(label))))?;
        rows.push(Row { position: position.clone(), label: labels.number(name, table.number(cell)).map_err(wrong)? });
        Ok(())
    })?;
    match rows.is_empty() {
        true => bail!(&table.path, "has no row of a sample"),
        false => Ok(rows),
    }
}

/// Says how a table is read.
fn describe(table: &TableFile, label: usize) {
    if table.is_parquet {
        return log::info!("{}: the class is column {}", table.name, table.column_name(label));
    }
    let separator = match table.format.separator {
        b'\t' => "tabs".to_owned(),
        byte => format!("\"{}\"", char::from(byte)),
    };
    log::info!(
        "{}: cells are separated by {separator}{}; the first row {}; the class is column {}",
        table.name,
        if table.format.comma { ", the decimal sign is a comma" } else { "" },
        match table.header {
            Some(_) => "names the columns (--header no: it is a sample)",
            None => "is a sample (--header yes: it names the columns)",
        },
        table.column_name(label)
    );
}

/// Checks that features have names of their own, by which those of other tables are found.
fn check_names(table: &TableFile, features: &[usize]) -> Result<(), ImportError> {
    let names: Vec<String> = features.iter().map(|&column| table.column_name(column)).collect();
    if let Some(column) = features.iter().find(|&&column| table.column_name(column).is_empty()) {
        let number = column + 1;
        log::warn!(
            "column {number} has no name, and is a feature as the others: --drop {number} leaves it out"
        );
    }
    match twin(&names) {
        Some(name) => bail!(
            &table.path,
            "has two columns {name:?}: rename one, or leave one out with --drop and its number"
        ),
        None => Ok(()),
    }
}

/// The columns of the class and the features in the other table: by name, in any order.
fn same_columns(
    train: &TableFile,
    test: &TableFile,
    label: usize,
    features: &[usize],
) -> Result<(usize, Vec<usize>), ImportError> {
    if train.header.is_none() || test.header.is_none() {
        if train.columns == test.columns && train.header == test.header {
            return Ok((label, features.to_vec()));
        }
        let names = |table: &TableFile| if table.header.is_some() { "has" } else { "lacks" };
        bail!(
            &test.path,
            "{} names of columns, and {} {} them: both need the same",
            names(test),
            train.path.display(),
            names(train)
        );
    }
    let class = test.named(&train.column_name(label))?;
    let column = |&column: &usize| test.named(&train.column_name(column));
    Ok((class, features.iter().map(column).collect::<Result<_, _>>()?))
}

/// Warns of features whose values f32 can hardly tell apart.
fn warn_of_rounding(table: &TableFile, features: &[usize], ranges: &[[f64; 2]]) {
    /// Values that f32 has in a range, for a network to learn from.
    const FEW: f64 = 1000.0;
    for (&column, &[low, high]) in features.iter().zip(ranges) {
        let largest = low.abs().max(high.abs()) as f32;
        let step = f64::from(largest.next_up() - largest);
        if high > low && high - low < FEW * step {
            log::warn!(
                "column {}: f32 has less than {FEW} values from {low} to {high}, so samples become alike: subtract a \
                 constant from it, or leave it out with --drop",
                table.column_name(column)
            );
        }
    }
}
