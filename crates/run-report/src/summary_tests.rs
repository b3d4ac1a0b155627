//! Checks the columns, marks and title of the main table.

use super::*;
use crate::rows::group;
use crate::runs::Run;
use crate::testing::{resumed_on, run, with_target, with_test_losses};

fn section(runs: Vec<Run>) -> Section {
    Section { name: "t".into(), title: "T".into(), runs, ..Section::default() }
}

fn csv(section: &Section) -> Vec<Vec<String>> {
    let sheet = summary(section, &group(&section.runs), "1x1");
    let text = sheet.csv().unwrap();
    text.lines().map(|line| line.split(',').map(Into::into).collect()).collect()
}

fn value<'t>(lines: &'t [Vec<String>], row: usize, name: &str) -> &'t str {
    &lines[row][lines[0].iter().position(|n| *n == name).expect(name)]
}

#[test]
fn speed_up_and_efficiency_are_those_of_medians() {
    let section = section(vec![run((1, 1), &[], 8.0), run((1, 1), &[], 10.0), run((2, 2), &[], 3.0)]);
    let lines = csv(&section);
    let of = |row, name| value(&lines, row, name);
    assert_eq!((of(1, "train_seconds"), of(1, "train_seconds_max"), of(1, "runs")), ("9", "10", "2"));
    assert_eq!((of(2, "speed_up"), of(2, "efficiency_percent"), of(2, "doubts")), ("3", "75", "single"));
    assert_eq!((of(2, "exposed_comm_percent"), of(2, "ranks")), ("10", "4"));
    assert_eq!(of(1, "exposed_comm_percent"), "", "one rank does not wait");
    let alone = summary(&section, &group(&section.runs)[1..], "1x1");
    let text = alone.markdown();
    assert!(text.contains("| – | – |") && text.contains("There is no run on 1x1"), "{text}");
}

#[test]
fn a_target_that_a_run_did_not_reach_has_no_number() {
    let of = |topology, seconds: f64, reached: bool| with_target(run(topology, &[], seconds), reached);
    let section = section(vec![
        of((1, 1), 8.0, true),
        of((1, 1), 10.0, true),
        of((1, 2), 5.0, true),
        of((1, 2), 5.0, false),
        of((2, 2), 3.0, false),
    ]);
    let lines = csv(&section);
    let times = ["seconds_to_target", "epochs_to_target"];
    let found = [1, 2, 3].map(|row| times.map(|name| value(&lines, row, name)));
    assert_eq!(found, [["4.5", "1.5"], [""; 2], [""; 2]]);
    assert_eq!([1, 2, 3].map(|row| value(&lines, row, "reached_target")), ["2", "1", "0"]);
    assert_eq!(value(&lines, 1, "seconds_to_target_max"), "5");
    let text = summary(&section, &group(&section.runs), "1x1").markdown();
    for words in ["target accuracy 97%", "| not reached by 1 of 2 |", "| not reached |"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let missed = summary(&section, &group(&section.runs[4..]), "1x1").markdown();
    assert!(missed.contains("| not reached |"), "{missed}");
    let plain = summary(&section, &group(&[run((1, 1), &[], 8.0)]), "1x1").markdown();
    assert!(!plain.contains("target"), "{plain}");
}

/// A run that stopped at its target did less work than a run that reached it later.
#[test]
fn runs_that_stopped_after_different_epochs_have_no_speed_up() {
    let stopped = |topology, seed: &str, steps: usize| {
        let mut run = with_target(run(topology, &["--seed", seed], 8.0), true);
        run.record.config.insert("stop_at_target".into(), true.into());
        run.sweep = Some("s".into());
        (run.results.steps, run.results.steps_to_target) = (steps, Some(steps));
        run
    };
    // An epoch has 1875 steps on one rank, and 938 on two.
    let runs = [((1, 1), "1", 1875), ((1, 1), "2", 2813), ((1, 2), "1", 938), ((1, 2), "2", 938)];
    let section = section(runs.map(|(topology, seed, steps)| stopped(topology, seed, steps)).into());
    let rows = group(&section.runs);
    let trained = [0, 1].map(|row| rows[row].setting("epochs_run"));
    assert_eq!((trained, rows.len()), (["1, 1.5", "1"], 2), "seeds are in one row");
    assert!(rows[1].baseline(&rows, "1x1").is_none());
    let text = summary(&section, &rows, "1x1").markdown();
    assert!(text.contains("| 1, 1.5 |") && text.contains("| 8.00 (8.00–8.00) | – | – |"), "{text}");
}

#[test]
fn short_and_disturbed_rows_have_marks_and_no_speed_up() {
    let mut runs = vec![run((1, 1), &[], 8.0), run((1, 2), &[], 1.5), run((2, 1), &[], 4.0)];
    runs[2].results.others_cpu_percent = Some(40.0);
    let section = section(runs);
    let lines = csv(&section);
    assert_eq!((value(&lines, 2, "speed_up"), value(&lines, 2, "doubts")), ("", "short"));
    assert_eq!((value(&lines, 3, "speed_up"), value(&lines, 3, "doubts")), ("", "disturbed"));
    let text = summary(&section, &group(&section.runs), "1x1").markdown();
    assert!(text.contains("| 1.50 ᵃ |") && text.contains("| 4.00 ᵇ |"), "{text}");
    assert!(
        text.contains("ᵃ Too short: less than 2 s") && text.contains("ᵇ Disturbed: ") && !text.contains('ᶜ')
    );
    assert!(!text.contains("doubts"), "for programs only: {text}");
}

#[test]
fn overfitting_rows_are_marked_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let up = with_test_losses(run((1, 1), &[], 8.0), &folder.path().join("up"), &[2.0, 1.5, 1.6, 1.7]);
    let lr = run((1, 1), &["--lr", "1"], 8.0);
    let mut down = with_test_losses(lr, &folder.path().join("down"), &[2.0, 1.5, 1.4, 1.3]);
    down.results.live_mb = None;
    let both = section(vec![up, down]);
    let text = summary(&both, &group(&both.runs), "1x1").markdown();
    assert!(text.contains("| overfits after epoch | runs |") && text.contains("Overfits after"), "{text}");
    assert!(text.contains("| 2 | 1 |") && text.contains("| – | 1 |"), "{text}");
    let lines = csv(&both);
    assert_eq!((value(&lines, 1, "live_mb"), value(&lines, 2, "live_mb")), ("5", ""));
    let better = section(vec![both.runs[1].clone()]);
    assert!(!summary(&better, &group(&better.runs), "1x1").markdown().contains("verfits"));
}

#[test]
fn a_narrow_table_keeps_what_decides() {
    let gloo = ["--backend", "gloo"];
    let runs = [((1, 1), 8.0), ((1, 2), 5.0), ((2, 2), 3.0)];
    let runs = runs.into_iter().flat_map(|(t, s)| [run(t, &[], s), run(t, &gloo, s + 1.0)]);
    let section = section(runs.collect());
    let (narrow, rest) = summary(&section, &group(&section.runs), "1x1").narrow(100, 50);
    let text = narrow.terminal(None, false);
    assert!(text.lines().filter(|line| line.starts_with('│')).all(|l| l.chars().count() <= 100), "{text}");
    for word in ["topology", "backend", "train s", "speed-up", "effic. %", "exposed comm %", "test acc %"] {
        assert!(text.contains(word), "{word} is missing: {text}");
    }
    assert!(!narrow.columns.iter().any(|column| column.key == "launcher"), "equal in all rows");
    let rest = rest.expect("other columns").markdown();
    assert!(rest.contains("| topology | backend |") && rest.contains("peak RSS MB"), "{rest}");
}

#[test]
fn quantized_runs_have_the_sizes_of_both_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoints/step-00000010");
    std::fs::create_dir_all(&checkpoint).unwrap();
    std::fs::write(checkpoint.join("model.safetensors"), vec![0; 18 << 10]).unwrap();
    let quantized = run((1, 1), &["--quantize", "qat"], 8.0);
    let section =
        section(vec![run((1, 1), &[], 8.0), crate::runs::Run { path: folder.path().into(), ..quantized }]);
    let has_size = |section: &Section| csv(section)[0].iter().any(|name| name == "int8_kb");
    assert!(!has_size(&section), "a float checkpoint alone has no ratio");
    std::fs::write(checkpoint.join("int8.safetensors"), vec![0; 6 << 10]).unwrap();
    let lines = csv(&section);
    let row = (1..3).find(|&row| value(&lines, row, "int8_kb") == "6").expect("the quantized row");
    assert_eq!((value(&lines, row, "float_kb"), value(&lines, row, "times_smaller")), ("18", "3"));
    assert_eq!(value(&lines, 3 - row, "float_kb"), "", "the other row has no integer model");
    let findings = crate::findings::findings(&group(&section.runs), "1x1").iter().join("; ");
    assert!(findings.contains("has 6.0 KB instead of 18.0 KB in float (3.00 times smaller)"), "{findings}");
}

#[test]
fn repeats_of_one_seed_have_one_accuracy_and_say_whether_their_weights_are_the_same() {
    let repeat = |seconds, digest: &str, options: &[&str]| {
        let mut run = run((1, 2), options, seconds);
        run.results.weights_sha256 = digest.into();
        run
    };
    let gloo = ["--backend", "gloo"];
    let section = section(vec![
        repeat(4.0, "a", &[]),
        repeat(4.5, "a", &[]),
        repeat(4.0, "a", &gloo),
        repeat(4.25, "b", &gloo),
        run((2, 2), &[], 3.0),
    ]);
    let sheet = summary(&section, &group(&section.runs), "1x1");
    let text = sheet.markdown();
    assert!(text.contains("| 4.25 (4.00–4.50) |") && text.contains("| 97.50 \\[97.18–97.79\\] |"), "{text}");
    assert!(!text.contains('±') && text.contains("The range of times, from minimum"), "{text}");
    let lines = csv(&section);
    let weights: Vec<&str> = (1..4).map(|row| value(&lines, row, "weights")).collect();
    assert_eq!(weights, ["differ", "same", ""], "{lines:?}");
    assert_eq!(
        (value(&lines, 1, "test_accuracy_low"), value(&lines, 1, "test_accuracy_high")),
        ("97.1753", "97.7882")
    );
}

#[test]
fn seeds_of_a_sweep_have_a_deviation_of_accuracy() {
    let seeded = |seed, accuracy| {
        let mut run = Run { sweep: Some("s".into()), ..run((1, 1), &["--seed", seed], 4.0) };
        run.results.test_accuracy = accuracy;
        run
    };
    let section = section(vec![seeded("1", 97.0), seeded("2", 97.5), seeded("3", 98.0), seeded("1", 97.0)]);
    let text = summary(&section, &group(&section.runs), "1x1").markdown();
    assert!(text.contains("| 97.25 ±0.50 \\[96.65–98.26\\] |") && text.contains("| 95.00 ±0.00 |"), "{text}");
    assert!(text.contains("| 4.00 (4.00–4.00) | – | – |"), "one topology has no speed-up: {text}");
    assert!(text.contains("several seeds (1, 2, 3): ± is the sample"), "{text}");
}

#[test]
fn an_unsteady_baseline_is_marked_and_gives_no_ratio() {
    let section = section(vec![run((1, 1), &[], 4.0), run((1, 1), &[], 7.0), run((1, 2), &[], 3.0)]);
    let text = summary(&section, &group(&section.runs), "1x1").markdown();
    assert!(text.contains("| 5.50 (4.00–7.00) ᶠ | – | – |") && text.contains("| 3.00 ᶜ | – | – |"), "{text}");
    assert!(text.contains("ᶠ Unsteady: "), "{text}");
    let findings = crate::findings::findings(&group(&section.runs), "1x1").iter().join("; ");
    assert!(!findings.contains("fastest"), "{findings}");
}

#[test]
fn a_run_on_several_numbers_of_ranks_is_marked_and_is_not_the_fastest() {
    let resharded = resumed_on(1, run((1, 2), &[], 3.0));
    let section = section(vec![run((1, 1), &[], 5.0), resharded]);
    let text = summary(&section, &group(&section.runs), "1x1").markdown();
    assert!(text.contains("| 3.00 ᵍᵈ | – | – |") && text.contains("ᵍ Ranks changed: "), "{text}");
    assert!(text.contains("ranks 1 → 2 from step 11 (epoch 1)"), "{text}");
    let findings = crate::findings::findings(&group(&section.runs), "1x1").iter().join("; ");
    assert!(!findings.contains("fastest") && !findings.contains("wait"), "{findings}");
}

#[test]
fn seeds_say_nothing_of_weights_and_short_times_have_three_digits() {
    let of = |seed, seconds| {
        let mut run = Run { sweep: Some("s".into()), ..run((1, 1), &["--seed", seed], seconds) };
        run.results.weights_sha256 = seed.into();
        run
    };
    let seeds = section(vec![of("1", 0.012), of("1", 0.014), of("2", 0.0131)]);
    let sheet = summary(&seeds, &group(&seeds.runs), "1x1");
    assert!(sheet.columns.iter().all(|column| column.key != "weights"), "{}", sheet.markdown());
    assert!(sheet.markdown().contains("| 0.0131 (0.0120–0.0140) "), "{}", sheet.markdown());
    let one = section(seeds.runs[..2].to_vec());
    assert_eq!(value(&csv(&one), 1, "weights"), "same");
}

#[test]
fn an_option_that_was_not_typed_is_no_dash_and_titles_name_options_that_exist() {
    let options =
        ["--train-samples", "640", "--test-samples", "100", "--clip-norm", "1", "--quantize", "qat"];
    let mut other = run((1, 1), &options, 4.0);
    other.record.data.train_sha256 = "0123456789".into();
    other.record.simd_level = Some("avx2".into());
    let both = section(vec![run((1, 1), &[], 4.0), other]);
    let rows = group(&both.runs);
    let sheet = summary(&both, &rows, "1x1");
    let cell = |key: &str| {
        let column = sheet.columns.iter().position(|column| column.key == key).expect(key);
        let cells: Vec<String> = sheet.rows.iter().map(|row| row[column].shown()).sorted().collect();
        cells.join(" ")
    };
    assert_eq!([cell("train_samples"), cell("test_samples")], ["640 all", "100 all"]);
    assert_eq!(cell("clip_norm"), " 1");
    for column in &sheet.columns {
        if let Some(option) = column.definition.strip_prefix("The option --") {
            assert!(rows[0].first().record.config.contains_key(&option.replace('-', "_")), "{option}");
        }
    }
    for name in rows.iter().flat_map(|row| row.settings.keys()) {
        let definition = Sheet::from_rows("", "", vec![setting(name, |row: &Row<'_>| row)], &rows).columns[0]
            .definition
            .clone();
        if let Some(option) = definition.strip_prefix("The option --") {
            assert!(
                rows[0].first().record.config.contains_key(&option.replace('-', "_")),
                "{name}: {option}"
            );
        }
    }
}

#[test]
fn what_a_network_has_to_beat_is_beside_its_accuracy() {
    let mut run = run((1, 1), &[], 4.0);
    let pairs = [(0, 0, 3), (0, 1, 1), (1, 1, 1)];
    run.results.by_class =
        run_record::ByClass::from_confusion(&pairs.into_iter().collect(), &["a".into(), "b".into()]);
    let with = section(vec![run.clone()]);
    let lines = csv(&with);
    assert_eq!(value(&lines, 1, "balanced_accuracy"), "87.5");
    assert_eq!(value(&lines, 1, "largest_class_percent"), "11.35");
    run.results.by_class = None;
    let without = section(vec![run]);
    assert!(!csv(&without)[0].iter().any(|name| name == "balanced_accuracy"), "an older run");
}

#[test]
fn the_title_has_the_epochs_that_were_trained_where_a_run_ended_early() {
    let of = |epochs_run: &[usize]| {
        let runs = epochs_run.iter().map(|&epochs_run| {
            let mut run = run((1, 1), &["--epochs", "60", "--early-stopping", "2"], 4.0);
            run.results.epochs_run = epochs_run;
            run
        });
        let section = section(runs.collect());
        summary(&section, &group(&section.runs), "1x1").title
    };
    for (trained, expected) in [
        (&[60][..], "epochs 60, batch"),
        (&[3], "epochs 60 (3 were trained), batch"),
        (&[60, 3, 12], "epochs 60 (3 to 60 were trained), batch"),
    ] {
        assert!(of(trained).contains(expected), "{}", of(trained));
    }
}

#[test]
fn the_title_has_the_threads_unless_each_rank_has_one() {
    let title = |threads: &str| {
        let section = section(vec![run((1, 1), &["--threads", threads], 8.0)]);
        summary(&section, &group(&section.runs), "1x1").markdown()
    };
    assert!(title("3").contains(", threads 3, "), "{}", title("3"));
    assert!(!title("1").contains("threads"), "{}", title("1"));
}
