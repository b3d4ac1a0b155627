//! Quantized trainings: the int8 model beside the float one, and the training beside one without
//! quantization.

use super::footnotes::is_sound;
use super::labels::{Labels, is_quantized, titled};
use super::measures::{Beside, Measure, OTHERS, TRAIN};
use super::noise::times_differ;
use super::rows::{Row, Spread};
use super::runs::{Run, Section};
use super::sheet::{Cell, Column, Sheet, Value};
use super::summary::paths;

/// Settings of quantization, which have no effect on a training without.
const QUANTIZATION: [&str; 5] = ["quantized", "weight_scheme", "freeze_after", "fold_after", "calibration"];

const SPEED: &str = "times_as_fast";

/// The measurement `key` of the main table, with another title and rank.
fn shown_measure(key: &str, title: &'static str, rank: u8) -> Measure {
    let found = OTHERS.iter().find(|measure| measure.key == key).copied().unwrap_or(TRAIN);
    Measure { title, rank, ..found }
}

/// The table of quantized rows; none without them.
pub fn quantized(section: &Section, rows: &[Row<'_>]) -> Option<Sheet> {
    let quantized: Vec<&Row<'_>> = rows.iter().filter(|row| is_quantized(row)).collect();
    quantized.first()?;
    let labels = Labels::of(&quantized);
    let measures = [
        shown_measure("test_accuracy", "float acc %", 0),
        shown_measure("int8_test_accuracy", "int8 acc %", 0),
        shown_measure("float_kb", "float KB", 1),
        shown_measure("int8_kb", "int8 KB", 1),
        shown_measure("times_smaller", "times smaller", 0),
        Measure::of("times as fast", SPEED, times_as_fast).beside(Beside::Range).means(
            "Seconds of inference in the tests after each epoch, of the float network over the int8 model's",
        ),
        Measure::of("float loss", "test_loss", |run| run.results.test_loss)
            .digits(4)
            .ranked(3)
            .beside(Beside::Deviation)
            .means("Test loss of the float network"),
        Measure::of("int8 loss", "int8_test_loss", |run| run.results.int8_test_loss.unwrap_or(f64::NAN))
            .digits(4)
            .ranked(2)
            .beside(Beside::Deviation)
            .means("Test loss of the int8 model"),
        Measure { rank: 4, ..TRAIN },
    ];
    let doubted = |row: &Row<'_>| !is_sound(row) || row.first().record.oversubscribed;
    let column = |measure: Measure| {
        measure.column().of(move |row: &&Row<'_>| match measure.key == SPEED && doubted(row) {
            true => Cell::nothing(),
            false => measure.cell(row),
        })
    };
    let columns = labels.columns(|row: &&Row<'_>| *row).into_iter().chain(measures.map(column)).collect();
    let title = format!("{}: {}", section.title, titled("quantized training", &quantized));
    let sheet = Sheet::of(format!("{}-quantized", section.name), title, columns, &quantized)
        .with_remarks(["Float and int8 are the two networks of one training.".into()]);
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

/// A quantized training, and the one that differs in quantization alone.
struct Joint<'r, 'a> {
    quantized: &'r Row<'a>,
    float: &'r Row<'a>,
}

impl Joint<'_, '_> {
    /// Percent by which the quantized training is longer, from medians, with the extremes over repeats; `None` if a
    /// row is too short, disturbed or unsteady, or the times do not differ.
    fn percent_longer(&self) -> Option<Spread> {
        let longer = |quantized: f64, float: f64| 100.0 * (quantized / float - 1.0);
        let [of, than] = [self.quantized, self.float].map(Row::train_seconds);
        (is_sound(self.quantized) && is_sound(self.float) && times_differ(&of, &than)).then(|| Spread {
            median: longer(of.median, than.median),
            min: longer(of.min, than.max),
            max: longer(of.max, than.min),
            count: of.count.min(than.count),
        })
    }
}

/// The table of quantized rows, each beside the row that differs in quantization alone; none if there are
/// none.
pub fn joint(section: &Section, rows: &[Row<'_>]) -> Option<Sheet> {
    let of_float = |quantized: &Row<'_>| {
        let mut others = rows.iter().filter(|row| !is_quantized(row));
        others.find(|row| row.equals_except(quantized, &QUANTIZATION))
    };
    let quantized = || rows.iter().filter(|row| is_quantized(row));
    let pairs: Vec<Joint<'_, '_>> =
        quantized().filter_map(|row| Some(Joint { quantized: row, float: of_float(row)? })).collect();
    let shown: Vec<&Row<'_>> = pairs.iter().map(|pair| pair.quantized).collect();
    shown.first()?;
    let of_both = |key: &'static str| {
        let measure = shown_measure(key, "", 0);
        [
            Box::new(move |pair: &Joint<'_, '_>| measure.cell(pair.float))
                as Box<dyn Fn(&Joint<'_, '_>) -> Cell>,
            Box::new(move |pair: &Joint<'_, '_>| measure.cell(pair.quantized)),
        ]
    };
    let [train, quantized_train] = of_both("train_seconds");
    let [train_accuracy, quantized_train_accuracy] = of_both("train_accuracy");
    let [test, quantized_test] = of_both("test_accuracy");
    let [_, int8] = of_both("int8_test_accuracy");
    let mut columns = Labels::of(&shown).columns(|pair: &Joint<'_, '_>| pair.quantized);
    columns.extend([
        Column::spread("train s", "train_seconds")
            .means("Seconds of training without quantization")
            .of(train),
        Column::spread("quant. s", "quantized_train_seconds")
            .means("Seconds of training with quantization")
            .of(quantized_train),
        Column::number("% longer", "percent_longer")
            .means("The quantized training's median over the other's, less 1")
            .of(|pair: &Joint<'_, '_>| {
                let both = || [paths(pair.float), paths(pair.quantized)].concat();
                Cell::maybe(pair.percent_longer().map(|percent| Cell::number(percent.median, 1, both())))
            }),
        Column::number("from … to", "percent_longer_range")
            .means("The same of the fastest repeat over the other's slowest, and the reverse")
            .ranked(4)
            .of(|pair: &Joint<'_, '_>| {
                let range = pair.percent_longer().filter(|percent| percent.count > 1);
                let text = |percent: Spread| format!("{:.1} … {:.1}", percent.min, percent.max);
                Cell::maybe(range.map(|percent| Cell::text(text(percent))))
            }),
        Column::spread("train acc %", "train_accuracy")
            .means("Training accuracy without quantization, last epoch")
            .ranked(2)
            .of(train_accuracy),
        Column::spread("quant. acc %", "quantized_train_accuracy")
            .means("The same with quantization")
            .ranked(2)
            .of(quantized_train_accuracy),
        Column::spread("test acc %", "test_accuracy").means("Test accuracy without quantization").of(test),
        Column::spread("float acc %", "quantized_test_accuracy")
            .means("Test accuracy of the float network with quantization")
            .ranked(3)
            .of(quantized_test),
        Column::spread("int8 acc %", "int8_test_accuracy").means("Test accuracy of its int8 model").of(int8),
    ]);
    let remark = "Each row compares two trainings that differ in quantization alone, medians of train s.";
    let missing = pairs.iter().any(|pair| pair.percent_longer().is_none());
    let missing = missing.then_some("There is no % where a row is too short, disturbed or unsteady (see above), or times differ by no more than noise.");
    let title = format!("{}: {}", section.title, titled("with and without quantization", &shown));
    let sheet = Sheet::of(format!("{}-quantization", section.name), title, columns, &pairs);
    Some(sheet.with_remarks([remark].into_iter().chain(missing).map(Into::into)))
}

#[cfg(test)]
#[path = "quantized_tests.rs"]
mod tests;
