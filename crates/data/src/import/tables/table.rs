//! Imports tables of features: each row is a sample, one column has its class, and the other columns are its
//! features.
//!
//! Each table is read twice. The first pass checks all cells, collects the labels and notes where each row
//! is. The second pass reads the rows again, in the order of the data set, and writes them. A table therefore
//! need not fit into memory.

use std::collections::BTreeSet;

use csv::{ByteRecord, Position};
use run_record::count;

use crate::error::until_stopped;
use crate::import::job::Job;
use crate::import::labels::{Labels, twin};
use crate::import::same_class::finder;
use crate::import::tables::beginning::{is_empty_from, text};
use crate::import::tables::ranges::FeatureRanges;
use crate::import::tables::table_file::{self, QUOTE, TableFile};
use crate::import::tables::{Other, TableFiles, Tables, parquet_file};
use crate::import::writer::Writer;
use crate::import::{Imported, plan};
use crate::quote::{listed, quoted, short};
use crate::{DataError, Element};

/// A row with a label.
#[derive(Debug, Clone)]
struct LabelledRow {
    position: Position,
    /// Number of the label, in the order in which labels were found.
    label: u32,
}

/// The table of a split, and the numbers of the columns that are read.
struct SplitTable {
    file: TableFile,
    /// Column of the classes.
    label: usize,
    /// Columns of the features, in the order of the training table.
    features: Vec<usize>,
}

/// What was found in the cells of both splits.
struct CellsRead {
    labels: Labels,
    ranges: FeatureRanges,
}

pub(crate) fn import(tables: &Tables, job: &Job<'_>) -> Result<Imported, DataError> {
    let args = job.args;
    args.refuse_those_of_pictures()?;
    let (mut train, names) = open_train(&tables.train, job)?;
    describe(&train.file, train.label);
    check_names(&train.file, &train.features)?;
    let mut cells = CellsRead {
        labels: Labels::with_names(names.clone(), args.missing_labels),
        ranges: FeatureRanges::for_features(train.features.len()),
    };
    let lines = train.file.lines();
    let rows = read(&mut train, &mut cells, &|row| job.row(row, 2 * lines))?;
    let known = cells.labels.names(rows.iter().map(|row| row.label));
    let (test, test_rows) = match choose_test(tables, &train, &cells.labels, &known, job)? {
        None => (None, None),
        Some((other, file)) => {
            let mut test = with_columns_of(&train, other, file)?;
            if test.file.is_parquet {
                let (label, first) = (test.file.column_name(test.label), &tables.train.files[0]);
                parquet_file::check_label(&other.table, &label, names.as_ref(), first)?;
            }
            say_what_is_left_out(&train.file, &test);
            let lines = lines + test.file.lines();
            if classes(&mut test.file, test.label, &cells.labels, &known)?.is_empty() {
                return Err(other.unlabelled(&test.file.typed(test.label)));
            }
            let test_rows = read(&mut test, &mut cells, &|row| job.row(rows.len() + row, 2 * lines))?;
            (Some(test), Some(test_rows))
        }
    };
    let CellsRead { labels, ranges } = cells;
    let name = |feature: usize| train.file.typed(train.features[feature]);
    for problem in ranges.problems(name, "leave such columns out with --drop") {
        log::warn!("{problem}");
    }
    let (classes, number) = labels.classes(&train.file.path)?;
    log::info!(
        "{}: {} of {} in {}",
        args.source.display(),
        count(rows.len() + test_rows.as_ref().map_or(0, Vec::len), "row"),
        count(train.features.len(), "feature"),
        count(classes.len(), "class")
    );
    let class = |row: &LabelledRow| number[row.label as usize];
    let splits = plan::splits(args, rows, test_rows, &classes, class)?;
    write(train, test, &splits, classes, class, job)
}

/// Opens the training table and chooses its columns. Also returns the names of the classes, if the table is
/// Parquet and has them.
fn open_train(files: &TableFiles, job: &Job<'_>) -> Result<(SplitTable, Option<Vec<String>>), DataError> {
    let args = job.args;
    let file = table_file::open(files, 2, job)?;
    let (label, names) = if file.is_parquet {
        let (column, names) = parquet_file::label(files, None, args.label.as_deref())?;
        (file.named(&column)?, names)
    } else {
        (file.label(args.label.as_deref())?, None)
    };
    let mut dropped: Vec<usize> =
        args.drop.iter().map(|column| file.columns("drop", column)).collect::<Result<Vec<_>, _>>()?.concat();
    // Leave out an index of pandas: it says where the row was in a table, and nothing about the sample.
    for column in (0..file.columns).filter(|&column| file.is_parquet && column != label) {
        if file.column_name(column).starts_with("__index_level_") {
            log::info!("left out: {}, an index of pandas", file.column_name(column));
            dropped.push(column);
        }
    }
    dropped.extend(file.has_row_names.then_some(0));
    if dropped.contains(&label) {
        return Err(DataError::option(
            "drop",
            file.typed(label),
            "is the column of the class, which is required: choose other columns",
        ));
    }
    let features: Vec<usize> =
        (0..file.columns).filter(|column| *column != label && !dropped.contains(column)).collect();
    if features.is_empty() && !args.drop.is_empty() {
        let problem =
            format!("leaves no feature: keep at least one column besides {}", short(&file.typed(label)));
        return Err(DataError::option("drop", args.drop.join(","), problem));
    }
    if features.is_empty() {
        bail!(&file.path, "has only the column of the class: at least one feature is required");
    }
    file.check_values(&features)?;
    Ok((SplitTable { file, label, features }, names))
}

/// Chooses and opens the test table. Returns `None` if the source has only the training table, `train`.
/// `known` are the classes of the training table.
fn choose_test<'t>(
    tables: &'t Tables,
    train: &SplitTable,
    labels: &Labels,
    known: &BTreeSet<String>,
    job: &Job<'_>,
) -> Result<Option<(&'t Other, TableFile)>, DataError> {
    let mut opened = Vec::new();
    let chosen = tables.test(job.args, known, |files| {
        let mut file = table_file::open(files, 1, job)?;
        let found = match column_of_classes([&train.file, &file], train.label) {
            Some(column) => classes(&mut file, column, labels, known)?,
            None => BTreeSet::new(),
        };
        opened.push(file);
        Ok(found)
    })?;
    let Some(at) = chosen else { return Ok(None) };
    let other = &tables.others[at];
    let file = opened.into_iter().nth(at).map_or_else(|| table_file::open(&other.table, 1, job), Ok)?;
    Ok(Some((other, file)))
}

/// Finds the columns of the training table in `file`, the table of the split `other`.
fn with_columns_of(train: &SplitTable, other: &Other, file: TableFile) -> Result<SplitTable, DataError> {
    let Some(label) = column_of_classes([&train.file, &file], train.label) else {
        return Err(other.without_classes(&train.file.column_name(train.label)));
    };
    let features = same_columns([&train.file, &file], label, &train.features)?;
    file.check_values(&features)?;
    Ok(SplitTable { file, label, features })
}

/// Writes the samples of both splits. If `test` is `None`, the samples of both splits are rows of `train`.
fn write(
    mut train: SplitTable,
    mut test: Option<SplitTable>,
    splits: &[Vec<LabelledRow>; 2],
    classes: Vec<String>,
    class: impl Fn(&LabelledRow) -> u16,
    job: &Job<'_>,
) -> Result<Imported, DataError> {
    let (features, all) = (train.features.len(), splits.iter().map(Vec::len).sum());
    let mut writer = Writer::create(job, [1, 1, features], Element::F32, all)?;
    let (mut cells, mut sample, mut done) = (ByteRecord::new(), Vec::new(), 0);
    for (split, rows) in splits.iter().enumerate() {
        let table = test.as_mut().filter(|_| split == 1).unwrap_or(&mut train);
        for row in rows {
            table.file.row(&row.position, &mut cells)?;
            let value = |&column: &usize| Some(table.file.format.value(cells.get(column)?)? as f32);
            sample.clear();
            sample.extend(table.features.iter().filter_map(value).flat_map(f32::to_le_bytes));
            if sample.len() != size_of::<f32>() * features {
                return Err(table
                    .file
                    .wrong(&row.position, "was changed while it was read: import the table again"));
            }
            writer.add(split, &sample, class(row), table.file.from(&row.position))?;
            done += 1;
            job.row(all + done, 2 * all)?;
        }
    }
    let names = train.features.iter().map(|&column| train.file.column_name(column));
    let names = if train.file.header.is_some() { names.collect() } else { Vec::new() };
    writer.finish(job, classes, names, None)
}

/// Reads all rows of a table: notes their labels, and checks that their features are numbers. `tell` is
/// called before each row, with the number of samples found so far.
fn read(
    SplitTable { file, label, features }: &mut SplitTable,
    CellsRead { labels, ranges }: &mut CellsRead,
    tell: &dyn Fn(usize) -> Result<(), DataError>,
) -> Result<Vec<LabelledRow>, DataError> {
    let label = *label;
    let (mut rows, mut is_unlabelled) = (Vec::new(), false);
    let (mut empty, mut swallowing) = (0, None);
    file.for_each_row(|table, row, position| {
        tell(rows.len())?;
        // Spreadsheets write rows with nothing but separators: skip these rows. Do not skip an empty row of
        // one cell: it has no separator.
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
        log::info!("{}: left out: {} without a value", file.name, count(empty, "row"));
    }
    if let Some((line, column, lines)) = swallowing {
        log::warn!(
            "{}: line {line}: {column} continues over {}, which may contain rows of samples: {QUOTE}",
            file.name,
            count(lines, "more line")
        );
    }
    match (rows.is_empty(), is_unlabelled) {
        (false, _) => Ok(rows),
        (true, true) => bail!(&file.path, "has no row with a class in {}", file.shown(label)),
        (true, false) => bail!(&file.path, "has no rows with samples"),
    }
}

/// Logs how a table is read.
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
            Some(_) => "names the columns (if it is a sample, pass --header no)",
            None => "is a sample (if it names the columns, pass --header yes)",
        },
        table.shown(label),
        table.notes.iter().map(|note| format!("; {note}")).collect::<String>()
    );
}

/// Returns the classes in a column of a table. Reads the table only until a class is in `known`, so the set
/// may not have all classes.
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

/// Logs which lines and columns of the test table are left out.
fn say_what_is_left_out(train: &TableFile, test: &SplitTable) {
    let SplitTable { file: test, label, features } = test;
    if !test.notes.is_empty() {
        log::info!("{}: {}", test.name, test.notes.join("; "));
    }
    let find = finder(train.header.as_deref().unwrap_or_default());
    let is_other = |&column: &usize| {
        column != *label && !features.contains(&column) && find(&test.column_name(column)).is_none()
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

/// Checks that no two features have the same name, because columns of the test table, and of tables for
/// `mpiburn predict`, are found by these names. Warns about a feature without a name.
fn check_names(table: &TableFile, features: &[usize]) -> Result<(), DataError> {
    let names: Vec<String> = features.iter().map(|&column| table.column_name(column)).collect();
    if let Some(column) = features.iter().find(|&&column| table.column_name(column).is_empty()) {
        let number = column + 1;
        log::warn!("column {number} has no name and is used as a feature: leave it out with --drop {number}");
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

/// Returns the column of the classes in the table `test`, or `None` if there is no such column.
fn column_of_classes([train, test]: [&TableFile; 2], label: usize) -> Option<usize> {
    match (&train.header, &test.header) {
        (Some(_), Some(names)) => finder(names)(&train.column_name(label)),
        // Columns without names are found by position. If the test table has exactly one column fewer than
        // the training table, it is the column of the classes that is missing. Any other difference is an
        // error later.
        _ => Some(label).filter(|_| train.columns != test.columns + 1),
    }
}

/// Returns the columns of the features in the table `test`. If both tables have headers, columns are found by
/// name, in any order and spelling. If neither has a header, columns are found by position. One table with a
/// header and one without is an error. `label` is the column of the classes in `test`.
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
            "{} names of columns, but {} {} them: write both tables with names of columns, or both without",
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
                "has no column {}: the table has {}, and {} has {}; give both tables the same columns, or leave \
                 the column out with --drop {}",
                quoted(&wanted),
                listed(names),
                train.name,
                listed(known),
                run_record::quoted(train.typed(column))
            );
            DataError::source(&test.path, what)
        })
    };
    let columns: Vec<usize> = features.iter().map(column).collect::<Result<_, _>>()?;
    match twin(columns.iter().chain([&label])) {
        Some(column) => bail!(
            &test.path,
            "column {} matches two columns of {}: give the columns of both tables the same names",
            quoted(&test.column_name(*column)),
            train.name
        ),
        None => Ok(columns),
    }
}
