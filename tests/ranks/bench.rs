//! The subcommands of `mpiburn bench`: their files and options, and errors.

use crate::harness::*;

fn bench(ranks: usize, arguments: &[&str]) -> Job {
    job(ranks).arg("bench").args(arguments).clone()
}

#[test]
fn the_all_reduce_is_timed_on_every_requested_backend() {
    let lab = Lab::new();
    let (csv, plot) = (lab.path("latency.csv"), lab.path("latency.svg"));
    let mut command = bench(2, &["allreduce", "--sizes", "4,1KiB..2KiB", "--backends", "mpi,ordered"]);
    let table = succeeds(command.args(["--iterations", "20", "--csv"]).arg(&csv).arg("--plot").arg(&plot));
    assert!(table.contains("ordered µs") && table.contains("1 KiB"), "{table}");
    let rows = std::fs::read_to_string(&csv).unwrap();
    let lines: Vec<&str> = rows.lines().collect();
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
    // `bench allreduce` checks its sums, and fails if one is wrong.
    for (ranks, dtype) in [(1, "f32"), (3, "bf16"), (3, "f16")] {
        succeeds(bench(ranks, &["allreduce", "--sizes", "8,1000", "--iterations", "5", "--dtype", dtype]));
    }
}

#[test]
fn bench_step_on_two_ranks_has_both_overlap_modes() {
    let lab = Lab::new();
    let json = lab.path("step.json");
    let mut command = bench(2, &["step", "--steps", "7", "--model", "mlp", "--batch-size", "8"]);
    let printed = succeeds(command.args(["--simd", "portable", "--products", "0", "--json"]).arg(&json));
    let figures = read_json(&json);
    for mode in ["overlap_on", "overlap_off"] {
        for part in ["forward", "backward", "optimizer", "mean", "median"] {
            assert!(figures[mode][part].as_f64().is_some_and(|ms| ms > 0.0), "{mode} {part}: {figures}");
        }
    }
    assert_eq!(figures["flop_per_step"], 8 * (4 * 512 * 32 + 6 * 32 * 20));
    assert_eq!(figures["simd"], "portable");
    // The parameters: 512 x 32 and 32 x 20 weights, 52 biases, and the batch norm of 32 values.
    assert_eq!(figures["gradient_bytes"], 4 * (512 * 32 + 32 * 20 + 52 + 64));
    assert!(figures["gather_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{figures}");
    assert!(printed.contains(" 0.069 MB of gradients "), "{printed}");
    assert!(figures["product_flop_per_s"].is_null() && figures["share_of_product"].is_null(), "{figures}");
    assert!(printed.contains("mlp at batch 8, 2 ranks, backend mpi"), "{printed}");
}

#[test]
fn bench_fused_learns_with_two_layers_and_not_with_ten() {
    let lab = Lab::new();
    let words = ["--data-root ", "512 features", "20 classes", "1x28x28", "10 classes"];
    fails_with(bench(1, &["fused", "--data-root"]).arg(lab.data("features", 400, 40)), &words);
    let csv = lab.path("fused.csv");
    let table = succeeds(bench(1, &["fused", "--data-root"]).arg(digits()).arg("--csv").arg(&csv));
    assert!(table.contains("backward ms"), "{table}");
    let mut file = csv::Reader::from_path(&csv).unwrap();
    let header = file.headers().unwrap().clone();
    let expected =
        ["operator", "layers", "channels", "batch", "steps", "forward_ms", "backward_ms", "test_accuracy"];
    assert_eq!(header, expected.to_vec());
    let rows: Vec<csv::StringRecord> = file.records().map(|row| row.unwrap()).collect();
    let number = |row: &csv::StringRecord, column: usize| row[column].parse::<f64>().expect("a number");
    for operator in ["fused", "unfused"] {
        let [two, ten] = ["2", "10"].map(|layers| {
            let found = rows.iter().find(|row| &row[0] == operator && &row[1] == layers);
            number(found.unwrap_or_else(|| panic!("no {operator} {layers} in {table}")), 7)
        });
        assert!(two > 70.0 && ten < 30.0, "{table}");
    }
    for row in &rows {
        assert_eq!(number(row, 4), 200.0, "{table}");
        assert!(number(row, 5) > 0.0 && number(row, 6) > 0.0, "{table}");
    }
}

#[test]
fn invalid_benchmark_options_are_rejected_with_one_line() {
    let of_two: [(&[&str], i32, &str); 14] = [
        (&["allreduce", "--sizes", "6"], 2, "--sizes 6: 6 bytes are not a whole number"),
        (&["allreduce", "--backends", "tcp"], 2, "--backends tcp: choose from"),
        (&["allreduce", "--iterations", "0"], 2, "--iterations 0: must be a whole number from 1"),
        (&["allreduce", "--plot", "x.pdf"], 2, "--plot x.pdf: must end in .svg or .png"),
        (&["allreduce", "--csv", "/nowhere/x.csv"], 1, "cannot write /nowhere/x.csv"),
        (&["collectives", "--iterations", "0"], 2, "--iterations 0: must be a whole number from 1"),
        (&["step", "--steps", "0"], 2, "--steps 0: must be a whole number from 1"),
        (&["step", "--warm-up", "10000001"], 2, "--warm-up 10000001: must be at most 10000000"),
        (&["link", "--pause-us", "1e12"], 2, "--pause-us 1e12: must be a number from 0 to 10000000"),
        (&["step", "--train-batch-size", "18446744073709551615"], 2, "at most 65536"),
        (&["step", "--json", "/nowhere/x.json"], 1, "cannot write /nowhere/x.json"),
        (&["step", "--simd", "sse9"], 2, "--simd sse9: choose "),
        (&["fused"], 2, "this job has 2: "),
        (&["fused", "--layers", "2,0"], 2, "--layers 0: must be a whole number from 1"),
    ];
    let of_one: [(&[&str], i32, &str); 4] = [
        (&["fused", "--lr", "nan"], 2, "--lr nan: must be a finite number above 0"),
        (&["fused", "--lr", "inf"], 2, "--lr inf: must be a finite number above 0"),
        (&["int8", "--checkpoint", "/nonexistent"], 1, "/nonexistent"),
        (&["link"], 2, "2 ranks"),
    ];
    for (ranks, (arguments, code, expected)) in
        of_two.map(|case| (2, case)).into_iter().chain(of_one.map(|case| (1, case)))
    {
        let output = must_fail(bench(ranks, arguments));
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(code), "{printed}");
        assert!(printed.lines().count() == 1 && printed.contains(expected), "{printed}");
    }
}

#[test]
fn ranks_that_measure_different_steps_are_rejected() {
    for (option, one, other) in [("--steps", "5", "6"), ("--warm-up", "1", "2"), ("--lr", "1e-3", "1e-2")] {
        let of = |value| bench(1, &["step", "--model", "mlp", option, value]);
        refused(side_by_side(&[&of(one), &of(other)]), 1, &[&format!("{option} differs")]);
    }
}

#[test]
fn options_without_an_effect_on_a_step_are_named() {
    for (options, end) in [
        (&["--epochs", "2", "--keep", "3"][..], "these options have no effect: --epochs, --keep"),
        (&["--keep", "3"], "this option has no effect: --keep"),
    ] {
        let mut command = bench(2, &["step", "--model", "mlp", "--steps", "1", "--products", "0"]);
        let output = run(command.args(options));
        assert!(output.status.success(), "{}", text(&output));
        let printed = text(&output);
        let warnings: Vec<&str> = printed.lines().filter(|line| line.contains("no effect: ")).collect();
        assert!(warnings.len() == 1 && warnings[0].ends_with(end), "{warnings:?}");
    }
}
