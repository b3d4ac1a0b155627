//! The import of tables: a row is a sample, a column its class, and the other columns are its features.

use std::collections::BTreeMap;
use std::path::Path;

use csv::{ByteRecord, Position};

use crate::error::count;
use crate::pictures::{TEST_FRACTION, classes_of, refuse_fraction};
use crate::plan::Chance;
use crate::set::Numbers;
use crate::table_file::{self, TableFile, is_missing, text};
use crate::writer::Writer;
use crate::{ImportArgs, ImportError, Imported, Progress};

/// Most classes.
const MOST_CLASSES: usize = 1 << 16;
/// Rows between calls of the progress.
const TOGETHER: usize = 256;

/// A row of a table.
#[derive(Debug, Clone)]
struct Row {
    position: Position,
    /// Number of its label among those that were found, in their order.
    label: u32,
}

/// Labels by the order in which they were found.
#[derive(Default)]
struct Labels(BTreeMap<String, u32>);

pub(crate) fn import(
    source: &Path,
    args: &ImportArgs,
    progress: &Progress<'_>,
) -> Result<Imported, ImportError> {
    let (mut train, test) = table_file::open(source)?;
    let label = train.label(args.label.as_deref())?;
    let dropped: Vec<usize> =
        args.drop.iter().map(|column| train.column("drop", column)).collect::<Result<_, _>>()?;
    if dropped.contains(&label) {
        return Err(ImportError::option("drop", train.column_name(label), "is the column of the class"));
    }
    let features: Vec<usize> =
        (0..train.columns).filter(|column| *column != label && !dropped.contains(column)).collect();
    if features.is_empty() {
        return Err(ImportError::source(&train.path, "has no column beside the class"));
    }
    let mut labels = Labels::default();
    let rows = read(&mut train, label, &features, &mut labels)?;
    let test = match test {
        None => None,
        Some(mut test) => {
            check_columns(&train, &test, label)?;
            let rows = read(&mut test, label, &features, &mut labels)?;
            Some((test, rows))
        }
    };
    let (classes, number) = labels.classes(&train)?;
    let class = |row: &Row| number[row.label as usize];
    let mut chance = Chance::new(args.seed);
    let all = rows.len() + test.as_ref().map_or(0, |(_, rows)| rows.len());
    log::info!(
        "{}: {} of {} in {}",
        args.source.display(),
        count(all, "row"),
        count(features.len(), "feature"),
        classes_of(classes.len())
    );
    let (splits, mut test) = match test {
        Some((test, test_rows)) => {
            refuse_fraction(args)?;
            ([rows, test_rows], Some(test))
        }
        None => {
            let share = args.test_fraction.unwrap_or(TEST_FRACTION);
            let splits = chance.divide(rows, classes.len(), |row| class(row).into(), share);
            log::info!("{} of {all} are the test split: {share} of each class", splits[1].len());
            (splits, None)
        }
    };
    let splits = splits.map(|split| chance.order(split, args.order));
    let mut writer = Writer::create(args, [1, 1, features.len()], Numbers::F32, all)?;
    let (mut cells, mut sample, mut done) = (ByteRecord::new(), Vec::new(), 0);
    for (split, rows) in splits.iter().enumerate() {
        let table = if split == 1 { test.as_mut().unwrap_or(&mut train) } else { &mut train };
        for row in rows {
            table.row(&row.position, &mut cells)?;
            sample.clear();
            sample
                .extend(features.iter().filter_map(|&column| Some(table.number(cells.get(column)?)? as f32)));
            if sample.len() != features.len() {
                return Err(table.wrong(row.position.line(), "has changed while it was read"));
            }
            let from = format!("{}:{}", table.name, row.position.line());
            writer.add_floats(split, &sample, class(row), from)?;
            done += 1;
            if done % TOGETHER == 0 && progress(done, all).is_break() {
                return Err(ImportError::Stopped);
            }
        }
    }
    let names = features.iter().map(|&column| train.column_name(column)).collect();
    writer.finish(args, classes, names, None)
}

/// Reads all rows: their labels, and whether their features are numbers.
fn read(
    table: &mut TableFile,
    label: usize,
    features: &[usize],
    labels: &mut Labels,
) -> Result<Vec<Row>, ImportError> {
    let mut rows = Vec::new();
    table.for_each_row(|table, row, position| {
        let wrong = |what: String| table.wrong(position.line(), what);
        let cell = &row[label];
        if is_missing(cell) {
            return Err(wrong(format!("has no class in column {}", table.column_name(label))));
        }
        for &column in features {
            let cell = &row[column];
            if table.number(cell).is_none_or(|value| !(value as f32).is_finite()) {
                let name = table.column_name(column);
                return Err(wrong(match (is_missing(cell), text(cell)) {
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
        true => Err(ImportError::source(&table.path, "has no row of a sample")),
        false => Ok(rows),
    }
}

/// Checks that both tables have the same columns.
fn check_columns(train: &TableFile, test: &TableFile, label: usize) -> Result<(), ImportError> {
    if train.columns == test.columns && train.header == test.header {
        return Ok(());
    }
    let without = test.columns + 1 == train.columns;
    let what = match (without, &train.header) {
        (true, Some(names)) if test.header.iter().flatten().all(|name| *name != names[label]) => format!(
            "has no column {}: nothing can be tested without classes; import {} alone",
            names[label],
            train.path.display()
        ),
        _ => format!("has other columns than {}", train.path.display()),
    };
    Err(ImportError::source(&test.path, what))
}

impl Labels {
    /// The number of a label; whole numbers are one however they are written.
    fn number(&mut self, name: &str, value: Option<f64>) -> Result<u32, String> {
        let name = match value {
            Some(value) if value.fract() != 0.0 => {
                return Err(format!("the class is {name}: classes are words or whole numbers"));
            }
            Some(value) if value.abs() < 1e15 => format!("{value}"),
            _ => name.to_owned(),
        };
        let next = self.0.len() as u32;
        if next as usize > MOST_CLASSES {
            return Err(format!("there are more than {MOST_CLASSES} classes"));
        }
        Ok(*self.0.entry(name).or_insert(next))
    }

    /// The names of the classes, whole numbers in their order and words in that of their letters, and the class of
    /// each label.
    fn classes(self, table: &TableFile) -> Result<(Vec<String>, Vec<u16>), ImportError> {
        if self.0.len() > MOST_CLASSES {
            let what = format!("has {} classes, and at most {MOST_CLASSES} are supported", self.0.len());
            return Err(ImportError::source(&table.path, what));
        }
        let mut labels: Vec<(String, u32)> = self.0.into_iter().collect();
        if labels.iter().all(|(name, _)| name.parse::<i64>().is_ok()) {
            labels.sort_by_key(|(name, _)| name.parse::<i64>().unwrap_or_default());
        }
        let mut class = vec![0; labels.len()];
        labels.iter().enumerate().for_each(|(at, (_, found))| class[*found as usize] = at as u16);
        Ok((labels.into_iter().map(|(name, _)| name).collect(), class))
    }
}
