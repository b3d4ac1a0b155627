//! The card at the top of the page: what a reader asks first, each in a word and a line.

use super::measures::times_smaller;
use super::overview::{
    accuracy, differ, fastest, fastest_topology, interval, jobs, most_ranks, other_backends, standing,
    widest_pair,
};
use super::rows::{Row, varied};

/// What is asked, in the order of the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// Which configuration takes the least time.
    Fastest,
    /// What another transport costs beside mpi.
    Transport,
    /// The efficiency of several ranks.
    Efficiency,
    /// The accuracy that they cost.
    Accuracy,
    /// Size and accuracy of an integer model.
    Int8,
    /// Memory of a rank.
    Memory,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// What is asked.
    pub question: Question,
    /// The same in a word.
    pub label: String,
    /// The answer.
    pub value: String,
    /// Of which rows.
    pub text: String,
}

/// The answers of the rows of the first job; times are of rows that stand for their topology or, for lack of these, of
/// all.
pub fn facts(rows: &[Row<'_>], baseline: &str) -> Vec<Fact> {
    let Some((_, rows)) = jobs(rows).into_iter().next() else { return Vec::new() };
    let standing = Some(standing(&rows)).filter(|standing| !standing.is_empty());
    let timed = standing.as_deref().unwrap_or(&rows);
    let varied = varied(&rows);
    let on = |row: &Row<'_>| row.place(&varied);
    let mut facts = times(timed, baseline, &on);
    facts.extend(lost(&rows, baseline, &on));
    facts.extend(int8(&rows, &on));
    facts.extend(memory(timed, baseline, &on));
    facts
}

fn fact(
    question: Question,
    label: impl Into<String>,
    value: impl Into<String>,
    text: impl Into<String>,
) -> Fact {
    Fact { question, label: label.into(), value: value.into(), text: text.into() }
}

/// The fastest row, mpi beside the other backends, and efficiency.
fn times(rows: &[Row<'_>], baseline: &str, on: &impl Fn(&Row<'_>) -> String) -> Vec<Fact> {
    let seconds = |row: &Row<'_>| row.train_seconds().median;
    let mut facts = Vec::new();
    let topologies = fastest_topology(rows, baseline);
    let first = fastest(rows.iter()).filter(|_| rows.len() > 1);
    facts.extend(first.map(|row| {
        let relative = match topologies {
            Some((other, base, _)) if differ(other, base) && seconds(other) < seconds(base) => {
                format!(", {:.2} times as fast as {}", seconds(base) / seconds(other), on(base))
            }
            Some((other, base, _)) if differ(other, base) => {
                format!(", {} {:.2} s", on(other), seconds(other))
            }
            Some((other, base, _)) => format!(", {} and {} do not differ beyond noise", on(other), on(base)),
            None => String::new(),
        };
        fact(Question::Fastest, "fastest", on(row), format!("{:.2} s of training{relative}", seconds(row)))
    }));
    facts.extend(other_backends(rows).iter().filter_map(|other| {
        let (ratio, pair) = widest_pair(rows, other)?;
        let place = pair.base.setting("topology");
        let text = match differ(pair.other, pair.base) {
            true if ratio.count > 1 => {
                format!("training time on {place}; from {:.2} to {:.2} over repeats", ratio.min, ratio.max)
            }
            true => format!("training time on {place}"),
            false => format!("training time on {place}: no difference beyond noise"),
        };
        Some(fact(Question::Transport, format!("mpi : {other}"), format!("1 : {:.2}", ratio.median), text))
    }));
    facts.extend(topologies.map(|(row, base, _)| {
        let efficiency = 100.0 * seconds(base) * base.ranks() as f64 / (seconds(row) * row.ranks() as f64);
        fact(
            Question::Efficiency,
            "efficiency",
            format!("{efficiency:.0}%"),
            format!("of {}, over {}", on(row), on(base)),
        )
    }));
    facts
}

/// The test accuracy that most ranks cost.
fn lost(rows: &[Row<'_>], baseline: &str, on: &impl Fn(&Row<'_>) -> String) -> Option<Fact> {
    let (many, base) = most_ranks(rows, baseline)?;
    let value = match interval(many)?.is_apart(interval(base)?) {
        true => format!("{:.2} points", accuracy(base) - accuracy(many)),
        false => "none beyond noise".into(),
    };
    let text = format!("{:.2}% on {}, {:.2}% on {}", accuracy(many), on(many), accuracy(base), on(base));
    Some(fact(Question::Accuracy, "accuracy lost", value, text))
}

/// Size and accuracy of the first integer model.
fn int8(rows: &[Row<'_>], on: &impl Fn(&Row<'_>) -> String) -> Option<Fact> {
    let row = rows.iter().find(|row| row.spread(times_smaller).is_known())?;
    let of_int8 = row.spread(|run| run.results.int8_test_accuracy.unwrap_or(f64::NAN));
    let accuracies = match of_int8.is_known() {
        true => format!(": test accuracy {:.2}%, {:.2}% in float", of_int8.median, accuracy(row)),
        false => String::new(),
    };
    let value = format!("{:.2} times smaller", row.spread(times_smaller).median);
    Some(fact(Question::Int8, "int8", value, format!("{}{accuracies}", on(row))))
}

/// Memory of a rank of the fastest row, and of `baseline`'s.
fn memory(rows: &[Row<'_>], baseline: &str, on: &impl Fn(&Row<'_>) -> String) -> Option<Fact> {
    let peak = |row: &Row<'_>| row.spread(|run| run.results.peak_rss_mb).median;
    let row = fastest(rows.iter()).or(rows.first())?;
    let base = row.baseline(rows, baseline).filter(|base| base.ranks() != row.ranks());
    let beside = base.map_or_else(String::new, |base| format!(", {:.0} MB on {}", peak(base), on(base)));
    Some(fact(
        Question::Memory,
        "memory",
        format!("{:.0} MB", peak(row)),
        format!("peak of a rank on {}{beside}", on(row)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::runs::Run;
    use crate::testing::run;

    fn of(runs: &[Run]) -> Vec<[String; 3]> {
        facts(&group(runs), "1x1").into_iter().map(|fact| [fact.label, fact.value, fact.text]).collect()
    }

    #[test]
    fn topologies_have_the_answers_of_all_questions() {
        let gloo = ["--backend", "gloo"];
        let mut runs = vec![run((1, 1), &[], 8.0), run((1, 2), &[], 5.0), run((1, 2), &gloo, 7.5)];
        runs[0].results.peak_rss_mb = 77.0;
        runs[2].results.test_accuracy = 90.0;
        runs.push(run((2, 2), &[], 1.0));
        runs[3].record.oversubscribed = true;
        runs[3].results.test_accuracy = 96.0;
        let expected = [
            ["fastest", "1x2 (mpi)", "5.00 s of training, 1.60 times as fast as 1x1 (mpi)"],
            ["mpi : gloo", "1 : 1.50", "training time on 1x2"],
            ["efficiency", "80%", "of 1x2 (mpi), over 1x1 (mpi)"],
            ["accuracy lost", "1.50 points", "96.00% on 2x2 (mpi), 97.50% on 1x1 (mpi)"],
            ["memory", "50 MB", "peak of a rank on 1x2 (mpi), 77 MB on 1x1 (mpi)"],
        ];
        assert_eq!(of(&runs), expected);
    }

    #[test]
    fn differences_within_noise_are_named_as_such() {
        let gloo = ["--backend", "gloo"];
        let found = of(&[run((1, 1), &[], 8.0), run((1, 2), &[], 7.9), run((1, 2), &gloo, 8.1)]);
        assert!(found[0][2].ends_with("1x2 (mpi) and 1x1 (mpi) do not differ beyond noise"), "{found:?}");
        assert!(found[1][2].ends_with("no difference beyond noise"), "{found:?}");
        assert_eq!(found[3][1], "none beyond noise");
    }

    #[test]
    fn one_run_has_its_memory_and_other_settings_the_fastest() {
        assert_eq!(of(&[run((1, 2), &[], 8.0)]), [["memory", "50 MB", "peak of a rank on 1x2 (mpi)"]]);
        let adam = ["--optimizer", "sgd"];
        let found = of(&[run((1, 1), &[], 8.0), run((1, 1), &adam, 4.0)]);
        assert_eq!(found[0], ["fastest", "1x1 (mpi, optimizer sgd)", "4.00 s of training"]);
        assert!(of(&[]).is_empty());
    }
}
