//! Findings: what the rows of a table show, in one line each. A row is a configuration: one run or its
//! repeats. A job is a group of rows that do the same work, so that their times can be compared.
//!
//! Some findings also answer one of the questions that a reader asks first. The page shows these answers on a
//! card at its top, each as a label, a short value and a line of text.

use std::fmt;

use itertools::Itertools;

use super::glance;
use super::overview::{fastest, jobs, of_job, of_lone_row, standing};
use super::rows::{Row, varied};
use super::summary::speed_up;

/// A question that the card answers, in the order of the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// How accurate is the result?
    Result,
    /// How accurate would a model be that always predicts the largest class?
    Largest,
    /// Which data set was learned?
    Data,
    /// Which network learned it?
    Network,
    /// How long did the training take?
    Time,
    /// Which configuration is the fastest?
    Fastest,
    /// How much slower is another transport than mpi?
    Transport,
    /// How efficient are several ranks?
    Efficiency,
    /// How much accuracy do more ranks cost?
    Accuracy,
    /// How small and how accurate is the int8 model?
    Int8,
    /// How much memory does a rank need?
    Memory,
}

/// A finding about rows: a line of the list of findings, an answer on the card, or both.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Name of the job with a colon; empty if the report has a single job.
    pub job: String,
    /// The finding as a line of text.
    pub text: String,
    /// The answer that the finding gives on the card; `None` if it is only in the list.
    pub answer: Option<Answer>,
    /// Whether the finding is in the list.
    pub is_listed: bool,
    /// If the answers of several findings have the same label, the card shows the finding with the largest
    /// weight. Of equal weights, it shows the first.
    pub weight: f64,
}

/// An answer on the card.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The question.
    pub question: Question,
    /// The question in a word or two.
    pub label: String,
    /// The answer in a word or two.
    pub value: String,
}

impl<T: Into<String>> From<T> for Finding {
    fn from(text: T) -> Self {
        Self { job: String::new(), text: text.into(), answer: None, is_listed: true, weight: 0.0 }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.job, self.text)
    }
}

impl Finding {
    /// Makes a finding that is on the card but not in the list.
    pub fn of_card(
        question: Question,
        label: impl Into<String>,
        value: impl Into<String>,
        text: String,
    ) -> Self {
        Self { is_listed: false, ..Self::from(text).answers(question, label, value) }
    }

    /// Adds an answer to the finding.
    pub fn answers(self, question: Question, label: impl Into<String>, value: impl Into<String>) -> Self {
        Self { answer: Some(Answer { question, label: label.into(), value: value.into() }), ..self }
    }

    /// Returns job and text. If the text begins with `label` and a colon, this beginning is left out: the
    /// card shows the label before the text.
    pub fn behind(&self, label: &str) -> String {
        let text = self.text.strip_prefix(label).and_then(|text| text.strip_prefix(": "));
        format!("{}{}", self.job, text.unwrap_or(&self.text))
    }
}

/// Selects the answers on the card, in the order of the questions.
///
/// If several jobs, or several parts of the page, have an answer with the same label, the answer with the
/// largest weight is shown: a job that lost no accuracy must not hide a job that did. Of equal weights, the
/// first is shown. `several` is true if several parts have answers; questions about a single training are
/// then left out.
pub fn answers<'a, P>(
    all: impl Iterator<Item = (P, &'a Finding)>,
    several: bool,
) -> Vec<(P, &'a Finding, &'a Answer)> {
    let of_one = Question::Largest..=Question::Time;
    all.filter_map(|(part, finding)| Some((part, finding, finding.answer.as_ref()?)))
        .filter(|(.., answer)| !(several && of_one.contains(&answer.question)))
        .sorted_by(|(_, a, _), (_, b, _)| b.weight.total_cmp(&a.weight))
        .unique_by(|(.., answer)| &answer.label)
        .sorted_by_key(|(.., answer)| answer.question)
        .collect()
}

/// Returns all findings of a table: the findings of each job, and the result at a glance, which only the card
/// shows. If there are several jobs, a job of a single row is not compared with anything. If the table has a
/// single row, findings about its test and its curves are included.
pub fn findings(rows: &[Row<'_>], baseline: &str) -> Vec<Finding> {
    let mut found = match rows {
        [] => return vec!["no finished run".into()],
        [row] => glance::of_row(row),
        rows => glance::of_rows(rows),
    };
    for (job, own) in jobs(rows) {
        let mut of_own =
            if own.len() > 1 || own.len() == rows.len() { of_job(&own, baseline) } else { of_lone_row(&own) };
        of_own.extend([efficiency(&own, baseline), memory(&own, baseline)].into_iter().flatten());
        found.extend(of_own.into_iter().map(|finding| Finding { job: job.clone(), ..finding }));
    }
    if let [row] = rows {
        found.extend(glance::of_test(row).into_iter().map(Finding::from));
    }
    found
}

/// Returns the efficiency of the fastest row that is not on the topology `baseline` and has an efficiency in
/// the table. Rows in which ranks do not share cores are preferred.
fn efficiency(rows: &[Row<'_>], baseline: &str) -> Option<Finding> {
    let sped_up = |row: &Row<'_>| speed_up(row, row.baseline(rows, baseline)?);
    let has = |row: &&Row<'_>| row.setting("topology") != baseline && sped_up(row).is_some();
    let standing = standing(rows);
    let row = fastest(standing.iter().filter(has)).or_else(|| fastest(rows.iter().filter(has)))?;
    let place = |row: &Row<'_>| row.place(&varied(rows));
    let text = format!("of {}, over {}", place(row), place(row.baseline(rows, baseline)?));
    Some(Finding::of_card(Question::Efficiency, "efficiency", format!("{:.0}%", sped_up(row)?.1), text))
}

/// Returns the memory of a rank in the fastest row, and in the row on the topology `baseline` with the same
/// settings. If no row has reliable times, takes the first row instead of the fastest.
fn memory(rows: &[Row<'_>], baseline: &str) -> Option<Finding> {
    let peak = |row: &Row<'_>| row.spread(|run| run.results.peak_rss_mb).median;
    let place = |row: &Row<'_>| row.place(&varied(rows));
    let standing = standing(rows);
    let row = fastest(standing.iter()).or_else(|| fastest(rows.iter())).or(rows.first())?;
    let base = row.baseline(rows, baseline).filter(|base| base.ranks() != row.ranks());
    let beside = base.map_or_else(String::new, |base| format!(", {:.0} MB on {}", peak(base), place(base)));
    let text = format!("peak of a rank on {}{beside}", place(row));
    Some(Finding::of_card(Question::Memory, "memory", format!("{:.0} MB", peak(row)), text))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::rows::group;
    use crate::runs::Run;
    use crate::testing::{run, tells};

    /// Label, answer and text of each question on the card of `runs`.
    pub fn card(runs: &[Run]) -> Vec<[String; 3]> {
        let found = findings(&group(runs), "1x1");
        let answers = answers(found.iter().map(|finding| ((), finding)), false).into_iter();
        let texts = |(_, finding, Answer { label, value, .. }): ((), &Finding, &Answer)| {
            [label.clone(), value.clone(), finding.behind(label)]
        };
        answers.map(texts).collect()
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
        let expected: [(_, _, &[&str]); 5] = [
            ("fastest", "1x2 (mpi)", &["1x2 (mpi)", "1.60 times", "1x1", "80%", "1 oversubscribed row"]),
            ("mpi : gloo", "1 : 1.50", &["gloo", "1.50 times", "mpi", "1x2", "1 oversubscribed row"]),
            ("efficiency", "80%", &["1x2 (mpi)", "1x1 (mpi)"]),
            (
                "accuracy lost",
                "1.50 points, with fewer updates",
                &["96.00%", "2x2 (mpi)", "97.50%", "1x1 (mpi)", "-1.50 points", "1407 updates", "5625"],
            ),
            ("memory", "50 MB", &["peak", "1x2 (mpi)", "77 MB", "1x1 (mpi)"]),
        ];
        check_card(&card(&runs)[2..], &expected);
    }

    /// Checks labels and answers, and that each text has its facts.
    pub fn check_card(card: &[[String; 3]], expected: &[(&str, &str, &[&str])]) {
        assert_eq!(card.len(), expected.len(), "{card:?}");
        for ([label, value, text], (expected_label, expected_value, facts)) in card.iter().zip(expected) {
            assert_eq!([label, value], [expected_label, expected_value]);
            assert!(tells(text, facts), "{label}: {text} lacks one of {facts:?}");
        }
    }

    /// Answer and text of one question.
    fn answer(runs: &[Run], label: &str) -> [String; 2] {
        let found = card(runs).into_iter().find(|fact| fact[0] == label);
        found.map_or_else(Default::default, |[_, value, text]| [value, text])
    }

    #[test]
    fn several_jobs_are_named() {
        let models = ["mlp", "vgg"].map(|model| run((1, 1), &["--model", model], 4.0));
        let [value, text] = answer(&models, "memory");
        assert!(value == "50 MB" && tells(&text, &["mlp: ", "1x1 (mpi)"]), "{value}, {text}");
        let mut runs = models.to_vec();
        runs.extend(["mlp", "vgg"].map(|model| run((1, 2), &["--model", model], 2.5)));
        assert!(answer(&runs, "accuracy lost")[1].starts_with("mlp: "), "{:?}", card(&runs));
        runs[3].results.test_accuracy = 80.0;
        let [value, text] = answer(&runs, "accuracy lost");
        assert!(
            value.starts_with("17.50 points") && text.starts_with("vgg: "),
            "the largest loss: {value}, {text}"
        );
        runs[0].results.others_cpu_percent = Some(50.0);
        let [value, text] = answer(&runs, "efficiency");
        assert!(value == "80%" && text.starts_with("vgg: "), "the first job with an answer: {text}");
    }

    #[test]
    fn the_efficiency_is_the_cell_of_the_table() {
        let sgd = ["--optimizer", "sgd"];
        let runs =
            [run((1, 1), &[], 8.0), run((1, 1), &sgd, 3.0), run((1, 2), &[], 2.5), run((1, 2), &sgd, 2.8)];
        let [value, text] = answer(&runs, "efficiency");
        let facts = ["1x2 (mpi, optimizer adam)", "1x1 (mpi, optimizer adam)"];
        assert!(value == "160%" && tells(&text, &facts), "{value}, {text}");
    }

    #[test]
    fn a_row_like_the_fastest_one_is_counted() {
        let runs = [run((1, 1), &[], 8.0), run((1, 2), &[], 4.1), run((2, 1), &[], 4.0)];
        assert!(answer(&runs, "fastest")[1].contains("(1 other row "), "{:?}", card(&runs));
    }

    #[test]
    fn differences_within_noise_are_named_as_such() {
        let gloo = ["--backend", "gloo"];
        let runs = [run((1, 1), &[], 8.0), run((1, 2), &[], 7.9), run((1, 2), &gloo, 8.1)];
        for label in ["fastest", "mpi : gloo", "accuracy lost"] {
            assert_eq!(answer(&runs, label)[0], "none beyond noise", "{label}");
        }
        let batches = ["16", "64"].map(|size| run((1, 1), &["--batch-size", size], 4.0));
        assert_eq!(answer(&batches, "fastest")[0], "none beyond noise");
    }

    #[test]
    fn one_run_has_its_memory_and_other_settings_the_fastest() {
        let [value, text] = answer(&[run((1, 2), &[], 8.0)], "memory");
        assert!(value == "50 MB" && text.contains("1x2 (mpi)"), "{value}, {text}");
        let sgd = ["--optimizer", "sgd"];
        assert_eq!(answer(&[run((1, 1), &[], 8.0), run((1, 1), &sgd, 4.0)], "fastest")[0], "optimizer sgd");
        assert!(card(&[]).is_empty());
    }
}
