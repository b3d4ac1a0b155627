//! Reports of profiles and of benchmarks.

use std::fs;

use crate::harness::*;
use crate::report::{column, fails, report, shown};

#[test]
fn profiles_and_benchmarks_are_tables_of_the_report() {
    let lab = Lab::new();
    fs::create_dir_all(lab.path("results/profiles")).unwrap();
    let profile = |name: &str, options: &[&str]| {
        let json = lab.path("results/profiles").join(name);
        let mut command = on_ranks(1, binary());
        command.args(["profile", "--batches", "5"]).args(options).arg("--json").arg(json);
        let output = run(command);
        assert!(output.status.success(), "{}", text(&output));
    };
    profile("mlp-relu.json", &["--model", "mlp"]);
    profile("mlp-gelu.json", &["--model", "mlp", "--activation", "gelu"]);
    profile("convnet.json", &[]);
    profile("convnet-int8.json", &["--int8"]);
    fs::write(lab.path("results/profiles/cut.json"), "{\"operators\": [").unwrap();
    fs::create_dir_all(lab.path("results/reference")).unwrap();
    let published = concat!(env!("CARGO_MANIFEST_DIR"), "/results/reference/");
    for name in
        ["profile-kinds.csv", "mlp-activations.csv", "profile-int8.csv", "collectives.csv", "fused.csv"]
    {
        fs::copy(format!("{published}{name}"), lab.path("results/reference").join(name)).unwrap();
    }
    let mut command = on_ranks(2, binary());
    command
        .args(["bench", "collectives", "--iterations", "3", "--csv"])
        .arg(lab.path("results/collectives.csv"));
    let output = run(command);
    assert!(output.status.success(), "{}", text(&output));
    let mut command = on_ranks(1, binary());
    command.args(["bench", "fused", "--train-samples", "64", "--layers", "2", "--data-root"]).arg(digits());
    let output = run(command.arg("--csv").arg(lab.path("results/fused.csv")));
    assert!(output.status.success(), "{}", text(&output));

    let all = shown(&lab, &[]);
    for words in [
        "slowest activation is gelu with ",
        "convnet: int8 is ",
        " times as fast as float with fused operators",
        "takes the most time of the network's operators, ",
        "the fused operator is ",
        "mpi: 11 of 11 operations with the right result",
        "not shown: results/profiles/cut.json: damaged (",
        "Published: Kaggle, CPU",
        "15.235",
        "35.540",
    ] {
        assert!(all.contains(words), "{words} is missing: {all}");
    }
    let output = report(&lab, &["results/profiles", "results/fused.csv", "--format", "html"]);
    assert!(output.status.success(), "{}", text(&output));
    let page = fs::read_to_string(lab.path("results/report/report.html")).unwrap();
    for words in [
        "href=\"../profiles/mlp-gelu.json\"",
        "id=\"operators-1-activations\"",
        "id=\"operators-1-int8\"",
        "id=\"operators-1-mlp-relu-kinds\"",
        "id=\"bench-fused-1-published\"",
        "cut.json: damaged",
    ] {
        assert!(page.contains(words), "{words} is missing");
    }
    assert!(!page.contains("bench-collectives"), "it is not among the paths");
    let int8 = fs::read_to_string(lab.path("results/report/operators-1-int8.csv")).unwrap();
    let number = |row, name| column(&int8, row, name).parse::<f64>().unwrap();
    assert!(number(1, "allocated_kb") > 0.0 && number(2, "allocated_kb") == 0.0, "{int8}");
    assert!(number(2, "checkpoint_kb") < number(1, "checkpoint_kb"), "{int8}");
    assert_eq!(column(&int8, 2, "inference_ms_published"), "20");

    lab.train(1, "results/run", &["--epochs=1", "--train-samples=320", "--test-samples=20"]);
    let output = report(&lab, &["--format", "csv"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && errors.contains(" tables of profiles and benchmarks; --out DIR"),
        "{errors}"
    );
    let output = report(&lab, &["--format", "csv", "--out", "files"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains(" tables of profiles and benchmarks, as files in files"), "{errors}");
    assert!(lab.path("files/operators-1-int8.csv").is_file() && lab.path("files/runs.csv").is_file());
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 2, "the run alone");

    let damaged =
        fs::read_to_string(lab.path("results/fused.csv")).unwrap().replacen("fused,2,", "fused,2,x", 1);
    fs::write(lab.path("results/damaged.csv"), damaged).unwrap();
    let printed = shown(&lab, &["results/fused.csv", "results/damaged.csv"]);
    assert!(printed.contains("not shown: results/damaged.csv: damaged (line "), "{printed}");
    assert!(printed.contains("Fused operator in results/fused.csv"), "{printed}");
    let printed = fails(&lab, 1, &["results/profiles", "--format", "csv"]);
    assert!(printed.contains("no finished run"), "{printed}");
    let printed = fails(&lab, 1, &["results/profiles/cut.json"]);
    assert!(
        printed.contains("cut.json: damaged (") && printed.contains("nothing to report but"),
        "{printed}"
    );
    let printed = fails(&lab, 1, &["results/reference/collectives.csv"]);
    assert!(printed.lines().count() == 1 && printed.contains("not a table of mpiburn bench"), "{printed}");
}
