//! The import of tables: a row is a sample, a column its class, and the other columns are its features.

use csv::{ByteRecord, Position};
use run_record::count;

use crate::beginning::text;
use crate::job::Job;
use crate::labels::{Labels, twin};
use crate::plan;
use crate::quote::{listed, quoted};
use crate::ranges::Ranges;
use crate::set::Numbers;
use crate::table_file::{self, TableFile};
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
        args.drop.iter().map(|column| train.columns("drop", column)).collect::<Result<Vec<_>, _>>()?.concat();
    // It tells the order of the rows, and nothing of the samples.
    for column in (0..train.columns).filter(|&column| train.is_parquet && column != label) {
        if train.column_name(column).starts_with("__index_level_") {
            log::info!("left out: {}, an index of pandas", train.column_name(column));
            dropped.push(column);
        }
    }
    if dropped.contains(&label) {
        return Err(ImportError::option("drop", train.typed(label), "is the column of the class"));
    }
    let features: Vec<usize> =
        (0..train.columns).filter(|column| *column != label && !dropped.contains(column)).collect();
    if features.is_empty() {
        bail!(&train.path, "has no column beside the class");
    }
    describe(&train, label);
    check_names(&train, &features)?;
    let mut labels = Labels::of(names, args.missing_labels);
    let mut ranges = Ranges::of(features.len());
    let lines = train.lines() + test.as_ref().map_or(0, TableFile::lines);
    let tell = |row: usize| job.row(row, 2 * lines);
    let rows = read(&mut train, "", label, &features, &mut labels, &mut ranges, &tell)?;
    let (mut test, test_rows) = match test {
        None => (None, None),
        Some(mut test) => {
            let (label, features) = same_columns(tables, [&train, &test], label, &features)?;
            say_what_is_left_out(&train, &test);
            let tell = |row: usize| tell(rows.len() + row);
            let alone = format!(": {}", tables.advice);
            let rows = read(&mut test, &alone, label, &features, &mut labels, &mut ranges, &tell)?;
            (Some((test, features)), Some(rows))
        }
    };
    for problem in
        ranges.problems(|feature| train.typed(features[feature]), "leave such columns out with --drop")
    {
        log::warn!("{problem}");
    }
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
    let splits = plan::splits(args, rows, test_rows, &classes, class)?;
    let mut writer = Writer::create(job, [1, 1, features.len()], Numbers::F32, all)?;
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

/// Reads all rows: their labels, and whether their features are numbers. `tell` is called with the number of each;
/// `advice` is what to do where no row has a class.
fn read(
    table: &mut TableFile,
    advice: &str,
    label: usize,
    features: &[usize],
    labels: &mut Labels,
    ranges: &mut Ranges,
    tell: &dyn Fn(usize) -> Result<(), ImportError>,
) -> Result<Vec<Row>, ImportError> {
    let (mut rows, mut is_unlabelled) = (Vec::new(), false);
    table.for_each_row(|table, row, position| {
        tell(rows.len())?;
        table.check_width(row, position)?;
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
        rows.push(Row { position: position.clone(), label });
        Ok(())
    })?;
    match (rows.is_empty(), is_unlabelled) {
        (false, _) => Ok(rows),
        (true, true) => bail!(&table.path, "no row has a class in {}{advice}", table.shown(label)),
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

/// Says which lines of the table of the test split are left out, and which columns the other table does not have.
fn say_what_is_left_out(train: &TableFile, test: &TableFile) {
    if !test.notes.is_empty() {
        log::info!("{}: {}", test.name, test.notes.join("; "));
    }
    let [known, found] = [train, test].map(|table| table.header.as_deref().unwrap_or_default());
    let others: Vec<&String> = found.iter().filter(|name| !known.contains(name)).collect();
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
fn check_names(table: &TableFile, features: &[usize]) -> Result<(), ImportError> {
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

/// The columns of the class and the features in the other table: by name, in any order.
fn same_columns(
    tables: &Tables,
    [train, test]: [&TableFile; 2],
    label: usize,
    features: &[usize],
) -> Result<(usize, Vec<usize>), ImportError> {
    if train.header.is_none() || test.header.is_none() {
        if train.columns == test.columns && train.header == test.header {
            return Ok((label, features.to_vec()));
        }
        if train.header == test.header && train.columns == test.columns + 1 {
            return Err(tables.without_classes(&train.column_name(label)));
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
    let class = train.column_name(label);
    if !test.header.iter().flatten().any(|name| *name == class) {
        return Err(tables.without_classes(&class));
    }
    let class = test.named(&class)?;
    let column = |&column: &usize| test.named(&train.column_name(column));
    Ok((class, features.iter().map(column).collect::<Result<_, _>>()?))
}
