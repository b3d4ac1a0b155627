//! The import of tables: a row is a sample, a column its class, and the other columns are its features.

use std::collections::BTreeSet;

use csv::{ByteRecord, Position};
use run_record::count;

use crate::error::until_stopped;
use crate::import::job::Job;
use crate::import::labels::{Labels, twin};
use crate::import::same_class::finder;
use crate::import::tables::beginning::{is_empty_from, text};
use crate::import::tables::ranges::FeatureRanges;
use crate::import::tables::table_file::{self, TableFile};
use crate::import::tables::{Tables, parquet_file};
use crate::import::writer::Writer;
use crate::import::{Imported, plan};
use crate::quote::{listed, quoted};
use crate::{DataError, Element};

/// A row of a table.
#[derive(Debug, Clone)]
struct LabelledRow {
    position: Position,
    /// Number of its label among those that were found, in their order.
    label: u32,
}

pub(crate) fn import(tables: &Tables, job: &Job<'_>) -> Result<Imported, DataError> {
    let args = job.args;
    args.refuse_those_of_pictures()?;
    let mut train = table_file::open(&tables.train, 2, job)?;
    let (label, names) = if train.is_parquet {
        let (column, names) = parquet_file::label(&tables.train, None, args.label.as_deref())?;
        (train.named(&column)?, names)
    } else {
        (train.label(args.label.as_deref())?, None)
    };
    let mut dropped: Vec<usize> =
        args.drop.iter().map(|column| train.columns("drop", column)).collect::<Result<Vec<_>, _>>()?.concat();
    // It tells the order of the rows, and nothing of the samples.
    for column in (0..train.columns).filter(|&column| train.is_parquet && column != label) {
        if train.column_name(column).starts_with("__index_level_") {
            log::info!("left out: {}, an index of pandas", train.column_name(column));
            dropped.push(column);
        }
    }
    dropped.extend(train.has_row_names.then_some(0));
    if dropped.contains(&label) {
        return Err(DataError::option("drop", train.typed(label), "is the column of the class"));
    }
    let features: Vec<usize> =
        (0..train.columns).filter(|column| *column != label && !dropped.contains(column)).collect();
    if features.is_empty() {
        bail!(&train.path, "has no column beside the class");
    }
    describe(&train, label);
    check_names(&train, &features)?;
    let mut labels = Labels::with_names(names.clone(), args.missing_labels);
    let mut ranges = FeatureRanges::for_features(features.len());
    let lines = train.lines();
    let tell = |row: usize| job.row(row, 2 * lines);
    let rows = read(&mut train, label, &features, &mut labels, &mut ranges, &tell)?;
    let known = labels.names(rows.iter().map(|row| row.label));
    let mut opened = Vec::new();
    let test = tables.test(args, &known, |files| {
        let mut table = table_file::open(files, 1, job)?;
        let found = match column_of_classes([&train, &table], label) {
            Some(column) => classes(&mut table, column, &labels, &known)?,
            None => BTreeSet::new(),
        };
        opened.push(table);
        Ok(found)
    })?;
    let (mut test, test_rows) = match test {
        None => (None, None),
        Some(at) => {
            let other = &tables.others[at];
            let opened = opened.into_iter().nth(at);
            let mut test = opened.map_or_else(|| table_file::open(&other.table, 1, job), Ok)?;
            let Some(label) = column_of_classes([&train, &test], label) else {
                return Err(other.without_classes(&train.column_name(label)));
            };
            let features = same_columns([&train, &test], label, &features)?;
            if test.is_parquet {
                let first = &tables.train.files[0];
                parquet_file::check_label(&other.table, &test.column_name(label), names.as_ref(), first)?;
            }
            say_what_is_left_out(&train, &test, label, &features);
            let lines = lines + test.lines();
            let tell = |row: usize| job.row(rows.len() + row, 2 * lines);
            if classes(&mut test, label, &labels, &known)?.is_empty() {
                return Err(other.unlabelled(&test.typed(label)));
            }
            let rows = read(&mut test, label, &features, &mut labels, &mut ranges, &tell)?;
            (Some((test, features)), Some(rows))
        }
    };
    for problem in
        ranges.problems(|feature| train.typed(features[feature]), "leave such columns out with --drop")
    {
        log::warn!("{problem}");
    }
    let (classes, number) = labels.classes(&train.path)?;
    let class = |row: &LabelledRow| number[row.label as usize];
    let all = rows.len() + test_rows.as_ref().map_or(0, Vec::len);
    log::info!(
        "{}: {} of {} in {}",
        args.source.display(),
        count(all, "row"),
        count(features.len(), "feature"),
        count(classes.len(), "class")
    );
    let splits = plan::splits(args, rows, test_rows, &classes, class)?;
    let mut writer = Writer::create(job, [1, 1, features.len()], Element::F32, all)?;
    let (mut cells, mut sample, mut done) = (ByteRecord::new(), Vec::new(), 0);
    for (split, rows) in splits.iter().enumerate() {
        let (table, features) = match &mut test {
            Some((test, features)) if split == 1 => (test, &*features),
            _ => (&mut train, &features),
        };
        for row in rows {
            table.row(&row.position, &mut cells)?;
            let value = |&column: &usize| Some(table.format.value(cells.get(column)?)? as f32);
            sample.clear();
            sample.extend(features.iter().filter_map(value).flat_map(f32::to_le_bytes));
            if sample.len() != size_of::<f32>() * features.len() {
                return Err(table.wrong(&row.position, "has changed while it was read"));
            }
            writer.add(split, &sample, class(row), table.from(&row.position))?;
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
    ranges: &mut FeatureRanges,
    tell: &dyn Fn(usize) -> Result<(), DataError>,
) -> Result<Vec<LabelledRow>, DataError> {
    let (mut rows, mut is_unlabelled) = (Vec::new(), false);
    let (mut empty, mut swallowing) = (0, None);
    table.for_each_row(|table, row, position| {
        tell(rows.len())?;
        // Spreadsheets leave rows of separators. Nothing separates a row of one cell.
        if !table.is_parquet && row.len() > 1 && is_empty_from(row, 0) {
            empty += 1;
            return Ok(());
        }
        table.check_width(row, position)?;
        if swallowing.is_none() {
            let found = table.swallowed(row);
            swallowing = found.map(|(column, rows)| (table.line(position), table.shown(column), rows));
        }
        let wrong = |what: String| table.wrong(position, what);
        let (place, cell) = (table.shown(label), &row[label]);
        let name = text(cell).map_err(|what| wrong(format!("{place}: {what}")))?;
        let Some(label) = labels.number(place, name, table.number(cell)).map_err(wrong)? else {
            is_unlabelled = true;
            return Ok(());
        };
        for (feature, &column) in features.iter().enumerate() {
            let value = table.feature(row, column).map_err(|what| wrong(what.join(": ")))?;
            ranges.add(feature, value, &row[column]);
        }
        rows.push(LabelledRow { position: position.clone(), label });
        Ok(())
    })?;
    if empty > 0 {
        log::info!("{}: left out: {} without a value", table.name, count(empty, "row"));
    }
    if let Some((line, column, lines)) = swallowing {
        log::warn!(
            "{}: line {line}: {column} has {lines} lines that look like rows: if a quotation mark (\") is missing or too \
             many, samples are lost",
            table.name
        );
    }
    match (rows.is_empty(), is_unlabelled) {
        (false, _) => Ok(rows),
        (true, true) => bail!(&table.path, "no row has a class in {}", table.shown(label)),
        (true, false) => bail!(&table.path, "has no row of a sample"),
    }
}

/// Says how a table is read.
fn describe(table: &TableFile, label: usize) {
    if table.is_parquet {
        return log::info!("{}: the class is {}", table.name, table.shown(label));
    }
    let separator = match table.format.separator {
        b'\t' => "tabs".to_owned(),
        byte => format!("\"{}\"", char::from(byte)),
    };
    log::info!(
        "{}: cells are separated by {separator}{}; the first row {}; the class is {}{}",
        table.name,
        if table.format.comma { ", the decimal sign is a comma" } else { "" },
        match table.header {
            Some(_) => "names the columns (--header no: it is a sample)",
            None => "is a sample (--header yes: it names the columns)",
        },
        table.shown(label),
        table.notes.iter().map(|note| format!("; {note}")).collect::<String>()
    );
}

/// The classes in a column of a table, up to one that is `known`.
pub(crate) fn classes(
    table: &mut TableFile,
    column: usize,
    labels: &Labels,
    known: &BTreeSet<String>,
) -> Result<BTreeSet<String>, DataError> {
    let mut found = BTreeSet::new();
    let read = table.for_each_row(|table, row, _| {
        let cell = row.get(column).unwrap_or_default();
        found.extend(text(cell).ok().and_then(|label| labels.name(label, table.number(cell))));
        if found.is_disjoint(known) { Ok(()) } else { Err(DataError::Stopped) }
    });
    until_stopped(read).map(|()| found)
}

/// Says which lines and columns of the table of the test split are left out.
fn say_what_is_left_out(train: &TableFile, test: &TableFile, label: usize, features: &[usize]) {
    if !test.notes.is_empty() {
        log::info!("{}: {}", test.name, test.notes.join("; "));
    }
    let find = finder(train.header.as_deref().unwrap_or_default());
    let is_other = |&column: &usize| {
        column != label && !features.contains(&column) && find(&test.column_name(column)).is_none()
    };
    let others: Vec<String> =
        (0..test.columns).filter(is_other).map(|column| test.column_name(column)).collect();
    if let [_, ..] = &others[..] {
        let columns = if others.len() == 1 { "column" } else { "columns" };
        log::warn!(
            "{}: left out: {columns} {}, which {} does not have",
            test.name,
            listed(&others),
            train.name
        );
    }
}

/// Checks that features have names of their own, by which those of other tables are found.
fn check_names(table: &TableFile, features: &[usize]) -> Result<(), DataError> {
    let names: Vec<String> = features.iter().map(|&column| table.column_name(column)).collect();
    if let Some(column) = features.iter().find(|&&column| table.column_name(column).is_empty()) {
        let number = column + 1;
        log::warn!("column {number} has no name and is used as a feature: --drop {number} leaves it out");
    }
    match twin(&names) {
        Some(name) => bail!(
            &table.path,
            "has two columns {}: rename one, or leave one out with --drop and its number",
            quoted(name)
        ),
        None => Ok(()),
    }
}

/// The column of the classes in the other table; none if it has no such column.
fn column_of_classes([train, test]: [&TableFile; 2], label: usize) -> Option<usize> {
    match (&train.header, &test.header) {
        (Some(_), Some(names)) => finder(names)(&train.column_name(label)),
        // Another difference than the column of the classes is an error later.
        _ => Some(label).filter(|_| train.columns != test.columns + 1),
    }
}

/// The columns of the features in the other table, whose classes are in column `label`: by name, in any order and any
/// spelling.
fn same_columns(
    [train, test]: [&TableFile; 2],
    label: usize,
    features: &[usize],
) -> Result<Vec<usize>, DataError> {
    let [Some(known), Some(names)] = [train, test].map(|table| table.header.as_deref()) else {
        if train.columns == test.columns && train.header == test.header {
            return Ok(features.to_vec());
        }
        let names = |table: &TableFile| if table.header.is_some() { "has" } else { "lacks" };
        bail!(
            &test.path,
            "{} names of columns, and {} {} them: both need the same",
            names(test),
            train.path.display(),
            names(train)
        );
    };
    let find = finder(names);
    let column = |&column: &usize| {
        let wanted = train.column_name(column);
        find(&wanted).ok_or_else(|| {
            let what = format!(
                "has no column {}: it has {}, and {} has {}; give both the same columns, or leave it out with --drop {}",
                quoted(&wanted),
                listed(names),
                train.name,
                listed(known),
                train.typed(column)
            );
            DataError::source(&test.path, what)
        })
    };
    let columns: Vec<usize> = features.iter().map(column).collect::<Result<_, _>>()?;
    match twin(columns.iter().chain([&label])) {
        Some(column) => bail!(
            &test.path,
            "column {} stands for two columns of {}: give both tables the same names",
            quoted(&test.column_name(*column)),
            train.name
        ),
        None => Ok(columns),
    }
}
