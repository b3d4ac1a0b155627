//! Shows published figures beside our measurements. No ratio of a published figure and a measurement is
//! computed.
//!
//! `results/reference/NAME.csv` has a line for each published experiment. Its columns are of four kinds.
//!
//! - Columns that are named like settings of a run (`topology`, `backend`, `model` …) select our runs of the
//!   same experiment. An empty cell matches any value. So does `not stated`, which means that the publication
//!   does not state the setting. `–` matches runs without the option. `quantized` is `no`, `qat` or `ptq`. If
//!   our run uses a technique such as accumulation, mixed precision or quantization, it only matches if the
//!   file has a column for the technique.
//! - Measurements are `train_seconds`, `train_and_test_seconds` (if the published time includes tests),
//!   `train_accuracy`, `test_accuracy` (the int8 model's, if there is one) and `memory_mb`. A cell with
//!   accuracies or memory by rank has slashes between the values. `int8_test_accuracy` is the int8 model's
//!   accuracy by rank, for `by_rank.rs`. Measurements without a column are not shown.
//! - `hardware` names the hardware.
//! - Other columns describe the experiment for readers.

use itertools::Itertools;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use run_record::files::read_regular;

use super::ReportError;
use super::csv_table::all_quotes_closed;
use super::remarks::{shown, tested};
use super::rows::{Row, compare, is_off, varied};
use super::runs::{QUANTIZED, Section};
use super::sheet::{Cell, Column, Field, Sheet};
use super::summary::{Dispersion, Measure, TRAIN, with_tests};

const MEASURES: [Measure; 5] = [
    TRAIN,
    Measure::new("train+test s", "train_and_test_seconds", with_tests).beside(Dispersion::Range),
    Measure::new("train acc %", "train_accuracy", |run| run.results.train_accuracy)
        .beside(Dispersion::Deviation),
    Measure::new("test acc %", "test_accuracy", |run| {
        run.results.int8_test_accuracy.unwrap_or(run.results.test_accuracy)
    })
    .beside(Dispersion::Interval),
    Measure::new("memory MB", MEMORY, |run| run.results.live_mb.unwrap_or(f64::NAN)),
];
const MEMORY: &str = "memory_mb";
/// Column with the int8 model's accuracies by rank, which only the table of `by_rank.rs` shows.
const INT8_BY_RANK: &str = "int8_test_accuracy";

/// Reads the published figures of trainings in `file`.
///
/// # Errors
/// If the file cannot be read, or has no column `topology` or `hardware`.
pub fn read(file: &Path) -> Result<Figures, ReportError> {
    Figures::read(file, &["topology", HARDWARE])
}

/// Returns the columns that describe an experiment: all except measurements and hardware.
pub fn described(reference: &Figures) -> Vec<&String> {
    let is_figure = |name: &str| {
        [HARDWARE, INT8_BY_RANK].contains(&name) || MEASURES.iter().any(|measure| measure.key == name)
    };
    reference.header.iter().filter(|name| !is_figure(name)).collect()
}

/// Makes the table of the published figures, each beside our rows of the same experiment. A row is a
/// configuration: one run or its repeats.
pub fn published(section: &Section, rows: &[Row<'_>], reference: &Figures) -> Sheet {
    let described = described(reference);
    let measures = MEASURES.into_iter().filter(|measure| reference.has_column(measure.key));
    let measures: Vec<Measure> = measures.collect();

    type Compared<'r, 'a> = (&'r FigureLine, Option<&'r Row<'a>>);
    let entries = reference.lines.iter().flat_map(|line| {
        let same = |row: &&Row<'_>| reference.is_of(line, &described, row, rows);
        let own: Vec<Option<&Row<'_>>> = rows.iter().filter(same).map(Some).collect();
        let own = if own.is_empty() { vec![None] } else { own };
        own.into_iter().map(move |row| (line, row))
    });
    let entries: Vec<Compared<'_, '_>> = entries.collect();
    let varied = varied(rows);
    let figure = |name: &str, line: &FigureLine| cell(Some(line), name);
    let of_row = |row: Option<&Row<'_>>, cell: &dyn Fn(&Row<'_>) -> Cell| Cell::maybe(row.map(cell));
    let mut columns: Vec<Field<'_, Compared<'_, '_>>> = Vec::new();
    for name in &described {
        let column = Column::words(&name.replace('_', " "), name);
        columns.push(column.shows(move |(line, _): &Compared<'_, '_>| figure(name, line)));
    }
    columns.push(
        Column::words("our run", "ours")
            .shows(|(_, row): &Compared<'_, '_>| of_row(*row, &|row| Cell::text(row.label(&varied)))),
    );
    for measure in &measures {
        let Measure { title, key, .. } = *measure;
        columns.push(
            Column::number(&format!("{title} published"), &format!("{key}_published"))
                .shows(move |(line, _): &Compared<'_, '_>| figure(key, line)),
        );
        columns.push(
            Column::spread(&format!("{title} ours"), &format!("{key}_ours"))
                .shows(move |(_, row): &Compared<'_, '_>| of_row(*row, &|row| measure.cell(row))),
        );
    }
    let name = format!("{}-published", section.name);
    Sheet::from_rows(name, format!("{}: beside published figures", section.title), columns, &entries)
        .with_remarks(remarks(section, rows, reference))
}

/// Makes the remarks below the table of published figures.
fn remarks(section: &Section, rows: &[Row<'_>], reference: &Figures) -> Vec<String> {
    let mut remarks = vec![format!(
        "Published: {}. Ours: {}. The hardware differs, and the data may differ, so ratios of the two are not meaningful.",
        reference.hardware(&[]),
        hosts(rows)
    )];
    let by_rank =
        |name: &str| reference.lines.iter().any(|line| line.get(name).is_some_and(|text| text.contains('/')));
    match ["train_accuracy", "test_accuracy"].map(by_rank) {
        [true, false] => remarks.push(format!(
            "The published training accuracies of several ranks are by rank. The published test accuracy is the \
             mean over ranks, each measured on its own share of the test set; ours is over {}.",
            tested(rows)
        )),
        [_, true] => remarks.push(format!(
            "The published test accuracies of several ranks are by rank; ours is over {}.",
            tested(rows)
        )),
        [false, false] => {}
    }
    let changes: Vec<String> = section.scaled.iter().filter_map(|change| scaled(rows, change)).collect();
    if !changes.is_empty() {
        remarks.push(format!(
            "Our job is smaller than the published one: {}. Times and accuracies are not comparable.",
            changes.join(", ")
        ));
    }
    if reference.has_column("train_and_test_seconds") {
        remarks.push("The published times include the tests after each epoch, and so do ours here.".into());
    }
    if reference.has_column(MEMORY) {
        remarks.push(
            "The published memory is what the publication's framework had in use, by rank if there are several numbers; \
             ours is the peak of live tensors in a training step, on the rank with the highest peak."
                .into(),
        );
    }
    remarks
}

/// Describes an option that the sweep's scale changes: its value here and at full scale. A limit of samples
/// above the size of the data set counts as this size. `None` if the two values are then equal.
fn scaled(rows: &[Row<'_>], (name, (here, full)): (&String, &(String, String))) -> Option<String> {
    let data = &rows.first()?.first().record.data;
    let available = match name.as_str() {
        "train-samples" => Some(data.train_available),
        "test-samples" => Some(data.test_available),
        _ => None,
    };
    let clipped = |text: &String| match (available, text.parse::<usize>()) {
        (Some(available), typed) => typed.map_or(available, |typed| typed.min(available)).to_string(),
        (None, _) => text.clone(),
    };
    let [here, full] = [here, full].map(clipped);
    (here != full).then(|| format!("{name} {here} instead of {full}"))
}

/// Describes the machines of our runs and their main settings.
fn hosts(rows: &[Row<'_>]) -> String {
    let places = rows.iter().flat_map(|row| &row.runs).flat_map(|run| &run.record.places);
    let hosts: BTreeSet<String> =
        places.map(|place| format!("{} ({} cores)", place.host, place.cores)).collect();
    let settings = ["data_root", "device", "epochs", "train_samples", "train_batch_size"].map(|name| {
        let values = rows.iter().filter_map(|row| row.settings.get(name)).sorted().dedup().join(" or ");
        if values.is_empty() { values } else { format!("{} {values}", name.replace('_', " ")) }
    });
    let settings = settings.into_iter().filter(|words| !words.is_empty());
    hosts.into_iter().chain(settings).join(", ")
}

/// Name of the column that names the hardware.
pub const HARDWARE: &str = "hardware";

/// Cell of a setting that the publication does not state.
const NOT_STATED: &str = "not stated";

/// A line of the file: the cells by column name.
pub type FigureLine = BTreeMap<String, String>;

/// A file of published figures.
#[derive(Debug)]
pub struct Figures {
    /// Names of the columns.
    pub header: Vec<String>,
    /// The lines.
    pub lines: Vec<FigureLine>,
}

impl Figures {
    /// Reads the figures in `file`.
    ///
    /// # Errors
    /// If the file cannot be read, lacks a column of `needed`, or has an open quote, which would hide the
    /// lines below it.
    pub fn read(file: &Path, needed: &[&str]) -> Result<Self, ReportError> {
        let text = read_regular(file).map_err(|error| ReportError::read(file, error))?;
        Self::from_csv(&text, needed).map_err(|problem| ReportError::read(file, problem))
    }

    /// Parses the figures from the bytes of a file.
    pub(crate) fn from_csv(text: &[u8], needed: &[&str]) -> Result<Self, String> {
        all_quotes_closed(text)?;
        let mut reader = csv::Reader::from_reader(text);
        let header = reader.headers().map_err(|error| error.to_string())?;
        let header: Vec<String> = header.iter().map(Into::into).collect();
        if let Some(missing) = needed.iter().find(|name| !header.iter().any(|column| column == *name)) {
            return Err(format!("the column {missing} is missing"));
        }
        let lines = reader.deserialize().collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(Self { header, lines })
    }

    /// Reads the first of these files that exists: `reference/NAME.csv` beside `folder`, in `folder`, or in
    /// `results/`. `None` if there is no such file. If the file cannot be read, the result is also `None`,
    /// and `notes` gets a line.
    pub fn beside(folder: &Path, name: &str, notes: &mut Vec<String>) -> Option<Self> {
        let folders = [folder.join("../reference"), folder.join("reference"), "results/reference".into()];
        let mut files = folders.into_iter().map(|folder| folder.join(format!("{name}.csv")));
        let read = Self::read(&files.find(|file| file.is_file())?, &[HARDWARE]);
        read.map_err(|error| notes.push(format!("{error}; published figures are omitted"))).ok()
    }

    /// Whether the file has this column.
    fn has_column(&self, name: &str) -> bool {
        self.header.iter().any(|column| column == name)
    }

    /// Returns the first line with the wanted values. Each pair in `wanted` is a column, and the value that
    /// the line must have there.
    pub fn find(&self, wanted: &[(&str, &str)]) -> Option<&FigureLine> {
        self.lines.iter().find(|line| has(line, wanted))
    }

    /// Makes the remark below a table that names the published hardware and ours. `wanted` selects lines as
    /// in [`find`](Self::find), and the remark names the hardware of these lines.
    pub fn remark(&self, wanted: &[(&str, &str)], ours: &str) -> String {
        format!(
            "Published: {}. Ours: {ours}. The hardware differs, so ratios of the two are not meaningful.",
            self.hardware(wanted)
        )
    }

    /// Returns the hardware that is named in the lines with the wanted values. `wanted` selects lines as in
    /// [`find`](Self::find).
    pub fn hardware(&self, wanted: &[(&str, &str)]) -> String {
        let lines = self.lines.iter().filter(|line| has(line, wanted));
        lines.filter_map(|line| line.get(HARDWARE)).sorted().dedup().join("; ")
    }

    /// Whether `line` is the same experiment as `row`: all columns in `described` that are settings of a run
    /// must match. `rows` are all rows of the table. A column is a setting if at least one row has it. An
    /// empty cell and `not stated` match any value.
    pub fn is_of(&self, line: &FigureLine, described: &[&String], row: &Row<'_>, rows: &[Row<'_>]) -> bool {
        // If the publication does not mention a technique, it did not use the technique.
        let mut techniques = row.first().record.schema.0.iter().filter(|(_, option)| option.technique);
        let uses_no_other = techniques.all(|(field, option)| {
            let name = if field == "quantize" { QUANTIZED } else { field };
            self.has_column(name) || is_off(row.setting(name)) || row.setting(name) == shown(&option.default)
        });
        uses_no_other
            && described.iter().all(|name| {
                let is_known = rows.iter().any(|row| row.settings.contains_key(*name));
                match (line.get(*name).map_or("", String::as_str), is_known) {
                    ("" | NOT_STATED, _) => true,
                    // The column is a feature that our program does not have. Our runs match only experiments
                    // that did not use the feature.
                    (value, false) => value != "true",
                    (value, true) => compare(row.setting(name), value).is_eq(),
                }
            })
    }
}

/// Whether a line has the wanted values. Each pair in `wanted` is a column, and the value that the line must
/// have there.
fn has(line: &FigureLine, wanted: &[(&str, &str)]) -> bool {
    wanted.iter().all(|(name, value)| line.get(*name).is_some_and(|found| found == value))
}

/// Returns the cell of the published figure in column `name`.
pub fn cell(line: Option<&FigureLine>, name: &str) -> Cell {
    word(line.and_then(|line| line.get(name)).map_or("", String::as_str))
}

/// Returns a cell with a published figure; a cell without a value if `text` is empty.
pub fn word(text: &str) -> Cell {
    if text.is_empty() { Cell::nothing() } else { Cell::text(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::runs::Run;
    use crate::testing::run;

    fn beside(text: &str, runs: Vec<Run>) -> Result<Sheet, ReportError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("figures.csv");
        std::fs::write(&file, text).unwrap();
        let section = Section { name: "t".into(), title: "T".into(), runs, ..Section::default() };
        Ok(published(&section, &group(&section.runs), &read(&file)?))
    }

    #[test]
    fn our_runs_are_shown_beside_the_same_experiment_only() {
        let text = "topology,backend,quantized,train_seconds,hardware\n\
                    2x1,gloo,no,99,a cluster\n2x1,,no,98,a cluster\n2x1,gloo,qat,135,a cluster\n";
        let runs = vec![run((2, 1), &[], 4.0), run((2, 1), &["--backend", "gloo"], 5.0)];
        let sheet = beside(text, runs).unwrap();
        let seconds: Vec<String> =
            sheet.rows.iter().map(|row| format!("{} {}", row[4].shown(), row[5].shown())).collect();
        assert_eq!(seconds, ["99 5.00", "98 5.00", "98 4.00", "135 –"]);
        assert_eq!(sheet.remarks.len(), 1, "there is no accuracy by rank");
        assert!(sheet.remarks[0].contains("a cluster") && sheet.remarks[0].contains("node0 (4 cores)"));
        assert!(sheet.rows[0][4].runs.is_empty(), "published numbers have no run");
    }

    #[test]
    fn a_row_that_does_not_state_a_setting_says_so() {
        let text =
            "topology,backend,train_seconds,hardware\n2x1,not stated,99,a cluster\n2x1,nccl,98,a GPU\n";
        let sheet = beside(text, vec![run((2, 1), &[], 4.0)]).unwrap();
        let shown: Vec<String> =
            sheet.rows.iter().map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(shown, ["2x1 not stated mpi 99 4.00", "2x1 nccl – 98 –"]);
        let others = ["--precision=fp16", "--accumulate=2", "--quantize=ptq"];
        for option in others {
            let sheet = beside(text, vec![run((2, 1), &[option], 4.0)]).unwrap();
            assert_eq!(sheet.rows[0].last().unwrap().shown(), "–", "{option} is another set-up");
        }
    }

    #[test]
    fn our_set_up_is_that_of_all_rows_and_counts_are_clipped() {
        let text = "topology,train_seconds,hardware\n1x1,99,a cluster\n";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("figures.csv");
        std::fs::write(&file, text).unwrap();
        let runs = vec![run((1, 1), &["--epochs", "2"], 4.0), run((1, 1), &["--epochs", "5"], 4.0)];
        for (typed, expected) in
            [("99999", None), ("6400", Some("train-samples 6400 instead of 60000. Times"))]
        {
            let scaled = [("train-samples".to_owned(), (typed.to_owned(), "–".to_owned()))].into();
            let section = Section { runs: runs.clone(), scaled, ..Section::default() };
            let sheet = published(&section, &group(&section.runs), &read(&file).unwrap());
            assert!(sheet.remarks[0].contains("epochs 2 or 5"), "{:?}", sheet.remarks);
            assert_eq!(sheet.remarks.get(1).is_some(), expected.is_some(), "{:?}", sheet.remarks);
            assert!(expected.is_none_or(|words| sheet.remarks[1].contains(words)), "{:?}", sheet.remarks);
        }
    }

    #[test]
    fn accuracies_by_rank_are_explained_where_they_are() {
        let remarks = |accuracies: &str| {
            let text = format!("topology,train_accuracy,test_accuracy,hardware\n1x2,{accuracies},a GPU\n");
            beside(&text, vec![run((1, 2), &[], 4.0)]).unwrap().remarks.join(" ")
        };
        assert!(remarks("94.5/95,93.46").contains("mean over ranks"));
        let both = remarks("94.5/95,93.4/93.5");
        assert!(both.contains("test accuracies") && !both.contains("mean over"), "{both}");
    }

    #[test]
    fn figures_of_quantized_trainings_are_beside_quantization_aware_ones() {
        let text = "topology,quantized,train_seconds,test_accuracy,hardware\n\
                    2x1,no,99,93.49,a cluster\n2x1,qat,135,93.59,a cluster\n";
        let mut runs: Vec<Run> = [(&[][..], 4.0), (&["--quantized"], 5.0), (&["--quantize", "ptq"], 6.0)]
            .map(|(options, seconds)| run((2, 1), options, seconds))
            .into();
        runs[1].results.int8_test_accuracy = Some(97.25);
        let shown = |row: &Vec<Cell>| row[3..].iter().map(Cell::shown).collect::<Vec<_>>().join(" ");
        let rows: Vec<String> = beside(text, runs).unwrap().rows.iter().map(shown).collect();
        assert_eq!(rows, ["99 4.00 93.49 97.50 [97.18–97.79]", "135 5.00 93.59 97.25 [96.91–97.55]"]);
    }

    #[test]
    fn a_file_without_hardware_or_with_an_open_quote_is_rejected() {
        let error = beside("topology,train_seconds\n1x1,9\n", vec![run((1, 1), &[], 4.0)]).unwrap_err();
        assert!(error.to_string().contains("figures.csv: the column hardware "), "{error}");
        let open = "topology,train_seconds,hardware\n1x1,9,\"a GPU\n1x2,5,a GPU\n";
        let error = beside(open, vec![run((1, 1), &[], 4.0)]).unwrap_err();
        assert!(error.to_string().ends_with("figures.csv: line 2: a quote is not closed"), "{error}");
    }

    #[test]
    fn published_memory_is_shown_and_numbers_match_in_any_notation() {
        let text = "topology,lr,interface,memory_mb,hardware\n1x1,0.010,–,312,a GPU\n1x1,0.02,,313,a GPU\n";
        let mut runs = vec![run((1, 1), &["--lr", "1e-2"], 4.0)];
        let shown = |runs: &[Run]| {
            let sheet = beside(text, runs.to_vec()).unwrap();
            assert!(sheet.remarks[1].contains("live tensors"), "{:?}", sheet.remarks);
            sheet
                .rows
                .iter()
                .map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>()[4..].join(" "))
                .collect::<Vec<_>>()
        };
        assert_eq!(shown(&runs), ["312 5.00", "313 –"]);
        runs[0].results.live_mb = None;
        assert_eq!(shown(&runs), ["312 –", "313 –"], "libtorch's memory is not counted");
    }
}
