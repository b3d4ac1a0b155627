//! Tables of each rank's accuracy beside published figures. One table has the float trainings. The other has
//! the quantized trainings, with the accuracy of the int8 model.

use super::published::{FigureLine, Figures, described, word};
use super::quantized::measure;
use super::remarks::tested;
use super::rows::Row;
use super::runs::Section;
use super::sheet::{Cell, CellValue, Column, Sheet};
use super::summary::{Measure, is_quantized, labels, paths, titled};
use run_record::RankRecord;

/// A measurement that exists for each rank.
#[derive(Clone, Copy)]
struct ByRank {
    /// The measurement over all ranks.
    measure: Measure,
    /// Reads the value of one rank; `None` if the rank had no samples.
    of_rank: fn(&RankRecord) -> Option<f64>,
    /// Names of two columns of the published figures: the column with the values by rank, and the column with
    /// the value over all ranks. `None` if this measurement was not published.
    published: Option<[&'static str; 2]>,
}

/// Makes one table of the float rows and one of the quantized rows. A row is a configuration: one run or its
/// repeats. A table in which no row has several ranks is left out.
pub fn by_rank(section: &Section, rows: &[Row<'_>], reference: Option<&Figures>) -> Vec<Sheet> {
    let (quantized, float): (Vec<&Row<'_>>, Vec<&Row<'_>>) = rows.iter().partition(|row| is_quantized(row));
    let of_quantized = titled("quantized training by rank", &quantized);
    let measured = |key, title, rank, of_rank: fn(&RankRecord) -> Option<f64>, published| ByRank {
        measure: measure(key, title, rank),
        of_rank,
        published,
    };
    let train =
        measured("train_accuracy", "train acc %", 0, |rank| rank.train_accuracy, Some(["train_accuracy"; 2]));
    let test =
        measured("test_accuracy", "test acc %", 0, |rank| rank.test_accuracy, Some(["test_accuracy"; 2]));
    let float_test = measured("test_accuracy", "float acc %", 2, |rank| rank.test_accuracy, None);
    let int8_loss = measured("int8_test_loss", "int8 loss", 1, |rank| rank.int8_test_loss, None);
    // For a quantized training, the published test accuracy is the int8 model's.
    let published = Some(["int8_test_accuracy", "test_accuracy"]);
    let int8 = measured("int8_test_accuracy", "int8 acc %", 0, |rank| rank.int8_test_accuracy, published);
    [
        (float, "ranks", "accuracy by rank".to_owned(), vec![train, test]),
        (quantized, "quantized-ranks", of_quantized, vec![int8, train, int8_loss, float_test]),
    ]
    .into_iter()
    .filter_map(|(shown, name, title, measures)| {
        // With one rank, the table would repeat the main table.
        shown.iter().find(|row| row.ranks() > 1)?;
        let mut sheet = sheet(rows, &shown, &measures, reference);
        sheet.name = format!("{}-{name}", section.name);
        sheet.title = format!("{}: {title}", section.title);
        Some(sheet.without(|_, cells| cells.iter().all(|cell| cell.value == CellValue::Nothing)))
    })
    .filter(|sheet| sheet.columns.iter().any(|column| column.numeric))
    .collect()
}

/// A line of a table: one rank of a row, or all of its ranks if `rank` is `None`.
struct RowPart<'r, 'a> {
    row: &'r Row<'a>,
    rank: Option<usize>,
}

fn sheet(rows: &[Row<'_>], shown: &[&Row<'_>], measures: &[ByRank], reference: Option<&Figures>) -> Sheet {
    let line_of = |row: &Row<'_>| {
        let reference = reference?;
        let described = described(reference);
        reference.lines.iter().find(|line| reference.is_of(line, &described, row, rows))
    };
    let mut columns = labels(shown, |part: &RowPart<'_, '_>| part.row);
    columns.push(Column::words("rank", "rank").means("One rank, or all").shows(|part: &RowPart<'_, '_>| {
        Cell::text(part.rank.map_or("all".to_owned(), |rank| rank.to_string()))
    }));
    for measured in measures {
        columns.push(measured.measure.column().shows(|part: &RowPart<'_, '_>| ours(part, measured)));
        if let Some(published) = measured.published {
            let column = Column::number("published", &format!("{}_published", measured.measure.key));
            columns.push(column.means(&format!("Published {}", measured.measure.title)).shows(
                move |part: &RowPart<'_, '_>| {
                    Cell::maybe(
                        line_of(part.row).map(|line| theirs(line, published, part.rank, part.row.ranks())),
                    )
                },
            ));
        }
    }
    let parts = shown.iter().flat_map(|row| {
        let ranks = (0..row.ranks()).filter(|_| row.ranks() > 1).map(Some).chain([None]);
        ranks.map(|rank| RowPart { row, rank })
    });
    let parts: Vec<RowPart<'_, '_>> = parts.collect();
    let mut remarks = vec![format!(
        "Accuracies are from the last epoch. Test accuracy is over {}, and each rank tests its share of these samples.",
        tested(rows)
    )];
    // A column in which every value is missing is left out later and needs no remark.
    let is_missing = |measured: &ByRank| {
        let missing = parts.iter().filter(|part| ours(part, measured).value == CellValue::Nothing).count();
        (1..parts.len()).contains(&missing)
    };
    if measures.iter().any(is_missing) {
        remarks.push("–: the rank has no samples, or the int8 model could not be created.".into());
    }
    if let Some(reference) = reference.filter(|_| shown.iter().any(|row| line_of(row).is_some())) {
        remarks.push(format!(
            "Published: {}. The published figure in the row `all` is for the whole job. The hardware differs, and the data may differ.",
            reference.hardware(&[])
        ));
    }
    Sheet::from_rows("", "", columns, &parts).with_remarks(remarks)
}

fn ours(RowPart { row, rank }: &RowPart<'_, '_>, measured: &ByRank) -> Cell {
    let spread = row.spread(|run| match rank {
        Some(rank) => run.results.per_rank.get(*rank).and_then(measured.of_rank).unwrap_or(f64::NAN),
        None => (measured.measure.read)(run),
    });
    let value = Some(CellValue::Number(spread, measured.measure.digits)).filter(|_| spread.is_known());
    Cell::maybe(value.map(|value| Cell { value, ..Cell::of_runs(paths(row)) }))
}

/// Returns the published figure of one rank, or of all ranks if `rank` is `None`. A cell with figures of
/// several ranks has slashes between them.
fn theirs(line: &FigureLine, [by_rank, of_all]: [&str; 2], rank: Option<usize>, ranks: usize) -> Cell {
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
