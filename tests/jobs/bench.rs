//! `mpiburn bench` in real jobs: what it measures of MPI, of gloo and of the process.

use std::borrow::BorrowMut;
use std::process::Command;

use serde_json::Value;

use crate::harness::*;

fn bench(ranks: usize, arguments: &[&str]) -> Command {
    let mut command = on_ranks(ranks, binary());
    command.arg("bench").args(arguments);
    command
}

fn succeeds(command: impl BorrowMut<Command>) -> String {
    let output = run(command);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn both_transports_have_every_operation() {
    for ranks in [2, 3] {
        let table = succeeds(bench(ranks, &["collectives", "--iterations", "10"]));
        let rows = table_rows(&table);
        assert_eq!(rows.len(), 1 + 11, "{table}");
        for row in &rows[1..] {
            let is_measured = |cell: &str| cell.parse::<f64>().is_ok_and(|us| us > 0.0);
            assert!(is_measured(row[1]) && is_measured(row[2]), "{table}");
        }
    }
}

#[test]
fn bench_step_reports_phases_memory_and_arithmetic() {
    let lab = Lab::new();
    let json = lab.path("step.json");
    let printed = succeeds(bench(1, &["step", "--steps", "7", "--json"]).arg(&json));
    let figures: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let number = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("{name} in {figures}"));
    assert_eq!((number("steps"), number("ranks"), number("train_batch_size")), (7.0, 1.0, 32.0));
    // The forward pass of a sample has 88,592 multiplications, 28,224 of them in the first layer. The
    // backward pass skips the gradient of the first layer's input.
    assert_eq!(number("flop_per_step"), 32.0 * (6.0 * 88_592.0 - 2.0 * 28_224.0));
    // Burn's autodiff allocates memory in each operation of a step.
    assert!((10.0..1e5).contains(&number("allocations_per_step")), "{figures}");
    // A step uses 240 pages. Few of them are new, because freed pages are kept.
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
