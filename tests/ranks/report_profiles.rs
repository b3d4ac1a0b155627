//! Reports of profiles and of benchmarks.

use std::fs;

use crate::harness::*;
use crate::report::{contains, fails};
use crate::report_inputs::FEW;

#[test]
fn profiles_and_benchmarks_are_tables_of_the_report() {
    let lab = Lab::new();
    fs::create_dir_all(lab.path("results/profiles")).unwrap();
    for (name, options) in [
        ("mlp-relu", &["--model", "mlp"][..]),
        ("mlp-gelu", &["--model", "mlp", "--activation", "gelu"]),
        ("convnet", &[]),
        ("convnet-int8", &["--int8"]),
    ] {
        let mut profile = job(1);
        profile.args(["profile", "--batches", "5", "--json"]);
        succeeds(profile.arg(lab.path(&format!("results/profiles/{name}.json"))).args(options));
    }
    fs::write(lab.path("results/profiles/cut.json"), "{\"operators\": [").unwrap();
    fs::create_dir_all(lab.path("results/reference")).unwrap();
    let published = concat!(env!("CARGO_MANIFEST_DIR"), "/results/reference/");
    for name in
        ["profile-kinds.csv", "mlp-activations.csv", "profile-int8.csv", "collectives.csv", "fused.csv"]
    {
        fs::copy(format!("{published}{name}"), lab.path("results/reference").join(name)).unwrap();
    }
    let (collectives, fused) = (lab.path("results/collectives.csv"), lab.path("results/fused.csv"));
    succeeds(job(2).args(["bench", "collectives", "--iterations", "3", "--csv"]).arg(&collectives));
    let bench = ["bench", "fused", "--train-samples", "64", "--layers", "2", "--data-root"];
    succeeds(job(1).args(bench).arg(digits()).arg("--csv").arg(&fused));

    // Words that the report contains whatever the times are. Which one is faster, and whether by more than
    // noise, varies.
    let words = [
        "mlp: slowest activation",
        "convnet: int8 is ",
        " times as fast as float with fused operators",
        "the most time of the network's operators, ",
        "2 layers: ",
        "mpi: 11 of 11 operations ",
        "not shown: results/profiles/cut.json: is damaged (",
        "Published: Kaggle, CPU",
        "15.235",
        "35.540",
    ];
    contains(&shown(&lab, &[]), &words);
    shown(&lab, &["results/profiles", "results/fused.csv", "--format", "html"]);
    let page = fs::read_to_string(lab.path("results/report/report.html")).unwrap();
    let words = [
        "href=\"../profiles/mlp-gelu.json\"",
        "id=\"operators-1-activations\"",
        "id=\"operators-1-int8\"",
        "id=\"operators-1-mlp-relu-kinds\"",
        "id=\"bench-fused-1-published\"",
        "cut.json: is damaged",
    ];
    contains(&page, &words);
    assert!(!page.contains("bench-collectives"), "it is not among the paths");
    let int8 = fs::read_to_string(lab.path("results/report/operators-1-int8.csv")).unwrap();
    let number = |row, name| column(&int8, row, name).parse::<f64>().unwrap();
    assert!(number(1, "allocated_kb") > 0.0 && number(2, "allocated_kb") == 0.0, "{int8}");
    assert!(number(2, "checkpoint_kb") < number(1, "checkpoint_kb"), "{int8}");
    assert_eq!(column(&int8, 2, "inference_ms_published"), "20");

    lab.train(1, "results/run", &FEW);
    let output = report(&lab, &["--format", "csv"]);
    assert!(output.status.success(), "{}", text(&output));
    contains(&String::from_utf8_lossy(&output.stderr), &[" tables of profiles and benchmarks", "--out DIR"]);
    let output = report(&lab, &["--format", "csv", "--out", "files"]);
    contains(&String::from_utf8_lossy(&output.stderr), &[" tables of profiles and benchmarks", "in files"]);
    assert!(lab.path("files/operators-1-int8.csv").is_file() && lab.path("files/runs.csv").is_file());
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2, "the run alone");

    let damaged = fs::read_to_string(&fused).unwrap().replacen("fused,2,", "fused,2,x", 1);
    fs::write(lab.path("results/damaged.csv"), damaged).unwrap();
    let printed = shown(&lab, &["results/fused.csv", "results/damaged.csv"]);
    let words = ["not shown: results/damaged.csv: is damaged (line ", "Fused operator in results/fused.csv"];
    contains(&printed, &words);
    contains(&fails(&lab, 1, &["results/profiles", "--format", "csv"]), &["no finished run"]);
    let printed = fails(&lab, 1, &["results/profiles/cut.json"]);
    contains(&printed, &["cut.json: is damaged (", "nothing to report"]);
    let printed = fails(&lab, 1, &["results/reference/collectives.csv"]);
    assert!(
        printed.lines().count() == 1
            && printed.contains("results/reference/collectives.csv: is not a table of mpiburn bench"),
        "{printed}"
    );
}
