//! Benchmarks as real jobs.

use std::process::Command;

use serde_json::Value;

use crate::harness::*;

fn bench(ranks: usize, arguments: &[&str]) -> Command {
    let mut command = on_ranks(ranks, binary());
    command.arg("bench").args(arguments);
    command
}

fn succeeds(command: Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_all_reduce_is_timed_on_every_requested_backend() {
    let lab = Lab::new();
    let (csv, plot) = (lab.path("latency.csv"), lab.path("latency.svg"));
    let mut command = bench(2, &["allreduce", "--sizes", "4,1KiB..2KiB", "--backends", "mpi,ordered"]);
    command.args(["--iterations", "20", "--csv"]).arg(&csv).arg("--plot").arg(&plot);
    let table = succeeds(command);
    assert!(table.contains("median µs") && table.contains("1 KiB"), "{table}");
    let lines: Vec<String> = std::fs::read_to_string(&csv).unwrap().lines().map(Into::into).collect();
    assert_eq!(lines[0], "backend,bytes,min_us,median_us,p99_us,busbw_mb_s");
    let keys: Vec<_> =
        lines[1..].iter().map(|l| l.split(',').take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(keys, ["mpi 4", "ordered 4", "mpi 1024", "ordered 1024", "mpi 2048", "ordered 2048"]);
    for line in &lines[1..] {
        let numbers: Vec<f64> = line.split(',').skip(2).map(|n| n.parse().expect("a number")).collect();
        assert!(0.0 < numbers[0] && numbers[0] <= numbers[1] && numbers[1] <= numbers[2], "{line}");
        assert!(numbers[3] > 0.0, "{line}");
    }
    assert!(std::fs::read_to_string(&plot).unwrap().contains("ordered"));
}

#[test]
fn sums_are_correct_for_every_type_and_number_of_ranks() {
    for (ranks, dtype) in [(1, "f32"), (3, "bf16"), (3, "f16")] {
        let options = ["allreduce", "--sizes", "8,1000", "--backends", "mpi,ordered", "--iterations", "5"];
        succeeds(bench(ranks, &[&options[..], &["--dtype", dtype]].concat()));
    }
}

#[test]
fn both_transports_have_every_operation() {
    for ranks in [2, 3] {
        let table = succeeds(bench(ranks, &["collectives", "--iterations", "10"]));
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with('│')).skip(1).collect();
        assert_eq!(rows.len(), 11, "{table}");
        for row in rows {
            let cells: Vec<_> = row.split(['│', '┆']).map(str::trim).collect();
            let measured = |cell: &str| cell.parse::<f64>().is_ok_and(|us| us > 0.0);
            assert!(measured(cells[2]), "{table}");
            assert!(measured(cells[3]), "{table}");
        }
    }
}

/// JSON and console output of `bench step --json`.
fn step(ranks: usize, options: &[&str]) -> (Value, String) {
    let lab = Lab::new();
    let json = lab.path("step.json");
    let mut command = bench(ranks, &["step", "--steps", "7"]);
    command.args(options).arg("--json").arg(&json);
    let printed = succeeds(command);
    let text = std::fs::read(&json).expect("the file is written");
    (serde_json::from_slice(&text).expect("it is JSON"), printed)
}

#[test]
fn bench_step_reports_phases_memory_and_arithmetic() {
    let (figures, printed) = step(1, &[]);
    let number = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("{name} in {figures}"));
    assert_eq!((number("steps"), number("ranks"), number("train_batch_size")), (7.0, 1.0, 32.0));
    // 88,592 multiplications of a sample's forward, 28,224 of them in the first layer.
    assert_eq!(number("flop_per_step"), 32.0 * (6.0 * 88_592.0 - 2.0 * 28_224.0));
    // Burn's autodiff allocates for each operation of a step.
    assert!((10.0..1e5).contains(&number("allocations_per_step")), "{figures}");
    // Freed pages are kept, so few are new: a step uses 240 pages.
    let faults = 7.0 * number("page_faults_per_step");
    assert!((faults - faults.round()).abs() < 1e-9 && faults < 7.0 * 100.0, "{figures}");
    let median = figures["overlap_on"]["median"].as_f64().unwrap();
    let share = number("flop_per_step") / (1e-3 * median) / number("product_flop_per_s");
    assert!((number("share_of_product") / share - 1.0).abs() < 1e-9, "{figures}");
    assert!(figures["overlap_off"].is_null() && figures["gather_ms"].is_null(), "{figures}");
    for part in ["forward", "allocations", "page faults", "matrix product"] {
        assert!(printed.contains(part), "no {part} in {printed}");
    }
    assert!(!printed.contains("overlap"), "{printed}");
}

#[test]
fn bench_step_on_two_ranks_has_both_overlap_modes() {
    let (figures, printed) =
        step(2, &["--model", "mlp", "--batch-size", "8", "--simd", "portable", "--products", "0"]);
    for mode in ["overlap_on", "overlap_off"] {
        for part in ["forward", "backward", "optimizer", "mean", "median"] {
            assert!(figures[mode][part].as_f64().is_some_and(|ms| ms > 0.0), "{mode} {part}: {figures}");
        }
    }
    assert_eq!(figures["flop_per_step"], 8 * (4 * 512 * 32 + 6 * 32 * 20));
    assert_eq!(figures["simd"], "portable");
    // 512 x 32 and 32 x 20 weights, 52 biases, and the batch norm of 32.
    assert_eq!(figures["gradient_bytes"], 4 * (512 * 32 + 32 * 20 + 52 + 64));
    assert!(figures["gather_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{figures}");
    assert!(printed.contains("the bytes of 0.069 MB of gradients alone take "), "{printed}");
    assert!(figures["product_flop_per_s"].is_null() && figures["share_of_product"].is_null(), "{figures}");
    assert!(printed.contains("mlp at batch 8, 2 ranks, backend mpi"), "{printed}");
}

#[test]
fn bench_fused_learns_with_two_layers_and_not_with_ten() {
    let lab = Lab::new();
    let csv = lab.path("fused.csv");
    let mut command = bench(1, &["fused", "--data-root"]);
    command.arg(digits()).arg("--csv").arg(&csv);
    let table = succeeds(command);
    assert!(table.contains("backward ms"), "{table}");
    let mut file = csv::Reader::from_path(&csv).unwrap();
    let header = file.headers().unwrap().clone();
    let expected =
        ["operator", "layers", "channels", "batch", "steps", "forward_ms", "backward_ms", "test_accuracy"];
    assert_eq!(header, expected.to_vec());
    let rows: Vec<csv::StringRecord> = file.records().map(|row| row.unwrap()).collect();
    let number = |row: &csv::StringRecord, column: usize| row[column].parse::<f64>().expect("a number");
    let of = |operator: &str, layers: &str| {
        let found = rows.iter().find(|row| &row[0] == operator && &row[1] == layers);
        found.unwrap_or_else(|| panic!("no {operator} {layers} in {table}")).clone()
    };
    for operator in ["fused", "unfused"] {
        let (two, ten) = (of(operator, "2"), of(operator, "10"));
        assert!(number(&two, 7) > 70.0 && number(&ten, 7) < 30.0, "{table}");
    }
    for row in &rows {
        assert_eq!(number(row, 4), 200.0, "{table}");
        assert!(number(row, 5) > 0.0 && number(row, 6) > 0.0, "{table}");
    }
}

#[test]
fn invalid_benchmark_options_are_rejected_with_one_line() {
    let cases: [(&[&str], &str); 14] = [
        (&["allreduce", "--sizes", "6"], "--sizes 6: 6 bytes are not a whole number"),
        (&["allreduce", "--backends", "tcp"], "unknown backend tcp"),
        (&["allreduce", "--iterations", "0"], "--iterations 0: must be at least 1"),
        (&["allreduce", "--plot", "x.pdf"], "--plot x.pdf: its name must end in .svg or .png"),
        (&["allreduce", "--csv", "/nowhere/x.csv"], "cannot write /nowhere/x.csv"),
        (&["collectives", "--iterations", "0"], "--iterations 0: must be at least 1"),
        (&["step", "--steps", "0"], "--steps 0: must be at least 1"),
        (&["step", "--warm-up", "10000001"], "--warm-up 10000001: each takes its time: at most 10000000"),
        (&["link", "--pause-us", "1e12"], "--pause-us 1000000000000: must be a number from 0 to 10000000"),
        (&["step", "--train-batch-size", "18446744073709551615"], "at most 65536"),
        (&["step", "--json", "/nowhere/x.json"], "cannot write /nowhere/x.json"),
        (&["step", "--simd", "sse9"], "--simd sse9: not a SIMD level that all ranks support: choose "),
        (&["fused"], "--world-size 2: an operator is measured on one rank"),
        (&["fused", "--layers", "2,0"], "--layers 0: must be at least 1"),
    ];
    for (arguments, expected) in cases {
        let output = must_fail(bench(2, arguments));
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{}", text(&output));
    }
}

#[test]
fn ranks_that_measure_different_steps_are_rejected() {
    for (option, one, other) in [("--steps", "5", "0"), ("--warm-up", "1", "2"), ("--lr", "1e-3", "1e-2")] {
        let of = |value| bench(1, &["step", "--model", "mlp", option, value]);
        let output = must_fail(side_by_side(&of(one), &of(other)));
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains(&format!("{option} differs")), "{}", text(&output));
    }
}

#[test]
fn options_without_an_effect_on_a_step_are_named() {
    let mut command = bench(2, &["step", "--model", "mlp", "--steps", "1", "--products", "0"]);
    command.args(["--epochs", "2", "--out", "nowhere"]);
    let output = run(command);
    assert!(output.status.success(), "{}", text(&output));
    let warnings: Vec<String> =
        text(&output).lines().filter(|line| line.contains("without effect")).map(Into::into).collect();
    assert!(warnings.len() == 1 && warnings[0].ends_with("--epochs --out"), "{warnings:?}");
}

#[test]
fn a_single_ranks_errors_are_one_line() {
    for (words, code, expected) in [
        (&["fused", "--lr", "nan"][..], 2, "--lr NaN: must be a finite number above 0"),
        (&["fused", "--lr", "inf"], 2, "--lr inf: must be a finite number above 0"),
        (&["int8", "--checkpoint", "/nonexistent"], 1, "/nonexistent"),
    ] {
        let output = run(Command::new(binary()).arg("bench").args(words));
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        let printed = text(&output);
        assert!(printed.lines().count() == 1 && printed.contains(expected), "{printed}");
    }
}
