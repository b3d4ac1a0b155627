//! Checks the tables of quantized trainings.

use super::*;
use crate::pairs::joint;
use crate::rows::group;
use crate::testing::run;
use run_record::INT8_FILE;
use run_record::checkpoint::MODEL;

fn section() -> Section {
    Section { name: "t".into(), title: "T".into(), ..Section::default() }
}

fn quantized_run(topology: (usize, usize), options: &[&str], seconds: f64) -> Run {
    let mut run = run(topology, &[&["--quantize", "qat"], options].concat(), seconds);
    let results = &mut run.results;
    (results.int8_test_accuracy, results.int8_test_loss) = (Some(97.25), Some(0.125));
    (results.float_inference_seconds, results.int8_inference_seconds) = (Some(3.0), Some(1.0));
    run
}

/// Returns the cells of a row by the keys of their columns; empty texts for columns that do not exist.
fn cells<const N: usize>(sheet: &Sheet, row: usize, keys: [&str; N]) -> [String; N] {
    let column = |key: &str| sheet.columns.iter().position(|column| column.key == key);
    keys.map(|key| column(key).map_or_else(String::new, |at| sheet.rows[row][at].shown()))
}

#[test]
fn accuracies_sizes_and_speed_come_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut runs = [run((1, 2), &[], 4.0), quantized_run((1, 2), &[], 5.0)];
    runs[1].path = folder.path().into();
    let checkpoint = folder.path().join("checkpoints/step-00000100");
    std::fs::create_dir_all(&checkpoint).unwrap();
    for (name, bytes) in [(MODEL, 3 << 10), (INT8_FILE, 1 << 10)] {
        std::fs::write(checkpoint.join(name), vec![0; bytes]).unwrap();
    }
    let sheet = quantized(&section(), &group(&runs)).unwrap();
    assert_eq!(sheet.rows.len(), 1, "the float run is not in the table");
    let numbers: Vec<&str> =
        sheet.columns.iter().filter(|column| column.numeric).map(|column| column.title.as_str()).collect();
    let first = ["float acc %", "int8 acc %", "float KB", "int8 KB", "times smaller", "times as fast"];
    assert_eq!(numbers[..6], first);
    assert_eq!(cells(&sheet, 0, ["float_kb", "int8_kb", "times_smaller"]), ["3.0", "1.0", "3.00"]);
    let found = cells(
        &sheet,
        0,
        ["test_accuracy", "int8_test_accuracy", "times_as_fast", "test_loss", "int8_test_loss"],
    );
    assert_eq!(found, ["97.50 [97.18–97.79]", "97.25 [96.91–97.55]", "3.00", "0.1000", "0.1250"]);
    assert!(quantized(&section(), &group(&runs[..1])).is_none());
    runs[1].results.others_cpu_percent = Some(50.0);
    let sheet = quantized(&section(), &group(&runs)).unwrap();
    assert_eq!(cells(&sheet, 0, ["int8_test_accuracy", "times_as_fast"]), ["97.25 [96.91–97.55]", ""]);
}

#[test]
fn older_runs_have_neither_loss_nor_speed() {
    let mut older = quantized_run((1, 2), &[], 5.0);
    older.results.int8_test_loss = None;
    (older.results.float_inference_seconds, older.results.int8_inference_seconds) = (None, None);
    let sheet = quantized(&section(), &group(&[older])).unwrap();
    let found = cells(&sheet, 0, ["int8_test_accuracy", "times_as_fast", "int8_test_loss"]);
    assert_eq!(found, ["97.25 [96.91–97.55]", "", ""]);
}

#[test]
fn trainings_that_differ_in_quantization_alone_are_pairs() {
    let runs = [
        run((1, 2), &[], 4.0),
        run((1, 2), &["--backend", "gloo"], 4.0),
        run((1, 2), &["--epochs", "9"], 4.0),
        quantized_run((1, 2), &[], 5.0),
        quantized_run((1, 2), &["--weight-scheme", "tensor", "--freeze-after", "2"], 6.0),
        quantized_run((2, 1), &[], 5.0),
        quantized_run((1, 2), &["--lr", "1"], 5.0),
    ];
    let sheet = joint(&section(), &group(&runs)).unwrap();
    let keys = ["train_seconds", "quantized_train_seconds", "percent_longer", "percent_longer_range"];
    let found: Vec<_> = (0..sheet.rows.len()).map(|row| cells(&sheet, row, keys)).collect();
    assert_eq!(found, [["4.00", "6.00", "50.0", "–"], ["4.00", "5.00", "25.0", "–"]]);
    let accuracies = ["test_accuracy", "quantized_test_accuracy", "int8_test_accuracy", "train_accuracy"];
    let expected = ["97.50 [97.18–97.79]", "97.50 [97.18–97.79]", "97.25 [96.91–97.55]", "95.00"];
    assert_eq!(cells(&sheet, 0, accuracies), expected);
    assert!(
        joint(&section(), &group(&runs[..3])).is_none() && joint(&section(), &group(&runs[5..])).is_none()
    );
}

#[test]
fn repeats_have_a_range_and_short_rows_no_percent() {
    let repeated = [3.9, 4.0, 4.1].map(|seconds| run((1, 2), &[], seconds)).into_iter();
    let runs: Vec<Run> = repeated.chain([5.9, 6.0, 6.1].map(|s| quantized_run((1, 2), &[], s))).collect();
    let sheet = joint(&section(), &group(&runs)).unwrap();
    assert_eq!(cells(&sheet, 0, ["percent_longer", "percent_longer_range"]), ["50.0", "43.9 … 56.4"]);
    assert_eq!(sheet.remarks.len(), 1);
    let sheet = joint(&section(), &group(&[run((1, 2), &[], 1.0), quantized_run((1, 2), &[], 5.0)])).unwrap();
    assert_eq!(cells(&sheet, 0, ["percent_longer"]), ["–"]);
    assert!(sheet.remarks[1].contains("too short, disturbed or unsteady"), "{:?}", sheet.remarks);
}
