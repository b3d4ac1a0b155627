//! `mpiburn bench int8`.

use crate::harness::*;
use crate::int8::{SHORT, command, correct, refused, succeeds};

#[test]
fn an_int8_model_is_measured_beside_its_float_network() {
    let lab = Lab::new();
    lab.train(1, "run", &SHORT);
    let lines = succeeds(command(1, &["quantize"], &lab.path("run")));
    // Of the run's own test samples, as `quantize` and `eval` test them.
    let tested: Vec<f64> = lines.lines().take(2).map(|line| 100.0 * correct(line) / 500.0).collect();
    let (csv, json) = (lab.path("int8.csv"), lab.path("int8.json"));
    let mut bench = command(1, &["bench", "int8", "--iterations", "3", "--checkpoint"], &lab.path("run"));
    bench.arg("--csv").arg(&csv).arg("--json").arg(&json);
    assert!(succeeds(bench).contains("bytes allocated"));
    let lines: Vec<String> = std::fs::read_to_string(&csv).unwrap().lines().map(Into::into).collect();
    assert_eq!(lines[0], "model,batch,median_ms,bytes_allocated,checkpoint_bytes,test_accuracy");
    let rows: Vec<Vec<&str>> = lines[1..].iter().map(|line| line.split(',').collect()).collect();
    let keys: Vec<String> = rows.iter().map(|row| row[..2].join(" ")).collect();
    let models = ["float-fused", "float-burn", "int8"];
    let expected: Vec<String> =
        ["1", "32", "128"].iter().flat_map(|batch| models.map(|model| format!("{model} {batch}"))).collect();
    assert_eq!(keys, expected);
    let number = |row: &[&str], i: usize| row[i].parse::<f64>().expect("a number");
    for row in &rows {
        assert!(number(row, 2) > 0.0, "{row:?}");
        assert_eq!(number(row, 5), tested[usize::from(row[0] == "int8")], "{row:?} {lines:?}");
        assert_eq!(number(row, 3) == 0.0, row[0] == "int8", "{row:?}");
    }
    assert!(number(&rows[0], 4) >= 2.8 * number(&rows[2], 4), "{rows:?}");
    let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!((&figures["method"], figures["rows"].as_array().unwrap().len()), (&"ptq".into(), 9));
    refused(command(2, &["bench", "int8", "--checkpoint"], &lab.path("run")), 2, &["without mpirun"]);
    refused(command(1, &["bench", "int8", "--iterations", "0", "--csv"], &csv), 2, &["--iterations 0"]);
    let (plain, around) = (lab.path("both"), lab.path("./both"));
    let mut same = command(1, &["bench", "int8", "--csv"], &plain);
    same.arg("--json").arg(around);
    refused(same, 2, &["--json", "is the file of --csv"]);
    assert!(!plain.exists());
}
