//! Checks remarks, marks and footnotes.

use run_record::{Attempt, DataRecord, Machine};

use super::*;
use crate::rows::group;
use crate::runs::Section;
use crate::summary::summary;
use crate::testing::{run, tells};

fn joined(runs: &[Run]) -> String {
    remarks(&group(runs), "1x1", false).join(" ")
}

#[test]
fn runs_of_several_builds_are_reported() {
    let mut runs = vec![run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
    runs.iter_mut().for_each(|run| run.record.git = "aaaa".into());
    assert!(!joined(&runs).contains("builds"));
    runs[1].record.git = "bbbb".into();
    assert!(joined(&runs).contains("(aaaa, bbbb)"), "{}", joined(&runs));
}

#[test]
fn runs_of_several_processors_are_reported() {
    let mut runs = vec![run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
    let machine =
        |cpu: &str| Machine { host: "node0".into(), cpu: cpu.into(), memory_bytes: 0, kernel: "6.1".into() };
    runs.iter_mut().for_each(|run| run.record.machines = vec![machine("slow"), machine("slow")]);
    assert!(!joined(&runs).contains("kinds of machines"));
    runs[1].record.machines = vec![machine("fast"), machine("slow")];
    assert!(joined(&runs).contains("several kinds of machines (fast and slow; slow)"), "{}", joined(&runs));
}

#[test]
fn early_stopping_does_not_explain_itself_by_the_batch() {
    let mut runs = [run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
    runs[1].results.epochs_run = 2;
    assert!(!joined(&runs).contains("fewer updates"), "{}", joined(&runs));
}

#[test]
fn a_speed_up_is_explained_where_there_is_one() {
    let runs = |seconds| [run((1, 1), &[], seconds), run((1, 2), &[], seconds)];
    assert!(joined(&runs(8.0)).contains("Speed-up and efficiency are relative to 1x1"));
    let gloo = [run((1, 1), &["--backend", "gloo"], 8.0), run((1, 2), &[], 4.0)];
    assert!(joined(&gloo).contains("another backend"), "{}", joined(&gloo));
    assert!(!joined(&runs(8.0)).contains("another backend"));
    let short = joined(&runs(1.0));
    assert!(!short.contains("Speed-up") && short.contains("Too short"), "{short}");
}

#[test]
fn shared_cores_and_machines_are_explained() {
    let mut runs = vec![run((2, 2), &[], 4.0)];
    runs[0].record.oversubscribed = true;
    runs[0].record.shared_machine = true;
    assert!(
        joined(&runs).contains("not representative") && joined(&runs).contains("Shared:"),
        "{}",
        joined(&runs)
    );
}

#[test]
fn updates_and_accumulated_steps_are_explained_where_they_differ() {
    let runs = [run((1, 1), &[], 8.0), run((1, 2), &["--backend", "gloo"], 4.0)];
    assert!(joined(&runs).contains("1x2 makes 2814 updates and 1x1 makes 5625"), "{}", joined(&runs));
    let few = ["--train-samples", "6000"];
    let jobs = [runs[0].clone(), runs[1].clone(), run((1, 1), &few, 8.0), run((1, 2), &few, 4.0)];
    let text = joined(&jobs.map(|mut run| {
        run.results.steps /= if run.record.data.train_samples == 6000 { 10 } else { 1 };
        run
    }));
    assert!(text.contains("281 updates and 1x1 makes 562 (train samples 6000)"), "{text}");
    assert!(!joined(&runs[..1]).contains("updates") && !joined(&runs).contains("Accumulation"));
    let accumulated = [run((1, 2), &[], 8.0), run((1, 2), &["--accumulate", "4"], 4.0)];
    assert!(joined(&accumulated).contains("a step takes `accumulate` batches"), "{}", joined(&accumulated));
}

#[test]
fn the_whole_test_set_is_claimed_only_where_all_of_it_was_tested() {
    let mut runs = vec![run((1, 1), &[], 8.0)];
    assert!(joined(&runs).contains("over the whole test set"));
    let all = DataRecord {
        train_samples: 6000,
        train_available: 6000,
        test_samples: 500,
        test_available: 500,
        ..DataRecord::default()
    };
    runs[0].record.data = all.clone();
    assert!(joined(&runs).contains("over the whole test set"));
    runs[0].record.data = DataRecord { test_samples: 100, train_samples: 640, ..all };
    let expected = "over the first 100 of 500 test samples, after training on the first 640 of 6000 samples";
    assert!(joined(&runs).contains(expected), "{}", joined(&runs));
}

#[test]
fn samples_are_said_with_the_rows_that_they_are_of() {
    let of_options = |options: &[&str], all: usize| {
        let mut run = run((1, 1), options, 8.0);
        let data = &mut run.record.data;
        (data.train_available, data.test_available) = (all, 500);
        data.train_samples = data.train_samples.min(all);
        data.test_samples = 500;
        run
    };
    let few = of_options(&["--train-samples", "640"], 6000);
    let text = joined(&[of_options(&[], 6000), few.clone()]);
    let facts = [
        "all 500 test samples",
        "the first 640 of 6000 samples",
        "(train samples 640)",
        "(train samples all)",
    ];
    assert!(tells(&text, &facts), "{text}");
    let text = joined(&[of_options(&["--data-root", "d/pets"], 60), few]);
    assert!(tells(&text, &["(data root data/digits, train samples 640)", "(data root d/pets)"]), "{text}");
}

fn names(row: &Row<'_>, rows: &[Row<'_>]) -> String {
    warnings(row, rows).map(|warning| warning.name).collect::<Vec<_>>().join(" ")
}

fn resumed(mut run: Run, step: usize, field: &str, [from, to]: [Value; 2]) -> Run {
    let changed = vec![Change { field: field.into(), from, to }];
    run.record.history.push(Attempt { started_at: String::new(), step, changed });
    run
}

fn failed([from_step, step]: [usize; 2], cause: Option<&str>) -> FailedAttempt {
    let [started_at, ended_at] = [String::new(), String::new()];
    let cause = cause.map(Into::into);
    FailedAttempt { started_at, ended_at, from_step, step, exit_code: 137, cause }
}

#[test]
fn short_disturbed_and_single_rows_are_doubted() {
    let mut runs = vec![run((1, 1), &[], 8.0), run((1, 1), &[], 9.0), run((1, 2), &[], 1.9)];
    runs.push(run((2, 1), &[], 4.0));
    runs[3].results.others_cpu_percent = Some(10.1);
    let rows = group(&runs);
    let found: Vec<String> = rows.iter().map(|row| names(row, &rows)).collect();
    assert_eq!(found, ["", "short single", "disturbed single"]);
    assert_eq!(rows.iter().map(is_sound).collect::<Vec<_>>(), [true, false, false]);
    assert_eq!(marks(&rows[1], &rows), "ᵃᶜ");
    let notes = footnotes(&rows, &["a", "b", "c"].map(String::from));
    assert!(notes.len() == 3 && tells(&notes[0], &["ᵃ Too short", "2 s"]), "{notes:?}");
}

#[test]
fn a_short_training_that_is_repeated_can_be_compared() {
    let runs = |count| (0..count).map(|_| run((1, 1), &[], 0.3)).collect::<Vec<_>>();
    assert!(!is_sound(&group(&runs(2))[0]));
    assert!(is_sound(&group(&runs(3))[0]));
}

#[test]
fn times_of_a_wide_range_are_doubted() {
    let repeats = |slowest| [run((1, 1), &[], 4.0), run((1, 1), &[], 4.0), run((1, 1), &[], slowest)];
    assert!(is_sound(&group(&repeats(5.0))[0]));
    let wide = repeats(6.4);
    let rows = group(&wide);
    assert_eq!((names(&rows[0], &rows).as_str(), is_sound(&rows[0])), ("unsteady", false));
}

#[test]
fn one_disturbed_repeat_of_three_does_not_count() {
    let mut runs: Vec<_> = (0..3).map(|_| run((1, 1), &[], 8.0)).collect();
    runs[0].results.others_cpu_percent = Some(90.0);
    assert!(is_sound(&group(&runs)[0]));
    runs[1].results.others_cpu_percent = Some(90.0);
    assert!(!is_sound(&group(&runs)[0]));
}

#[test]
fn a_resumed_run_with_another_rate_is_no_repeat_and_has_a_footnote() {
    let rates = || [0.001.into(), 0.0001.into()];
    let plain = || run((1, 2), &["--lr", "1e-4"], 8.0);
    let runs = [plain(), resumed(plain(), 1876, "lr", rates()), run((1, 1), &["--lr", "1e-4"], 9.0)];
    let rows = group(&runs);
    assert_eq!(rows.len(), 3);
    let sheet = summary(&Section { runs: Vec::new(), ..Section::default() }, &rows, "1x1");
    let note = sheet.remarks.iter().find(|remark| remark.starts_with(CHANGED)).unwrap();
    let change = " 1x2 (mpi, changed by a resume): --lr 0.001 → 0.0001 from step 1877 (epoch 3).";
    assert!(note.ends_with(change), "{note}");
    let marked = sheet.rows.iter().filter(|row| row.iter().any(|cell| cell.marks.contains(CHANGED))).count();
    assert_eq!(marked, 1);
    assert!(sheet.csv().unwrap().contains("--lr 0.001 → 0.0001 from step 1877"), "programs read it too");
    let without = summary(&Section::default(), &group(&runs[..1]), "1x1");
    assert!(without.columns.iter().all(|column| column.key != "changed"));
}

#[test]
fn rows_with_the_same_changes_are_named_together() {
    let rates = || [0.001.into(), 0.0001.into()];
    let on = |topology| resumed(run(topology, &["--lr", "1e-4"], 8.0), 1876, "lr", rates());
    let gloo = resumed(run((1, 2), &["--lr", "1e-4", "--backend", "gloo"], 8.0), 1876, "lr", rates());
    let decay = [0.0005.into(), 0.into()];
    let runs = [on((1, 2)), on((2, 1)), resumed(gloo, 2000, "weight_decay", decay), run((2, 2), &[], 4.0)];
    let rows = group(&runs);
    let names: Vec<String> = rows.iter().map(|row| row.place(&crate::rows::varied(&rows))).collect();
    let rate = "--lr 0.001 → 0.0001 from step 1877 (epoch 3)";
    let notes = footnotes(&rows, &names);
    let changes = format!(
        " 1x2 (gloo, lr 0.0001, changed by a resume): {rate}, --weight-decay 0.0005 → 0 from step 2001 (epoch 3). \
         1x2 (mpi, lr 0.0001, changed by a resume), 2x1 (mpi, lr 0.0001, changed by a resume): {rate}."
    );
    assert!(notes.len() == 1 && notes[0].starts_with(CHANGED) && notes[0].ends_with(&changes), "{notes:?}");
    assert_eq!(rows.iter().map(|row| marks(row, &rows)).collect::<Vec<_>>(), ["ᵈ", "ᵈ", "ᵈ", ""]);
}

#[test]
fn a_value_without_a_step_is_no_change() {
    let to = |run: Run, values: [f64; 2]| resumed(run, 96, "lr", values.map(Value::from));
    let tried = to(to(run((1, 1), &[], 8.0), [0.001, 1e30]), [1e30, 0.0005]);
    assert_eq!(changes(&tried, |_| true), ["--lr 0.001 → 0.0005 from step 97 (epoch 1)"]);
    let unfused = resumed(run((1, 1), &[], 8.0), 96, "fused", [true.into(), false.into()]);
    assert_eq!(changes(&unfused, |_| true), ["--fused on → off from step 97 (epoch 1)"], "as it is typed");
    let back = to(to(run((1, 1), &[], 8.0), [0.001, 1e30]), [1e30, 0.001]);
    assert_eq!((changes(&back, |_| true), changed_setting(&back)), (vec![], None));
}

#[test]
fn options_without_effect_leave_repeats_repeats() {
    let runs = [run((1, 1), &[], 8.0), resumed(run((1, 1), &[], 8.0), 5625, "keep", [Value::Null, 3.into()])];
    let rows = group(&runs);
    assert_eq!(rows.len(), 1);
    let notes = footnotes(&rows, &["1x1 mpi".to_owned()]);
    assert!(notes[0].contains("--keep none → 3 from step 5626"), "{notes:?}");
}

#[test]
fn repeats_with_the_same_changes_list_them_once() {
    let changed = || {
        let kept = resumed(run((1, 1), &[], 8.0), 5625, "keep", [Value::Null, 3.into()]);
        resumed(kept, 5625, "log_every", [100.into(), 10.into()])
    };
    let runs = [changed(), changed()];
    let rows = group(&runs);
    assert_eq!(rows.len(), 1);
    assert_eq!(changes_of(&rows[0]).len(), 2, "{:?}", changes_of(&rows[0]));
}

#[test]
fn a_restarted_run_has_a_mark_and_a_footnote_and_its_ratio() {
    let mut runs = [run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
    let cause = Some("rank 1 (node-b):\n killed");
    runs[1].record.failed_attempts = vec![failed([0, 57], cause), failed([40, 40], None)];
    let rows = group(&runs);
    let sheet = summary(&Section::default(), &rows, "1x1");
    let note = sheet.remarks.iter().find(|remark| remark.starts_with(RESTARTED)).unwrap();
    let expected = "1x2 (mpi): 2 failed attempts (after step 57: rank 1 (node-b): killed; before its first \
                    step: exit code 137).";
    assert!(note.ends_with(expected), "{note}");
    let text = sheet.markdown();
    assert!(text.contains("| 4.00 ᵉ | 2.00 | 100 |") && text.contains("| 8.00 | 1.00 |"), "{text}");
    let csv = sheet.csv().unwrap();
    assert!(csv.lines().next().unwrap().ends_with(",failed_attempts") && csv.ends_with(",2\n"), "{csv}");
    let without = summary(&Section::default(), &group(&runs[..1]), "1x1");
    assert!(without.columns.iter().all(|column| column.key != "failed_attempts"));
}

#[test]
fn test_sets_of_two_sizes_are_told_apart() {
    let limited = |available| {
        let mut run = run((1, 1), &["--test-samples", "50"], 4.0);
        (run.record.data.test_samples, run.record.data.test_available) = (50, available);
        run
    };
    let text = tested(&group(&[limited(100), limited(200)]));
    let all = "after training on all 60000 samples";
    assert_eq!(
        text,
        format!(
            "the first 50 of 100 test samples, {all} (test available 100), or the first 50 of 200 test samples, {all} \
             (test available 200)"
        )
    );
}
