//! Remarks below the main table: what a reader would otherwise take for something else.

use std::collections::BTreeMap;

use super::footnotes::footnotes;
use super::noise::Interval;
use super::rows::{Row, varied};
use super::runs::Run;
use super::summary::speed_up;
use itertools::Itertools;
use run_record::{LEAST_RISE, count};

/// The remarks on the table of `rows`.
pub fn remarks(rows: &[Row<'_>], baseline: &str, overfits: bool) -> Vec<String> {
    let varied = varied(rows);
    let names: Vec<String> = rows.iter().map(|row| row.place(&varied)).collect();
    let any = |is: fn(&Row<'_>) -> bool| rows.iter().any(is);
    let distinct = |of: fn(&Run) -> String| -> Vec<String> {
        rows.iter().flat_map(|row| &row.runs).map(|run| of(run)).sorted().dedup().collect()
    };
    let seeds = rows.iter().filter(|row| row.seeds().len() > 1).map(|row| row.setting("seed"));
    let seeds = seeds.sorted().dedup().join(" or ");
    let processors = distinct(Run::processors);
    let builds = distinct(|run| run.record.git.clone());
    let rules = [
        fewer_updates(rows),
        varied.iter().any(|name| name == "accumulate").then(|| {
            "Accumulation: a step is `accumulate` batches of each rank, so ms/step is not that of one batch, and there \
             are fewer updates in an epoch."
                .into()
        }),
        overfits.then(|| {
            format!(
                "Overfits after the epoch with the lowest test loss, if two or more epochs follow, all with a higher \
                 test loss, the last by {:.0}% or more, while training loss falls.",
                100.0 * LEAST_RISE
            )
        }),
        any(|row| Interval::of(row, |run| run.results.test_accuracy).is_some()).then(|| {
            "Test acc %: in square brackets the 95% interval (Wilson) of as many tested samples, over several runs from \
             the lowest bound to the highest."
                .into()
        }),
        any(|row| row.runs.len() > 1)
            .then(|| "Repeats: median, and in brackets the range of times, from minimum to maximum.".into()),
        (!seeds.is_empty()).then(|| {
            format!(
                "Several seeds in a row ({}): ± is the sample standard deviation of an accuracy over them.",
                seeds
            )
        }),
        any(|row| row.first().record.oversubscribed).then(|| {
            "Oversubscribed: ranks shared cores and took turns; timings are not representative of the topology."
                .into()
        }),
        (processors.len() > 1).then(|| {
            format!(
                "These runs are from several kinds of machines ({}), whose times do not compare.",
                processors.join("; ")
            )
        }),
        (builds.len() > 1).then(|| {
            format!(
                "These runs are from several builds of the program ({}), which may explain differences.",
                builds.join(", ")
            )
        }),
        any(|row| row.first().record.shared_machine)
            .then(|| "Shared: the hosts are one machine under several names.".into()),
    ];
    let footnotes = footnotes(rows, &names);
    [basis(rows, baseline)].into_iter().chain(footnotes).chain(rules.into_iter().flatten()).collect()
}

/// What times, accuracies and memory are of.
fn basis(rows: &[Row<'_>], baseline: &str) -> String {
    let has_speed_up = |row: &Row<'_>| speed_up(row, row.baseline(rows, baseline)?);
    let relative = match rows.iter().any(|row| row.setting("topology") == baseline) {
        true if rows.iter().all(|row| row.setting("topology") == baseline) => String::new(),
        // The footnotes of doubted rows say why.
        true if rows.iter().all(|row| has_speed_up(row).is_none()) => String::new(),
        true => {
            let other = |row: &Row<'_>| {
                let base = row.baseline(rows, baseline)?;
                (speed_up(row, base).is_some() && base.setting("backend") != row.setting("backend"))
                    .then_some(())
            };
            let other = match rows.iter().any(|row| other(row).is_some()) {
                true => ", of a backend without it to that of another, as one rank communicates with none",
                false => "",
            };
            format!("speed-up and efficiency are relative to {baseline} with the same settings{other}; ")
        }
        false => format!("without a run on {baseline} there is no speed-up; "),
    };
    format!(
        "Train s excludes tests; {relative}accuracies are those of the last epoch, test accuracy over {}. Memory is \
         that of the rank with the highest value: resident, and live tensors in a training step.",
        tested(rows)
    )
}

/// Which samples were tested, and which were trained on where those are not all.
pub fn tested(rows: &[Row<'_>]) -> String {
    let of = |row: &Row<'_>| match &row.first().record.data {
        Some(data) => {
            let part = |used: usize, all: usize| {
                if used < all { format!("the first {used} of {all}") } else { format!("all {all}") }
            };
            let whole =
                data.test_samples == data.test_available && data.train_samples == data.train_available;
            match whole {
                true => "the whole test set".to_owned(),
                false => format!(
                    "{} test samples, after training on {} samples",
                    part(data.test_samples, data.test_available),
                    part(data.train_samples, data.train_available)
                ),
            }
        }
        // Earlier versions did not record how many there are.
        None => match row.first().config.test_samples {
            None => "the whole test set".to_owned(),
            Some(samples) => format!("the first {samples} test samples"),
        },
    };
    rows.iter().map(of).sorted().dedup().join(", or ")
}

/// More ranks make fewer updates where the batch is each rank's.
fn fewer_updates(rows: &[Row<'_>]) -> Option<String> {
    let except = ["topology", "oversubscribed", "backend", "gloo_algorithm", "interface", "launcher"];
    let mut varied = varied(rows);
    varied.retain(|name| !except.contains(&name.as_str()));
    let mut found: BTreeMap<Vec<String>, Option<String>> = BTreeMap::new();
    for few in rows {
        let same = |row: &&Row<'_>| row.equals_except(few, &except) && row.ranks() > few.ranks();
        let Some(many) = rows.iter().rev().find(same) else {
            found.entry(few.words(&varied)).or_default();
            continue;
        };
        let steps = |row: &Row<'_>| row.first().results.steps;
        // Early stopping may have ended one of them before.
        let in_equal_epochs = many.first().epochs_done() == few.first().epochs_done();
        let fewer = (in_equal_epochs && steps(many) < steps(few)).then(|| {
            format!(
                "{} makes {} where {} makes {}",
                many.setting("topology"),
                count(steps(many), "update"),
                few.setting("topology"),
                steps(few)
            )
        });
        let of_words = found.entry(few.words(&varied)).or_default();
        *of_words = of_words.take().or(fewer);
    }
    let (words, fewer) = found.iter().find_map(|(words, fewer)| Some((words, fewer.as_ref()?)))?;
    let of = match found.values().all(|other| other.as_ref() == Some(fewer)) {
        true => String::new(),
        false => format!(" ({})", if words.is_empty() { "plain".into() } else { words.join(", ") }),
    };
    Some(format!("The batch is each rank's: {fewer}{of}, in equally many epochs."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::runs::Run;
    use crate::testing::run;
    use run_record::DataRecord;
    use run_record::Machine;

    fn of(runs: &[Run]) -> String {
        remarks(&group(runs), "1x1", false).join(" ")
    }

    #[test]
    fn runs_of_several_builds_are_reported() {
        let mut runs = vec![run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
        runs.iter_mut().for_each(|run| run.record.git = "aaaa".into());
        assert!(!of(&runs).contains("builds"));
        runs[1].record.git = "bbbb".into();
        assert!(of(&runs).contains("(aaaa, bbbb)"), "{}", of(&runs));
    }

    #[test]
    fn runs_of_several_processors_are_reported() {
        let mut runs = vec![run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
        let machine = |cpu: &str| Machine {
            host: "node0".into(),
            cpu: cpu.into(),
            memory_bytes: 0,
            kernel: "6.1".into(),
        };
        runs.iter_mut().for_each(|run| run.record.machines = vec![machine("slow"), machine("slow")]);
        assert!(!of(&runs).contains("kinds of machines"));
        runs[1].record.machines = vec![machine("fast"), machine("slow")];
        assert!(of(&runs).contains("several kinds of machines (fast and slow; slow)"), "{}", of(&runs));
    }

    #[test]
    fn early_stopping_does_not_explain_itself_by_the_batch() {
        let mut runs = [run((1, 1), &[], 8.0), run((1, 2), &[], 4.0)];
        runs[1].results.stopped_early_after = Some(2);
        assert!(!of(&runs).contains("in equally many epochs"), "{}", of(&runs));
    }

    #[test]
    fn a_speed_up_is_explained_where_there_is_one() {
        let runs = |seconds| [run((1, 1), &[], seconds), run((1, 2), &[], seconds)];
        assert!(of(&runs(8.0)).contains("speed-up and efficiency are relative to 1x1"));
        let gloo = [run((1, 1), &["--backend", "gloo"], 8.0), run((1, 2), &[], 4.0)];
        assert!(of(&gloo).contains("of a backend without it to that of another"), "{}", of(&gloo));
        assert!(!of(&runs(8.0)).contains("that of another"));
        let short = of(&runs(1.0));
        assert!(!short.contains("speed-up") && short.contains("Too short"), "{short}");
    }

    #[test]
    fn shared_cores_and_machines_are_explained() {
        let mut runs = vec![run((2, 2), &[], 4.0)];
        runs[0].record.oversubscribed = true;
        runs[0].record.shared_machine = true;
        assert!(of(&runs).contains("not representative") && of(&runs).contains("Shared:"), "{}", of(&runs));
    }

    #[test]
    fn updates_and_accumulated_steps_are_explained_where_they_differ() {
        let runs = [run((1, 1), &[], 8.0), run((1, 2), &["--backend", "gloo"], 4.0)];
        assert!(of(&runs).contains("1x2 makes 2814 updates where 1x1 makes 5625"), "{}", of(&runs));
        let few = ["--train-samples", "6000"];
        let jobs = [runs[0].clone(), runs[1].clone(), run((1, 1), &few, 8.0), run((1, 2), &few, 4.0)];
        let text = of(&jobs.map(|mut run| {
            run.results.steps /= if run.record.data.as_ref().unwrap().train_samples == 6000 { 10 } else { 1 };
            run
        }));
        assert!(text.contains("2814 updates where 1x1 makes 5625 (plain), in equally"), "{text}");
        assert!(!of(&runs[..1]).contains("updates") && !of(&runs).contains("Accumulation"));
        let accumulated = [run((1, 2), &[], 8.0), run((1, 2), &["--accumulate", "4"], 4.0)];
        assert!(of(&accumulated).contains("a step is `accumulate` batches"), "{}", of(&accumulated));
    }

    #[test]
    fn the_whole_test_set_is_claimed_only_where_all_of_it_was_tested() {
        let mut runs = vec![run((1, 1), &[], 8.0)];
        assert!(of(&runs).contains("over the whole test set"));
        let all = DataRecord {
            train_samples: 6000,
            train_available: 6000,
            test_samples: 500,
            test_available: 500,
            ..DataRecord::default()
        };
        runs[0].record.data = None;
        assert!(of(&runs).contains("over the whole test set"));
        runs[0].record.data = Some(all.clone());
        assert!(of(&runs).contains("over the whole test set"));
        runs[0].record.data = Some(DataRecord { test_samples: 100, train_samples: 640, ..all });
        let expected =
            "over the first 100 of 500 test samples, after training on the first 640 of 6000 samples";
        assert!(of(&runs).contains(expected), "{}", of(&runs));
        let mut earlier = [run((1, 1), &["--test-samples", "7"], 8.0)];
        earlier[0].record.data = None;
        let text = of(&earlier);
        assert!(text.contains("over the first 7 test samples") && !text.contains("interval"), "{text}");
    }
}
