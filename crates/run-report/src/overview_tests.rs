//! Checks the findings about runs that differ in topology, backend and settings.

use super::*;
use crate::findings::findings;
use crate::rows::group;
use crate::runs::Run;
use crate::testing::{run, tells};
use run_record::{ByClass, Confusion};

/// If only one of several seeds learns nothing, the row is not at chance level.
#[test]
fn a_row_is_at_chance_level_if_all_of_its_seeds_are() {
    let seeds = |accuracies: [f64; 3]| {
        let of_row = |threads: &'static str, accuracies: [f64; 3]| {
            accuracies.into_iter().enumerate().map(move |(seed, accuracy)| {
                let mut run = run((1, 1), &["--threads", threads, "--seed", &seed.to_string()], 4.0);
                run.sweep = Some("s".into());
                run.results.test_accuracy = accuracy;
                run
            })
        };
        let runs: Vec<Run> = of_row("1", accuracies).chain(of_row("2", [11.0; 3])).collect();
        listed(&runs)
    };
    assert!(
        seeds([11.2, 11.3, 11.1]).contains("no test accuracy is above chance level"),
        "{}",
        seeds([11.2; 3])
    );
    let text = seeds([11.2, 97.0, 97.2]);
    assert!(
        tells(&text, &["at chance level: 1x1 (mpi, threads 2)", "11.00%"]) && !text.contains("threads 1"),
        "{text}"
    );
}

fn listed(runs: &[Run]) -> String {
    findings(&group(runs), "1x1").iter().filter(|found| found.is_listed).join("\n")
}

#[test]
fn topologies_have_speed_up_ratio_accuracy_and_waiting() {
    let gloo = ["--backend", "gloo"];
    let mut runs = vec![run((1, 1), &[], 8.0), run((1, 2), &[], 5.0), run((2, 2), &[], 4.0)];
    runs.push(run((2, 2), &gloo, 5.0));
    runs[2].results.test_accuracy = 96.0;
    let text = listed(&runs);
    assert!(tells(&text, &["fastest: 2x2 (mpi)", "2.00 times", "1x1", "50%"]), "{text}");
    assert!(tells(&text, &["gloo", "1.25 times", "mpi", "2x2"]), "{text}");
    assert!(text.contains("on 1x1 (mpi): ") && tells(&text, &["ranks wait", "10.0%"]), "{text}");
    let text = listed(&[run((1, 1), &[], 4.0), run((1, 2), &[], 8.0)]);
    assert!(tells(&text, &["no other topology", "1x1", ": 1x2 (mpi), 0.50 times"]), "{text}");
}

#[test]
fn the_fastest_row_is_that_of_the_shortest_time() {
    let fp16 = ["--precision", "fp16"];
    let runs =
        [run((1, 1), &[], 4.0), run((1, 1), &fp16, 8.0), run((1, 2), &[], 2.5), run((1, 2), &fp16, 4.0)];
    let text = listed(&runs);
    assert!(tells(&text, &["fastest: 1x2 (mpi)", "1.60 times", "1x1", "the same settings"]), "{text}");
    // Without a row of equal settings, a reader compares with the other row of one rank.
    let text = listed(&[run((1, 1), &[], 4.0), run((1, 1), &fp16, 8.0), run((1, 2), &fp16, 3.2)]);
    assert!(tells(&text, &["fastest: 1x2 (mpi, precision fp16)", "1.25 times", "1x1 (mpi)"]), "{text}");
}

#[test]
fn what_ranks_that_share_cores_took_is_compared_only_where_there_is_nothing_else() {
    let gloo = ["--backend", "gloo"];
    let mut runs = vec![run((1, 1), &[], 8.0), run((1, 2), &[], 5.0), run((1, 2), &gloo, 6.0)];
    runs.extend([run((2, 2), &[], 3.0), run((2, 2), &gloo, 9.0)]);
    for run in &mut runs[3..] {
        run.record.oversubscribed = true;
        run.results.comm_seconds = 2.5;
    }
    let text = listed(&runs);
    assert!(tells(&text, &["fastest: 1x2 (mpi)", "1.60 times"]), "{text}");
    assert!(tells(&text, &["gloo", "1.20 times", "mpi", "1x2"]), "{text}");
    assert!(tells(&text, &["ranks wait", "10.0%", "1x2 ("]), "{text}");
    let text = listed(&runs[3..]);
    assert!(tells(&text, &["gloo", "3.00 times", "mpi", "2x2", "share cores"]), "{text}");
    assert!(tells(&text, &["ranks wait", "83.3%", "2x2 (mpi)", "share cores"]), "{text}");
}

#[test]
fn a_row_is_named_among_those_that_are_not_compared_too() {
    let fp16 = ["--precision", "fp16"];
    let mut runs = vec![run((1, 1), &fp16, 8.0), run((1, 2), &fp16, 5.0), run((1, 2), &[], 3.0)];
    runs[2].results.others_cpu_percent = Some(50.0);
    let text = listed(&runs);
    assert!(tells(&text, &["fastest: 1x2 (mpi, precision fp16)", "1.60 times", "1x1"]), "{text}");
    assert!(tells(&text, &["ranks wait", "10.0%", "1x2 (mpi, precision fp16)"]), "{text}");
}

#[test]
fn differences_within_noise_are_no_findings() {
    let batch = |size, seconds| run((1, 1), &["--batch-size", size], seconds);
    let text = listed(&[batch("16", 5.66), batch("64", 5.59)]);
    assert!(tells(&text, &["5.59", "5.66 s", "noise"]), "{text}");
    let text = listed(&[batch("16", 4.0), batch("32", 7.9), batch("64", 8.0)]);
    assert!(tells(&text, &["slowest: train batch size 64", "8.00 s", "(1 other", "noise)"]), "{text}");
    let text = listed(&[run((1, 1), &[], 8.0), run((1, 2), &[], 4.1), run((2, 1), &[], 4.0)]);
    assert!(tells(&text, &["fastest: 2x1 (mpi)", "2.00 times", "(1 other", "noise)"]), "{text}");
    let gloo = ["--backend", "gloo"];
    let text = listed(&[run((1, 2), &[], 5.59), run((1, 2), &gloo, 5.66)]);
    assert!(tells(&text, &["gloo", "mpi", "noise", "1x2", "5.66", "5.59 s"]), "{text}");
    let text = listed(&[run((1, 1), &[], 5.66), run((1, 2), &[], 5.59)]);
    assert!(tells(&text, &["1x2 (mpi)", "1x1 (mpi)", "noise", "5.59", "5.66 s"]), "{text}");
    // With 2,000 test samples, 0.2 points are four samples.
    let mut runs = ["1x1", "1x2"]
        .map(|name| run((1, if name == "1x1" { 1 } else { 2 }), &["--test-samples", "2000"], 4.0));
    runs[1].results.test_accuracy += 0.2;
    let text = listed(&runs);
    let facts =
        ["accuracies", "1x2 (mpi)", "1x1 (mpi)", "97.70%", "2814 updates", "97.50%", "5625", "95% intervals"];
    assert!(tells(&text, &facts), "{text}");
    assert!(!text.contains("points"), "{text}");
}

#[test]
fn accuracies_are_compared_within_one_recipe_and_above_chance() {
    let of_lr = |lr, activation, accuracy| {
        let mut run = run((1, 1), &["--lr", lr, "--activation", activation, "--test-samples", "200"], 4.0);
        run.results.test_accuracy = accuracy;
        run
    };
    let text = listed(&[of_lr("1", "relu", 30.0), of_lr("2", "relu", 90.0)]);
    assert!(!text.contains("test accuracy"), "another learning rate is another recipe: {text}");
    let text = listed(&[of_lr("1", "relu", 30.0), of_lr("1", "gelu", 90.0)]);
    assert!(tells(&text, &["highest test accuracy: activation gelu", "90.00%"]), "{text}");
    let text = listed(&[of_lr("1", "relu", 14.0), of_lr("1", "gelu", 12.0)]);
    assert!(
        !text.contains("highest test") && text.contains("no test accuracy is above chance level"),
        "{text}"
    );
}

#[test]
fn other_jobs_are_not_ranked_with_each_other() {
    let epochs =
        |epochs, activation, seconds| run((1, 1), &["--epochs", epochs, "--activation", activation], seconds);
    let text = listed(&[epochs("1", "relu", 2.5), epochs("3", "relu", 9.0), epochs("3", "gelu", 12.0)]);
    assert!(
        tells(
            &text,
            &["epochs 3: fastest: activation relu", "9.00 s", "slowest: activation gelu", "12.00 s"]
        ),
        "{text}"
    );
    assert!(!text.contains("2.50"), "{text}");
    let alone = listed(&[run((1, 2), &["--epochs", "1"], 2.5), run((1, 2), &["--epochs", "2"], 5.0)]);
    assert_eq!(alone, "", "nothing is compared");
    let text = listed(&[run((1, 2), &[], 2.5)]);
    assert!(text.lines().count() == 1 && tells(&text, &["ranks wait", "10.0%"]), "{text}");
}

#[test]
fn short_rows_give_no_times_and_settings_are_compared_by_name() {
    let text = listed(&[run((1, 1), &[], 1.0), run((1, 2), &[], 0.5)]);
    assert!(!text.contains("fastest") && !text.contains("not compared"), "not in the findings: {text}");
    assert!(tells(&text, &["ranks wait", "1x2 (mpi)", "unreliable"]), "{text}");
    let batch = |size, seconds| run((1, 1), &["--batch-size", size], seconds);
    let text = listed(&[batch("16", 8.0), batch("64", 4.0)]);
    assert!(
        tells(&text, &["fastest: train batch size 64", "4.00 s", "slowest: train batch size 16"]),
        "{text}"
    );
    assert!(!text.contains("accuracy") && !text.contains("wait for"), "{text}");
    assert_eq!(listed(&[]), "no finished run");
}

#[test]
fn another_backends_one_rank_is_named_and_a_doubted_one_is_not_replaced() {
    let gloo = ["--backend", "gloo"];
    let mut runs = [run((1, 1), &gloo, 8.0), run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
    assert!(tells(&listed(&runs), &["1x1", "the same settings", "efficiency 100%"]), "{}", listed(&runs));
    let fallback = [runs[0].clone(), runs[2].clone()];
    assert!(
        tells(&listed(&fallback), &["2.00 times", "1x1 (gloo)", "efficiency 100%"]),
        "{}",
        listed(&fallback)
    );
    runs[1].results.others_cpu_percent = Some(50.0);
    let text = listed(&runs);
    assert!(text.contains("as fast as 1x1 (gloo)") && !text.contains("efficiency"), "{text}");
}

#[test]
fn an_opposite_ratio_of_backends_is_named() {
    let gloo = ["--backend", "gloo"];
    let pair = |topology, mpi, other| [run(topology, &[], mpi), run(topology, &gloo, other)];
    let text = listed(&[pair((1, 2), 4.0, 8.0), pair((2, 1), 8.0, 4.0)].concat());
    assert!(tells(&text, &["gloo", "0.50 times", "mpi", "2x1", "2.00 times", "1x2"]), "{text}");
    let text = listed(&[pair((1, 2), 4.0, 8.0), pair((2, 2), 4.0, 6.0)].concat());
    assert!(tells(&text, &["gloo", "1.50 times", "mpi", "2x2"]) && !text.contains("2.00 times"), "{text}");
    let text = listed(&[pair((1, 2), 4.0, 8.0), pair((2, 2), 4.0, 4.0)].concat());
    assert!(tells(&text, &["gloo", "mpi", "noise", "2.00 times", "1x2"]), "{text}");
}

#[test]
fn a_gain_is_none_lost_and_one_row_at_chance_level_is_named() {
    let lost = |accuracies: [f64; 2]| {
        let mut runs = vec![run((1, 1), &[], 4.0), run((1, 2), &[], 4.0)];
        runs.iter_mut().zip(accuracies).for_each(|(run, accuracy)| run.results.test_accuracy = accuracy);
        let mut found = of_job(&group(&runs), "1x1").into_iter();
        let found = found
            .find(|found| found.answer.as_ref().is_some_and(|it| it.question == Question::Accuracy))
            .unwrap();
        (found.answer.unwrap().value, found.text)
    };
    let (value, line) = lost([80.0, 95.0]);
    assert_eq!(value, "none, 15.00 points gained");
    assert!(tells(&line, &["+15.00 points", "2814 updates", "5625"]), "{line}");
    let (value, line) = lost([95.0, 11.0]);
    assert_eq!(value, "84.00 points, with fewer updates");
    assert!(tells(&line, &["-84.00 points", "5625", "1x2 (mpi)", "chance level", "11.35%"]), "{line}");
    assert_eq!(lost([11.0, 11.0]).0, "chance level");
}

#[test]
fn a_run_at_chance_level_is_called_so_whatever_else_is_compared() {
    let with = |topology, options: &[&str], accuracy| {
        let mut run = run(topology, options, 4.0);
        run.results.test_accuracy = accuracy;
        run
    };
    let single = listed(&[with((1, 1), &[], 11.2)]);
    assert!(tells(&single, &["test accuracy 11.20%", "chance level", "11.35%"]), "{single}");
    assert!(!listed(&[with((1, 1), &[], 97.0)]).contains("chance"));
    // The only row of its job.
    let text = listed(&[with((1, 1), &["--epochs", "1"], 11.2), with((1, 1), &["--epochs", "2"], 97.0)]);
    assert!(single.lines().any(|line| text == format!("epochs 1: {line}")), "{text}");
    let text = listed(&[
        with((1, 1), &["--lr", "1"], 11.2),
        with((1, 1), &["--lr", "2"], 97.0),
        with((1, 2), &["--lr", "1"], 97.0),
    ]);
    assert_eq!(text.matches("is at chance level").count(), 1, "{text}");
    assert!(tells(&text, &["1x1 (mpi, lr 1.0)", "chance level", "11.35%"]), "{text}");
    let text = listed(&[with((1, 1), &["--lr", "1"], 11.2), with((1, 1), &["--lr", "2"], 97.0)]);
    assert!(tells(&text, &["at chance level: 1x1 (mpi, lr 1.0)", "11.20%", "11.35%"]), "{text}");
    // Nothing was tested.
    let mut untested = with((1, 1), &[], 0.0);
    untested.record.data.test_samples = 0;
    assert!(!listed(&[untested]).contains("chance"));
}

#[test]
fn accuracy_is_lost_in_equally_many_updates_or_the_finding_has_both_numbers() {
    let of_lr = |topology, lr, steps, accuracy| {
        let mut run = run(topology, &["--lr", lr], 4.0);
        (run.results.steps, run.results.test_accuracy) = (steps, accuracy);
        run
    };
    let lost = |runs: &[Run]| {
        let mut found = of_job(&group(runs), "1x1").into_iter();
        let found = found
            .find(|found| found.answer.as_ref().is_some_and(|it| it.question == Question::Accuracy))
            .unwrap();
        (found.answer.unwrap().value, found.text)
    };
    // The low learning rate loses more accuracy, because the row on 1x2 makes half the updates.
    let mut runs = vec![
        of_lr((1, 1), "0.001", 188, 76.5),
        of_lr((1, 2), "0.001", 94, 62.0),
        of_lr((1, 1), "0.01", 188, 95.0),
        of_lr((1, 2), "0.01", 94, 92.0),
    ];
    let (value, line) = lost(&runs);
    assert_eq!(value, "3.00 points, with fewer updates");
    assert!(tells(&line, &["-3.00 points", "94 updates", "188"]), "{line}");
    runs[1].results.steps = 188;
    let (value, line) = lost(&runs);
    assert_eq!(value, "14.50 points");
    assert!(line.ends_with("-14.50 points"), "{line}");
}

#[test]
fn one_run_is_compared_with_none_and_its_doubt_is_named() {
    let mut runs = [run((1, 2), &[], 1.0)];
    let text = listed(&runs);
    assert!(!text.contains("not compared") && !text.contains("rows"), "{text}");
    assert!(tells(&text, &["ranks wait", "unreliable"]), "{text}");
    runs[0].record.oversubscribed = true;
    assert!(listed(&runs).contains("; threads of ranks share cores"), "{}", listed(&runs));
}

#[test]
fn recipes_on_several_topologies_are_told_apart() {
    let on = |topology, activation: &str, accuracy| {
        let mut run = run(topology, &["--activation", activation, "--test-samples", "200"], 1.0);
        run.results.test_accuracy = accuracy;
        run
    };
    let of_both = |topology| [on(topology, "relu", 30.0), on(topology, "gelu", 90.0)];
    let text = listed(&[of_both((1, 1)), of_both((1, 2))].concat());
    for topology in ["1x1", "1x2"] {
        assert!(text.contains(&format!("{topology}: highest test accuracy: ")), "{text}");
    }
}

#[test]
fn a_run_that_tells_classes_apart_is_not_at_chance_level() {
    // Nine of ten samples belong to one class, and class weights cost accuracy on it.
    let with = |entries: &[(u16, u16, u64)]| {
        let mut run = run((1, 1), &[], 4.0);
        let confusion: Confusion = entries.iter().copied().collect();
        let by_class = ByClass::from_confusion(&confusion, &["no".into(), "yes".into()]).unwrap();
        let correct: u64 = by_class.classes.iter().map(|class| class.correct).sum();
        let data = &mut run.record.data;
        (data.test_samples, data.test_available, data.test_largest_class) = (300, 300, 270);
        run.results.test_accuracy = 100.0 * correct as f64 / 300.0;
        run.results.by_class = Some(by_class);
        listed(&[run])
    };
    let told = [
        "test accuracy 88.00% does not differ from ",
        "90.00%",
        "balanced accuracy is 88.89%, and 50.00% for random predictions",
    ];
    let found = with(&[(0, 0, 237), (0, 1, 33), (1, 0, 3), (1, 1, 27)]);
    assert!(told.iter().all(|fact| found.contains(fact)) && !found.contains("chance level"), "{found}");
    let found = with(&[(0, 0, 210), (0, 1, 60), (1, 0, 3), (1, 1, 27)]);
    assert!(found.contains("test accuracy 79.00% is below "), "{found}");
    for guessed in [
        [(0, 0, 270), (1, 0, 30), (1, 1, 0)],
        [(0, 0, 240), (0, 1, 30), (1, 0, 27)],
        // Two correct samples by chance.
        [(0, 0, 270), (1, 0, 28), (1, 1, 2)],
    ] {
        let found = with(&guessed);
        assert!(found.contains("is at chance level"), "{found}");
    }
}

/// If the heading also described the rows of another group, a reader would think that the highest accuracy is
/// theirs.
#[test]
fn a_heading_has_what_is_off_where_that_alone_tells_its_rows_from_others() {
    let with = |options: &[&str], accuracy| {
        let mut run = run((1, 1), &[&["--test-samples", "1000"], options].concat(), 4.0);
        run.results.test_accuracy = accuracy;
        run
    };
    let text = listed(&[
        with(&[], 70.0),
        with(&["--dropout", "0.3"], 92.0),
        with(&["--lr", "0.01"], 97.0),
        with(&["--clip-norm", "1"], 98.0),
        with(&["--quantize", "qat"], 99.0),
    ]);
    let heading =
        "default clip norm, lr 0.0005, quantized no: highest test accuracy: dropout 0.3 with 92.00%";
    assert!(text.contains(heading), "{text}");
}

#[test]
fn trainings_of_which_early_stopping_ended_some_have_headings() {
    let with = |topology, options: &[&str], epochs, seconds| {
        let mut run = run(topology, &[&["--epochs", "10"], options].concat(), seconds);
        run.results.epochs_run = epochs;
        run
    };
    let stopping = ["--early-stopping", "2"];
    let mut runs = vec![with((1, 1), &[], 10, 8.0), with((1, 2), &[], 10, 5.0)];
    runs.extend([with((1, 1), &stopping, 4, 3.2), with((1, 2), &stopping, 4, 2.5)]);
    let text = listed(&runs);
    assert!(tells(&text, &["all epochs: fastest: 1x2 (mpi)", "1.60 times", "1x1"]), "{text}");
    assert!(tells(&text, &["epochs run 4: fastest: 1x2 (mpi)", "1.28 times", "1x1"]), "{text}");
    // A run that early stopping did not end belongs to the job of the runs without early stopping.
    let text = listed(&[with((1, 1), &[], 10, 8.0), with((1, 1), &stopping, 10, 4.0)]);
    assert!(
        tells(&text, &["fastest: early stopping 2", "4.00 s", "slowest: default early stopping"]),
        "{text}"
    );
}
