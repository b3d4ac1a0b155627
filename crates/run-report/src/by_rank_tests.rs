//! Checks the tables of accuracies by rank.

use super::*;
use crate::rows::group;
use crate::runs::Run;
use crate::testing::run;

const FIGURES: &str = "topology,quantized,train_accuracy,test_accuracy,int8_test_accuracy,hardware\n\
                       1x1,no,95.28,97.77,,a cluster\n2x1,no,94.5/95,93.49,,a cluster\n\
                       2x1,qat,94.62/94.71,93.59,93.65/93.53,a cluster\n";

/// Adds results of each rank to `run`. `test_samples` has each rank's number of test samples.
fn with_ranks(mut run: Run, test_samples: &[usize]) -> Run {
    let is_quantized = !run.option("quantize").is_null();
    let of_rank = |(rank, &test_samples): (usize, &usize)| {
        let has = |value: f64| (test_samples > 0).then_some(value + rank as f64);
        RankRecord {
            rank,
            host: String::new(),
            train_samples: 10,
            test_samples,
            train_loss: Some(0.5),
            train_accuracy: Some(80.0 + rank as f64),
            test_loss: has(0.0),
            test_accuracy: has(90.0),
            int8_test_loss: has(0.25).filter(|_| is_quantized),
            int8_test_accuracy: has(70.0).filter(|_| is_quantized),
            comm_seconds: 0.0,
            peak_rss_mb: 1.0,
            live_mb: None,
        }
    };
    run.results.per_rank = test_samples.iter().enumerate().map(of_rank).collect();
    if is_quantized {
        (run.results.int8_test_accuracy, run.results.int8_test_loss) = (Some(70.5), Some(0.75));
    }
    run
}

/// Returns the tables of these runs, each as its title and its lines.
fn shown(runs: &[Run], figures: Option<&str>) -> Vec<(String, Vec<String>)> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), figures.unwrap_or_default()).unwrap();
    let reference = figures.map(|_| crate::published::read(file.path()).unwrap());
    let section = Section { name: "t".into(), title: "T".into(), ..Section::default() };
    let sheets = by_rank(&section, &group(runs), reference.as_ref());
    let line =
        |row: &Vec<Cell>, from: usize| row[from..].iter().map(Cell::shown).collect::<Vec<_>>().join(" ");
    sheets
        .iter()
        .map(|sheet| {
            let from = sheet.columns.iter().position(|column| column.key == "rank").unwrap();
            let lines = sheet.rows.iter().map(|row| format!("{} {}", row[0].shown(), line(row, from)));
            (sheet.name.clone(), lines.collect())
        })
        .collect()
}

#[test]
fn each_rank_and_all_of_them_are_beside_the_published_figures() {
    let runs = [
        with_ranks(run((1, 1), &[], 4.0), &[5]),
        with_ranks(run((2, 1), &[], 4.0), &[5, 5]),
        with_ranks(run((2, 1), &["--quantized"], 5.0), &[5, 5]),
    ];
    let found = shown(&runs, Some(FIGURES));
    let expected = [
        "1x1 all 95.00 95.28 97.50 97.77",
        "2x1 0 80.00 94.5 90.00 –",
        "2x1 1 81.00 95 91.00 –",
        "2x1 all 95.00 – 97.50 93.49",
    ];
    assert_eq!(found[0], ("t-ranks".into(), expected.map(String::from).into()));
    let expected = [
        "2x1 0 70.00 93.65 80.00 94.62 0.2500 90.00",
        "2x1 1 71.00 93.53 81.00 94.71 1.2500 91.00",
        "2x1 all 70.50 93.59 95.00 – 0.7500 97.50",
    ];
    assert_eq!(found[1], ("t-quantized-ranks".into(), expected.map(String::from).into()));
}

#[test]
fn a_rank_without_samples_has_no_accuracy_and_older_runs_none_of_the_int8_model() {
    let mut runs = vec![with_ranks(run((1, 2), &["--quantized"], 5.0), &[5, 0])];
    let found = shown(&runs, None);
    assert_eq!(found[0].1[1], "1x2 1 – 81.00 – –", "{found:?}");
    for rank in &mut runs[0].results.per_rank {
        (rank.int8_test_accuracy, rank.int8_test_loss) = (None, None);
    }
    runs[0].results.int8_test_loss = None;
    let found = shown(&runs, None);
    assert_eq!(found[0].1[..2], ["1x2 0 – 80.00 90.00", "1x2 1 – 81.00 –"], "{found:?}");
}

#[test]
fn repeats_are_one_row_and_one_rank_alone_has_no_table() {
    let mut runs = [(); 2].map(|()| with_ranks(run((1, 2), &[], 4.0), &[5, 5]));
    runs[1].results.per_rank[1].train_accuracy = Some(83.0);
    let found = shown(&runs, None);
    assert_eq!(found[0].1[..2], ["1x2 0 80.00 90.00", "1x2 1 82.00 91.00"], "{found:?}");
    assert!(shown(&[with_ranks(run((1, 1), &[], 4.0), &[5])], Some(FIGURES)).is_empty());
}
