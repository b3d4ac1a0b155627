//! Accuracies by rank beside the published ones: of float trainings, and of quantized ones with those of
//! the int8 model.

use super::figures::{Figures, Line, word};
use super::labels::{Labels, is_quantized, titled};
use super::published::described;
use super::remarks::tested;
use super::rows::{Row, Spread};
use super::runs::{Run, Section};
use super::sheet::{Cell, Column, Sheet, Value};
use super::summary::paths;
use run_record::{RankRecord, Results};

/// A measurement of each rank.
struct Measure {
    title: &'static str,
    key: &'static str,
    digits: usize,
    /// As [`Column::rank`].
    rank: u8,
    definition: &'static str,
    /// The value of a rank; `None` without samples.
    of_rank: fn(&RankRecord) -> Option<f64>,
    /// That of all ranks.
    of_all: fn(&Results) -> Option<f64>,
    /// Columns of the published figures by rank, and of that of all ranks.
    published: Option<[&'static str; 2]>,
}

const TRAIN: Measure = Measure {
    title: "train acc %",
    key: "train_accuracy",
    digits: 2,
    rank: 0,
    definition: "Accuracy on the training samples during the last epoch",
    of_rank: |rank| rank.train_accuracy.filter(|_| rank.train_samples > 0),
    of_all: |results| Some(results.train_accuracy),
    published: Some(["train_accuracy"; 2]),
};
const TEST: Measure = Measure {
    title: "test acc %",
    key: "test_accuracy",
    digits: 2,
    rank: 0,
    definition: "Accuracy after the last epoch: of a rank on its share of the test set, of all on the tested samples",
    of_rank: |rank| rank.test_accuracy.filter(|_| rank.test_samples > 0),
    of_all: |results| Some(results.test_accuracy),
    published: Some(["test_accuracy"; 2]),
};
const INT8: Measure = Measure {
    title: "int8 acc %",
    key: "int8_test_accuracy",
    definition: "The same of the int8 model",
    of_rank: |rank| rank.int8_test_accuracy,
    of_all: |results| results.int8_test_accuracy,
    published: Some(["int8_test_accuracy", "test_accuracy"]),
    ..TEST
};
const INT8_LOSS: Measure = Measure {
    title: "int8 loss",
    key: "int8_test_loss",
    digits: 4,
    rank: 1,
    definition: "Test loss of the int8 model",
    of_rank: |rank| rank.int8_test_loss,
    of_all: |results| results.int8_test_loss,
    published: None,
};

/// The tables of float and of quantized rows that have several ranks; none without them.
pub fn by_rank(section: &Section, rows: &[Row<'_>], reference: Option<&Figures>) -> Vec<Sheet> {
    let (quantized, float): (Vec<&Row<'_>>, Vec<&Row<'_>>) = rows.iter().partition(|row| is_quantized(row));
    let of_quantized = titled("quantized training by rank", &quantized);
    // What is published as test accuracy of a quantized training is the int8 model's.
    let of_float = Measure { title: "float acc %", rank: 2, published: None, ..TEST };
    [
        (float, "ranks", "accuracy by rank".to_owned(), vec![TRAIN, TEST]),
        (quantized, "quantized-ranks", of_quantized, vec![INT8, TRAIN, INT8_LOSS, of_float]),
    ]
    .into_iter()
    .filter_map(|(shown, name, title, measures)| {
        // One rank is all of them.
        shown.iter().find(|row| row.ranks() > 1)?;
        let mut sheet = sheet(rows, &shown, &measures, reference);
        sheet.name = format!("{}-{name}", section.name);
        sheet.title = format!("{}: {title}", section.title);
        Some(sheet.without(|_, cells| cells.iter().all(|cell| cell.value == Value::Nothing)))
    })
    .filter(|sheet| sheet.columns.iter().any(|column| column.numeric))
    .collect()
}

/// A line of a table: one rank of a row, or all.
struct Part<'r, 'a> {
    row: &'r Row<'a>,
    rank: Option<usize>,
}

fn sheet(rows: &[Row<'_>], shown: &[&Row<'_>], measures: &[Measure], reference: Option<&Figures>) -> Sheet {
    let labels = Labels::of(shown);
    let line_of = |row: &Row<'_>| {
        let reference = reference?;
        let described = described(reference);
        reference.lines.iter().find(|line| reference.is_of(line, &described, row, rows))
    };
    let mut columns = labels.columns(|part: &Part<'_, '_>| part.row);
    columns.push(
        Column::words("rank", "rank").of(|part: &Part<'_, '_>| {
            Cell::text(part.rank.map_or("all".to_owned(), |rank| rank.to_string()))
        }),
    );
    for measure in measures {
        let Measure { title, key, rank, definition, published, .. } = measure;
        let column = Column::spread(title, key).means(definition).ranked(*rank);
        columns.push(column.of(|part: &Part<'_, '_>| ours(part.row, part.rank, measure)));
        if let Some(published) = published {
            let column = Column::number("published", &format!("{key}_published"));
            columns.push(column.means(&format!("Published {title}")).of(|part: &Part<'_, '_>| {
                Cell::maybe(
                    line_of(part.row).map(|line| theirs(line, *published, part.rank, part.row.ranks())),
                )
            }));
        }
    }
    let parts = shown.iter().flat_map(|row| {
        let ranks = (0..row.ranks()).filter(|_| row.ranks() > 1).map(Some).chain([None]);
        ranks.map(|rank| Part { row, rank })
    });
    let parts: Vec<Part<'_, '_>> = parts.collect();
    let mut remarks = vec![format!(
        "Accuracies are those of the last epoch, test accuracy over {}; the test set is shared out among the ranks. – \
         stands for a rank without samples, and for an int8 model that could not be made.",
        tested(rows)
    )];
    if let Some(reference) = reference.filter(|_| shown.iter().any(|row| line_of(row).is_some())) {
        remarks.push(format!(
            "Published: {}; beside `all` is the figure of the whole job. The hardware and perhaps the data differ.",
            reference.hardware(&[])
        ));
    }
    Sheet::of("", "", columns, &parts).with_remarks(remarks)
}

fn ours(row: &Row<'_>, rank: Option<usize>, measure: &Measure) -> Cell {
    let read = |run: &Run| match rank {
        Some(rank) => run.results.per_rank.get(rank).and_then(measure.of_rank),
        None => (measure.of_all)(&run.results),
    };
    let values: Option<Vec<f64>> = row.runs.iter().map(|run| read(run)).collect();
    match values.map(Spread::of).filter(Spread::is_known) {
        Some(spread) => Cell { value: Value::Number(spread, measure.digits), ..Cell::of(paths(row)) },
        None => Cell::nothing(),
    }
}

/// The published figure of one of `ranks` ranks, or of all. Those by rank have slashes between.
fn theirs(line: &Line, [by_rank, of_all]: [&str; 2], rank: Option<usize>, ranks: usize) -> Cell {
    let text = line.get(if rank.is_some() { by_rank } else { of_all }).map_or("", String::as_str);
    let parts: Vec<&str> = text.split('/').collect();
    match rank {
        Some(rank) if parts.len() == ranks => word(parts[rank]),
        None if parts.len() == 1 => word(text),
        _ => Cell::nothing(),
    }
}

#[cfg(test)]
#[path = "by_rank_tests.rs"]
mod tests;
