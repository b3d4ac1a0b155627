//! Checks how runs are grouped and named, and which differences are findings.

use super::*;
use crate::testing::run;

#[test]
fn runs_with_equal_settings_are_repeats() {
    let runs = [run((1, 2), &[], 3.0), run((1, 1), &[], 8.0), run((1, 2), &[], 5.0), run((1, 2), &[], 4.0)];
    let rows = group(&runs);
    assert_eq!(rows.iter().map(|row| row.runs.len()).collect::<Vec<_>>(), [1, 3]);
    let spread = rows[1].train_seconds();
    assert_eq!((spread.median, spread.min, spread.max, spread.range_percent()), (4.0, 3.0, 5.0, 50.0));
    assert!(varied(&rows).is_empty());
    assert!(spread.is_known() && !Spread::from_values(vec![1.0, f64::NAN]).is_known());
}

#[test]
fn runs_on_other_samples_processors_or_of_other_lengths_are_no_repeats() {
    let other = |edit: fn(&mut Run)| {
        let options = ["--early-stopping", "1"];
        let mut runs = [run((1, 1), &options, 8.0), run((1, 1), &options, 8.0)];
        for run in &mut runs {
            run.record.data.train_sha256 = "0123456789abcdef".into();
        }
        edit(&mut runs[1]);
        let rows = group(&runs);
        (rows.len(), varied(&rows), rows[0].baseline(&rows, "1x1").is_some())
    };
    assert_eq!(other(|_| {}), (1, vec![], true));
    let of = |name: &str| (2, vec![name.to_owned()], true);
    assert_eq!(other(|run| run.record.data.train_sha256 = "fedcba98".into()), of("data"));
    assert_eq!(other(|run| run.record.simd_level = Some("portable".into())), of("simd_level"));
    assert_eq!(other(|run| run.results.epochs_run = 2), of("epochs_run"));
    let of_test_set = |run: &mut Run| {
        (run.record.data.test_samples, run.record.data.test_available) = (1000, 1000);
    };
    assert_eq!(other(of_test_set), of("test_available"));
    let fewer = other(|run| {
        run.record.data.train_sha256 = "fedcba98".into();
        run.record.data.train_samples = 100;
        run.record.config.insert("train_samples".into(), 100.into());
    });
    assert_eq!(fewer, of("train_samples"), "the digest differs too, but is not named");
}

#[test]
fn varied_settings_are_found_and_sorted_as_numbers() {
    let batch = |size| run((1, 1), &["--batch-size", size], 8.0);
    let runs = [batch("128"), batch("16"), batch("32")];
    let rows = group(&runs);
    assert_eq!(varied(&rows), ["train_batch_size"]);
    assert_eq!(
        rows.iter().map(|row| row.setting("train_batch_size")).collect::<Vec<_>>(),
        ["16", "32", "128"]
    );
    assert_eq!(rows[0].label(&varied(&rows)), "mpi, train batch size 16");
    let on = [run((1, 1), &["--shuffle", "--weight-decay", "0"], 8.0), run((1, 1), &[], 8.0)];
    let rows = group(&on);
    let labels: Vec<String> = rows.iter().map(|row| row.label(&varied(&rows))).collect();
    assert_eq!(labels, ["mpi, weight decay 0.0005", "mpi, shuffle"]);
    let seeds = ["0", "1"].map(|seed| run((1, 1), &["--seed", seed], 8.0));
    assert_eq!(group(&seeds)[0].label(&["seed".to_owned()]), "mpi, seed 0", "seed 0 is not off");
    let mut mixed = ["2", "1a", "10", "–"];
    mixed.sort_by(|a, b| compare(a, b));
    assert_eq!(mixed, ["2", "10", "1a", "–"]);
}

#[test]
fn an_option_typed_at_its_default_makes_no_other_row() {
    let qat = ["--quantize", "ptq"];
    for (plain, typed) in [
        (&[][..], &["--num-classes", "10"][..]),
        (&["--optimizer", "sgd"], &["--optimizer", "sgd", "--momentum", "0"]),
        (&["--model", "mlp"], &["--model", "mlp", "--hidden", "32"]),
        (&qat, &[&qat[..], &["--calibration", "1024"]].concat()),
        (&[], &["--gloo-algorithm", "bcube", "--interface", "lo"]),
        (&[], &["--keep", "5", "--checkpoint-every", "9"]),
        (&[], &["--test-samples", "10000", "--train-samples", "99999"]),
    ] {
        let runs = [run((1, 2), plain, 3.0), run((1, 2), typed, 3.0)];
        assert_eq!(group(&runs).len(), 1, "{typed:?}");
    }
    let runs = [run((1, 1), &[], 3.0), run((1, 1), &["--test-samples", "99"], 3.0)];
    assert_eq!(group(&runs).len(), 2);
}

#[test]
fn seeds_of_a_sweep_are_one_row() {
    let seeded = |seed, sweep: Option<&str>| {
        let sweep = sweep.map(Into::into);
        Run { sweep, ..run((1, 1), &["--seed", seed], 3.0) }
    };
    let runs = ["3", "1", "2"].map(|seed| seeded(seed, Some("s")));
    let rows = group(&runs);
    assert_eq!((rows.len(), rows[0].setting("seed")), (1, "1, 2, 3"));
    assert_eq!(group(&["3", "1"].map(|seed| seeded(seed, None))).len(), 2, "two rows without a sweep");
}

#[test]
fn oversubscribed_runs_are_not_repeats_of_others() {
    let mut runs = [run((1, 2), &[], 3.0), run((1, 2), &[], 9.0)];
    runs[1].record.oversubscribed = true;
    let rows = group(&runs);
    assert_eq!(rows.len(), 2);
    assert!(varied(&rows).is_empty(), "oversubscription has a fixed column");
}

#[test]
fn the_baseline_has_the_same_computation_and_the_closest_transport() {
    let gloo = ["--backend", "gloo"];
    let runs = [
        run((1, 1), &[], 8.0),
        run((1, 1), &gloo, 7.0),
        run((1, 1), &["--lr", "1"], 6.0),
        run((2, 1), &gloo, 4.0),
        run((2, 1), &["--backend", "mpi", "--bucket-mb", "1"], 4.0),
        run((2, 1), &["--epochs", "9"], 4.0),
    ];
    let rows = group(&runs);
    let base_of = |backend: &str, epochs: &str| {
        let row = rows.iter().find(|row| {
            let wanted = (row.setting("topology"), row.setting("backend"), row.setting("epochs"));
            wanted == ("2x1", backend, epochs)
        });
        row.expect("the row").baseline(&rows, "1x1").map(|base| base.train_seconds().median)
    };
    assert_eq!(
        (base_of("gloo", "3"), base_of("mpi", "3"), base_of("mpi", "9")),
        (Some(7.0), Some(8.0), None)
    );
    let [gloo, mpi] = [3, 4].map(|n| rows.iter().find(|row| row.first().path == runs[n].path).unwrap());
    assert!(
        mpi.baseline(std::slice::from_ref(gloo), "2x1").is_none(),
        "two ranks communicate over another backend"
    );
}

#[test]
fn intervals_are_wilsons() {
    // Newcombe, "Two-sided confidence intervals for the single proportion" (Statistics in Medicine 17, 1998),
    // table I, method 3.
    for (correct, samples, low, high) in
        [(81.0, 263, 25.53, 36.62), (15.0, 148, 6.24, 16.05), (0.0, 20, 0.0, 16.11), (1.0, 29, 0.61, 17.18)]
    {
        let found = Interval::wilson(100.0 * correct / samples as f64, samples);
        assert!((found.low - low).abs() < 5e-3 && (found.high - high).abs() < 5e-3, "{found:?}");
    }
}

#[test]
fn times_differ_beyond_their_ranges_and_few_of_them_beyond_10_percent() {
    let of = |seconds: &[f64]| Spread::from_values(seconds.to_vec());
    for (a, b, expected) in [
        (&[5.59][..], &[5.66][..], false),
        (&[5.0], &[5.4], false),
        (&[5.0], &[5.6], true),
        (&[5.0, 5.1], &[5.2, 5.3], false),
        (&[5.0, 5.01, 5.1], &[5.2, 5.21, 5.3], true),
        (&[5.0, 6.0, 8.0], &[7.0, 9.0, 10.0], false),
        (&[5.0, 6.0, 8.0], &[7.0], false),
    ] {
        assert_eq!(
            (times_differ(&of(a), &of(b)), times_differ(&of(b), &of(a))),
            (expected, expected),
            "{a:?}"
        );
    }
}

#[test]
fn a_row_has_the_bounds_of_all_its_runs_and_none_without_samples() {
    let mut runs = vec![run((1, 1), &[], 4.0), run((1, 1), &[], 4.0)];
    runs[1].results.test_accuracy = 96.0;
    let of = |runs: &[Run]| Interval::of_row(&group(runs)[0], |run| run.results.test_accuracy);
    let (low, high) = (Interval::wilson(96.0, 10_000).low, Interval::wilson(97.5, 10_000).high);
    assert_eq!(of(&runs), Some(Interval { low, high }));
    runs[1].record.data.test_samples = 0;
    assert_eq!(of(&runs[1..]), None);
}
