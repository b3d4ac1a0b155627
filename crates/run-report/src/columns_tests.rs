//! Checks that `docs/columns.md` lists the columns of the tables as the code declares them.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use crate::allreduce::LatencyRow;
use crate::benchmarks::Benchmark;
use crate::by_rank::by_rank;
use crate::collectives::CollectiveRow;
use crate::fused::FusedRow;
use crate::pairs::{joint, ratios};
use crate::profiles::Profiles;
use crate::profiles::testing::{operator, profile};
use crate::quantized::quantized;
use crate::rows::group;
use crate::runs::{Run, Section};
use crate::sheet::Sheet;
use crate::summary::summary;
use crate::testing::{run, with_target};
use run_record::ByClass;

/// Returns the tables of runs with a target accuracy that differ in topology, backend and quantization.
fn of_runs() -> Vec<Sheet> {
    let with = |topology, options: &[&str]| {
        let mut run = with_target(run(topology, options, 5.0), true);
        let results = &mut run.results;
        (results.weights_sha256, results.int8_test_loss) = ("a".into(), Some(0.125));
        (results.float_inference_seconds, results.int8_inference_seconds) = (Some(3.0), Some(1.0));
        let names = ["a".to_owned(), "b".to_owned()];
        results.by_class = ByClass::from_confusion(&[(0, 0, 1), (1, 1, 1)].into_iter().collect(), &names);
        results.int8_test_accuracy = options.contains(&"--quantized").then_some(97.25);
        run
    };
    let gloo = ["--backend", "gloo"];
    let runs: Vec<Run> = [(1, 1), (1, 2)]
        .into_iter()
        .flat_map(|topology| [&[][..], &gloo, &["--quantized"]].map(|options| with(topology, options)))
        .collect();
    let (section, rows) = (Section { title: "Runs".into(), ..Section::default() }, group(&runs));
    let others = [quantized(&section, &rows), joint(&section, &rows), ratios(&section, &rows)];
    let sheets = [summary(&section, &rows, "1x1")].into_iter().chain(others.into_iter().flatten());
    sheets.chain(by_rank(&section, &rows, None)).collect()
}

fn of_benchmark<R: Benchmark>(row: R) -> Sheet {
    R::sheets("", R::TITLE, Path::new(""), &[row], None).remove(0)
}

fn of_profiles() -> Vec<Sheet> {
    let of = |activation, int8| profile("mlp", activation, int8, &[operator(activation, 100, 1.0, 1024)]);
    let profiles = vec![of("relu", false), of("gelu", false), of("relu", true)];
    let part = Profiles { profiles, ..Profiles::default() }.part("profiles").expect("there are profiles");
    part.sheets.into_iter().skip(1).collect()
}

#[test]
fn the_documentation_lists_the_columns() {
    let collective = CollectiveRow { backend: "mpi".into(), ..CollectiveRow::default() };
    let benchmarks =
        [of_benchmark(FusedRow::default()), of_benchmark(collective), of_benchmark(LatencyRow::default())];
    let sheets: Vec<Sheet> = of_runs().into_iter().chain(of_profiles()).chain(benchmarks).collect();
    let headings = [
        "Runs",
        "Quantized training",
        "With and without quantization",
        "Comparison of backends",
        "Accuracy by rank",
        "Quantized training by rank",
        "Profiles: operators by kind",
        "Profiles: activations",
        "Profiles: float and int8",
        "`bench fused`",
        "`bench collectives`: a column for each backend",
        "`bench allreduce`",
    ];
    assert_eq!(sheets.len(), headings.len());
    let mut text = "# Columns of the tables\n\n\
        Reference: every column of a report's tables, with its key in CSV files. A column with a range also has `KEY_min` and\n\
        `KEY_max`. A column that several tables have is listed in the first. Options in which runs differ are columns too, with\n\
        the options' names. Columns without a value are left out.\n"
        .to_owned();
    let mut listed = BTreeSet::new();
    for (sheet, heading) in sheets.iter().zip(headings) {
        let mut rows = String::new();
        for column in &sheet.columns {
            let spread = if column.spread { ", with range" } else { "" };
            let row = format!("| {} | `{}`{spread} | {} |\n", column.title, column.key, column.definition);
            if listed.insert(row.clone()) {
                rows.push_str(&row);
            }
        }
        if !rows.is_empty() {
            write!(text, "\n## {heading}\n\n| column | key | meaning |\n| --- | --- | --- |\n{rows}")
                .unwrap();
        }
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/columns.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "{} is not as declared: run this test with UPDATE_DOCS=1", file.display());
}
