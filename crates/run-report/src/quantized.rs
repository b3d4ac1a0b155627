//! Quantized trainings: the int8 model beside the float one, and the training beside one without
//! quantization.

use super::labels::{Labels, is_quantized, titled};
use super::measures::{Beside, Measure, OTHERS, TRAIN};
use super::noise::times_differ;
use super::quality::is_sound;
use super::rows::{Row, Spread};
use super::runs::{Run, Section};
use super::sheet::{Cell, Column, Sheet, Value};
use super::summary::paths;

/// Settings of quantization, which have no effect on a training without.
const QUANTIZATION: [&str; 5] = ["quantized", "weight_scheme", "freeze_after", "fold_after", "calibration"];

const SPEED: &str = "times_as_fast";

/// The measurement `key` of the main table, with another title and rank.
fn shown(key: &str, title: &'static str, rank: u8) -> Measure {
    let found = OTHERS.iter().find(|measure| measure.key == key).copied().unwrap_or(TRAIN);
    Measure { title, rank, ..found }
}

/// The table of quantized rows; none without them.
pub fn quantized(section: &Section, rows: &[Row<'_>]) -> Option<Sheet> {
    let quantized: Vec<&Row<'_>> = rows.iter().filter(|row| is_quantized(row)).collect();
    quantized.first()?;
    let labels = Labels::of(&quantized);
    let measures = [
        shown("test_accuracy", "float acc %", 0),
        shown("int8_test_accuracy", "int8 acc %", 0),
        shown("float_kb", "float KB", 1),
        shown("int8_kb", "int8 KB", 1),
        shown("times_smaller", "times smaller", 0),
        Measure {
            title: "times as fast",
            key: SPEED,
            digits: 2,
            rank: 0,
            definition: "Seconds of inference in the tests after each epoch, of the float network over the int8 model's",
            beside: Beside::Range,
            read: times_as_fast,
        },
        Measure {
            title: "float loss",
            key: "test_loss",
            digits: 4,
            rank: 3,
            definition: "Test loss of the float network",
            beside: Beside::Deviation,
            read: |run| run.results.test_loss,
        },
        Measure {
            title: "int8 loss",
            key: "int8_test_loss",
            digits: 4,
            rank: 2,
            definition: "Test loss of the int8 model",
            beside: Beside::Deviation,
            read: |run| run.results.int8_test_loss.unwrap_or(f64::NAN),
        },
        Measure { rank: 4, ..TRAIN },
    ];
    let mut columns = labels.columns();
    columns.extend(measures.iter().map(Measure::column));
    let line = |row: &&Row<'_>| {
        let doubted = !is_sound(row) || row.first().record.oversubscribed;
        let measured = measures.iter().map(|measure| match measure.key == SPEED && doubted {
            true => Cell::nothing(),
            false => measure.cell(row),
        });
        labels.cells(row).into_iter().chain(measured).collect()
    };
    let sheet = Sheet {
        name: format!("{}-quantized", section.name),
        title: format!("{}: {}", section.title, titled("quantized training", &quantized)),
        columns,
        rows: quantized.iter().map(line).collect(),
        remarks: vec!["Float and int8 are the two networks of one training.".into()],
    };
    let mut sheet = sheet.without(|_, cells| cells.iter().all(|cell| cell.value == Value::Nothing));
    if sheet.columns.iter().any(|column| column.key == SPEED) {
        sheet.remarks.push(
            "Times as fast is of inference on the test set, with the conversion of samples, where the row is neither \
             doubted (see above) nor oversubscribed; `mpiburn bench int8` measures it alone."
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

/// Percent by which a quantized training is longer than one without, from medians, with the extremes over
/// repeats; `None` if a row is too short, disturbed or unsteady, or the times do not differ.
fn percent_longer(quantized: &Row<'_>, float: &Row<'_>) -> Option<Spread> {
    let longer = |quantized: f64, float: f64| 100.0 * (quantized / float - 1.0);
    let [of, than] = [quantized, float].map(|row| row.train_seconds());
    (is_sound(quantized) && is_sound(float) && times_differ(&of, &than)).then(|| Spread {
        median: longer(of.median, than.median),
        min: longer(of.min, than.max),
        max: longer(of.max, than.min),
        count: of.count.min(than.count),
    })
}

/// The table of quantized rows, each beside the row that differs in quantization alone; none if there are
/// none.
pub fn joint(section: &Section, rows: &[Row<'_>]) -> Option<Sheet> {
    let of_float = |quantized: &Row<'_>| {
        let mut others = rows.iter().filter(|row| !is_quantized(row));
        others.find(|row| row.equals_except(quantized, &QUANTIZATION))
    };
    let (quantized, float): (Vec<&Row<'_>>, Vec<&Row<'_>>) =
        rows.iter().filter(|row| is_quantized(row)).filter_map(|row| Some((row, of_float(row)?))).unzip();
    quantized.first()?;
    let labels = Labels::of(&quantized);
    let mut columns = labels.columns();
    columns.extend([
        Column::spread("train s", "train_seconds").means("Seconds of training without quantization"),
        Column::spread("quant. s", "quantized_train_seconds").means("Seconds of training with quantization"),
        Column::number("% longer", "percent_longer")
            .means("The quantized training's median over the other's, less 1"),
        Column::number("from … to", "percent_longer_range")
            .means("The same of the fastest repeat over the other's slowest, and the reverse")
            .ranked(4),
        Column::spread("train acc %", "train_accuracy")
            .means("Training accuracy without quantization, last epoch")
            .ranked(2),
        Column::spread("quant. acc %", "quantized_train_accuracy")
            .means("The same with quantization")
            .ranked(2),
        Column::spread("test acc %", "test_accuracy").means("Test accuracy without quantization"),
        Column::spread("float acc %", "quantized_test_accuracy")
            .means("Test accuracy of the float network with quantization")
            .ranked(3),
        Column::spread("int8 acc %", "int8_test_accuracy").means("Test accuracy of its int8 model"),
    ]);
    let line = |(quantized, float): (&&Row<'_>, &&Row<'_>)| {
        let mut cells = labels.cells(quantized);
        cells.extend([float, quantized].map(|row| TRAIN.cell(row)));
        let longer = percent_longer(quantized, float);
        let both = paths(float).into_iter().chain(paths(quantized)).collect();
        cells.push(longer.map_or_else(Cell::nothing, |percent| Cell::number(percent.median, 1, both)));
        let range = longer.filter(|percent| percent.count > 1);
        let range = range.map(|percent| Cell::text(format!("{:.1} … {:.1}", percent.min, percent.max)));
        cells.push(range.unwrap_or_else(Cell::nothing));
        cells.extend([float, quantized].map(|row| shown("train_accuracy", "", 0).cell(row)));
        cells.extend([float, quantized].map(|row| shown("test_accuracy", "", 0).cell(row)));
        cells.push(shown("int8_test_accuracy", "", 0).cell(quantized));
        cells
    };
    let mut remarks =
        vec!["Each row compares two trainings that differ in quantization alone, medians of train s.".into()];
    if quantized.iter().zip(&float).any(|(quantized, float)| percent_longer(quantized, float).is_none()) {
        remarks.push("There is no % where a row is too short, disturbed or unsteady (see above), or times differ by no more than noise.".into());
    }
    Some(Sheet {
        name: format!("{}-quantization", section.name),
        title: format!("{}: {}", section.title, titled("with and without quantization", &quantized)),
        columns,
        rows: quantized.iter().zip(&float).map(line).collect(),
        remarks,
    })
}

#[cfg(test)]
#[path = "quantized_tests.rs"]
mod tests;
