//! The benchmarks, as real jobs.

use std::process::Command;
use std::time::Duration;

use crate::harness::*;

fn bench(ranks: usize, arguments: &[&str]) -> Command {
    let mut command = mpirun(ranks, binary());
    command.arg("bench").args(arguments);
    command
}

fn succeeds(mut command: Command) -> String {
    let output = command.output().expect("mpirun starts");
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_all_reduce_is_timed_on_every_backend_asked_for() {
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
fn every_type_and_number_of_ranks_has_right_sums() {
    for (ranks, dtype) in [(1, "f32"), (3, "bf16"), (3, "f16")] {
        let options = ["allreduce", "--sizes", "8,1000", "--backends", "mpi,ordered", "--iterations", "5"];
        succeeds(bench(ranks, &[&options[..], &["--dtype", dtype]].concat()));
    }
}

#[test]
fn mpi_has_every_operation() {
    for ranks in [2, 3] {
        let table = succeeds(bench(ranks, &["collectives", "--iterations", "10"]));
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with('│')).skip(1).collect();
        assert_eq!(rows.len(), 11, "{table}");
        for row in rows {
            let cells: Vec<_> = row.split(['│', '┆']).map(str::trim).collect();
            assert!(cells[2].parse::<f64>().is_ok_and(|us| us > 0.0), "{table}");
            assert_eq!(cells[4], "not built", "{table}");
        }
    }
}

#[test]
fn senseless_benchmarks_are_refused_with_one_line() {
    let cases: [(&[&str], &str); 6] = [
        (&["allreduce", "--sizes", "6"], "--sizes 6: 6 bytes are no whole number"),
        (&["allreduce", "--backends", "tcp"], "unknown backend tcp"),
        (&["allreduce", "--iterations", "0"], "--iterations 0: must be at least 1"),
        (&["allreduce", "--plot", "x.pdf"], "--plot x.pdf: its name must end in .svg or .png"),
        (&["allreduce", "--csv", "/nowhere/x.csv"], "cannot write /nowhere/x.csv"),
        (&["collectives", "--iterations", "0"], "--iterations 0: must be at least 1"),
    ];
    for (arguments, expected) in cases {
        let output = fails_within(Duration::from_secs(5), bench(2, arguments));
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{}", text(&output));
    }
}
