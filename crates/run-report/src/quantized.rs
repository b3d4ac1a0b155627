//! Tables of quantized trainings, which compare the int8 model with the float network. A row is a
//! configuration: one run or its repeats.

use super::remarks::is_sound;
use super::rows::Row;
use super::runs::{Run, Section};
use super::sheet::{Cell, CellValue, Sheet};
use super::summary::{Dispersion, Measure, OTHERS, TRAIN, is_quantized, labels, titled};

const SPEED: &str = "times_as_fast";

/// Measurements that the main table does not have.
const LOSSES: [Measure; 2] = [
    Measure::new("test loss", "test_loss", |run| run.results.test_loss)
        .digits(4)
        .beside(Dispersion::Deviation)
        .means("Test loss of the float network"),
    Measure::new("int8 test loss", "int8_test_loss", |run| run.results.int8_test_loss.unwrap_or(f64::NAN))
        .digits(4)
        .beside(Dispersion::Deviation)
        .means("Test loss of the int8 model"),
];

/// Returns the measurement `key`, from the main table or from `LOSSES`, with the given title and the given
/// [`Measure::hide_order`].
pub fn measure(key: &str, title: &'static str, hide_order: u8) -> Measure {
    let found = OTHERS.into_iter().chain(LOSSES).find(|measure| measure.key == key).unwrap_or(TRAIN);
    Measure { title, hide_order, ..found }
}

/// Makes the table of quantized rows; `None` if no row is quantized.
pub fn quantized(section: &Section, rows: &[Row<'_>]) -> Option<Sheet> {
    let quantized: Vec<&Row<'_>> = rows.iter().filter(|row| is_quantized(row)).collect();
    quantized.first()?;
    let measures = [
        measure("test_accuracy", "float acc %", 0),
        measure("int8_test_accuracy", "int8 acc %", 0),
        measure("float_kb", "float KB", 1),
        measure("int8_kb", "int8 KB", 1),
        measure("times_smaller", "times smaller", 0),
        Measure::new("times as fast", SPEED, times_as_fast).beside(Dispersion::Range).means(
            "Inference time of the float network, divided by the int8 model's, in the tests after each epoch",
        ),
        measure("test_loss", "float loss", 3),
        measure("int8_test_loss", "int8 loss", 2),
        Measure { hide_order: 4, ..TRAIN },
    ];
    let doubted = |row: &Row<'_>| !is_sound(row) || row.first().record.oversubscribed;
    let column = |measure: Measure| {
        measure.column().shows(move |row: &&Row<'_>| {
            if measure.key == SPEED && doubted(row) { Cell::nothing() } else { measure.cell(row) }
        })
    };
    let columns = labels(&quantized, |row: &&Row<'_>| *row).into_iter().chain(measures.map(column)).collect();
    let title = format!("{}: {}", section.title, titled("quantized training", &quantized));
    let sheet = Sheet::from_rows(format!("{}-quantized", section.name), title, columns, &quantized)
        .with_remarks(["The float network and the int8 model are from the same training.".into()]);
    let mut sheet = sheet.without(|_, cells| cells.iter().all(|cell| cell.value == CellValue::Nothing));
    if sheet.columns.iter().any(|column| column.key == SPEED) {
        sheet.remarks.push(
            "Times as fast compares inference on the test set, including the conversion of samples. It is missing if a row \
             is too short, disturbed, unsteady (see above) or oversubscribed. `mpiburn bench int8` measures inference alone."
                .into(),
        );
    }
    Some(sheet)
}

fn times_as_fast(run: &Run) -> f64 {
    match (run.results.float_inference_seconds, run.results.int8_inference_seconds) {
        (Some(float), Some(int8)) if int8 > 0.0 => float / int8,
        _ => f64::NAN,
    }
}

#[cfg(test)]
#[path = "quantized_tests.rs"]
mod tests;
