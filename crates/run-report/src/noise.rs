//! Which differences are findings: those of times beyond the spread of repeats, and those of accuracies
//! beyond their binomial intervals.

use super::footnotes::REPEATS;
use super::rows::{Row, Spread};
use super::runs::Run;

/// Times of fewer than [`REPEATS`] runs that differ by no more, in percent, are equal: the ranges of three repeats of a
/// training of one to three seconds, undisturbed on two cores, were up to 7% of their median.
pub const FEW_PERCENT: f64 = 10.0;

/// The z of a 95% interval.
const Z: f64 = 1.959_964;

/// How it is decided that a difference is a finding, for readers.
pub fn rule() -> String {
    format!(
        "Times differ if the ranges of their repeats do not overlap and, below {REPEATS} repeats, if they are also \
         more than {FEW_PERCENT}% apart. Accuracies differ if their 95% intervals (Wilson) do not overlap; where they do, \
         more tested samples may still tell them apart. Accuracy is at chance level if the interval of every run reaches \
         down to the share of the largest class."
    )
}

/// Whether two times differ by more than noise.
pub fn times_differ(a: &Spread, b: &Spread) -> bool {
    let apart = a.max < b.min || b.max < a.min;
    let repeated = a.count >= REPEATS && b.count >= REPEATS;
    apart && (repeated || few_differ(a.median, b.median))
}

/// Whether two times of few runs differ by more than noise.
pub fn few_differ(a: f64, b: f64) -> bool {
    a.max(b) > (1.0 + FEW_PERCENT / 100.0) * a.min(b)
}

/// A 95% interval of an accuracy, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Its lower bound.
    pub low: f64,
    /// Its upper bound.
    pub high: f64,
}

impl Interval {
    /// The interval of an accuracy of `percent` on `samples` samples: Wilson, "Probable inference, the law of
    /// succession, and statistical inference" (JASA 22, 1927).
    pub fn wilson(percent: f64, samples: usize) -> Self {
        let (n, p) = (samples as f64, percent / 100.0);
        let centre = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
        let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt() / (1.0 + Z * Z / n);
        Self { low: 100.0 * (centre - half).max(0.0), high: 100.0 * (centre + half).min(1.0) }
    }

    /// The interval of the accuracy that `read` takes from each run of `row`: from the lowest bound of a run to the
    /// highest one. `None` if the accuracy or the number of tested samples is unknown.
    pub fn of(row: &Row<'_>, read: impl Fn(&Run) -> f64) -> Option<Self> {
        let intervals: Vec<Self> =
            row.runs.iter().map(|run| Self::of_run(run, &read)).collect::<Option<_>>()?;
        Some(Self {
            low: intervals.iter().map(|of| of.low).fold(f64::INFINITY, f64::min),
            high: intervals.iter().map(|of| of.high).fold(0.0, f64::max),
        })
    }

    /// The interval of the accuracy that `read` takes from `run`.
    pub fn of_run(run: &Run, read: impl Fn(&Run) -> f64) -> Option<Self> {
        let percent = Some(read(run)).filter(|percent| !percent.is_nan())?;
        Some(Self::wilson(percent, Some(tested_samples(run)).filter(|&samples| samples > 0)?))
    }

    /// Whether the intervals have no value in common.
    pub fn is_apart(self, other: Self) -> bool {
        self.high < other.low || other.high < self.low
    }
}

/// Test samples of a run; earlier versions noted those of each rank alone.
fn tested_samples(run: &Run) -> usize {
    let of_ranks = || run.results.per_rank.iter().map(|rank| rank.test_samples).sum();
    run.record.data.as_ref().map_or_else(of_ranks, |data| data.test_samples)
}

/// The accuracy, in percent, of the answer that is the largest class of the tested samples; of any one of equally
/// large classes if that is unknown.
pub fn chance(run: &Run) -> Option<f64> {
    let data = run.record.data.as_ref()?;
    match data.test_largest_class {
        Some(largest) => Some(100.0 * largest as f64 / data.test_samples.max(1) as f64),
        None => run.config.num_classes.map(|classes| 100.0 / classes.max(1) as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::testing::run;

    #[test]
    fn intervals_are_wilsons() {
        // Newcombe, "Two-sided confidence intervals for the single proportion" (Statistics in Medicine 17, 1998),
        // table I, method 3.
        for (correct, samples, low, high) in [
            (81.0, 263, 25.53, 36.62),
            (15.0, 148, 6.24, 16.05),
            (0.0, 20, 0.0, 16.11),
            (1.0, 29, 0.61, 17.18),
        ] {
            let found = Interval::wilson(100.0 * correct / samples as f64, samples);
            assert!((found.low - low).abs() < 5e-3 && (found.high - high).abs() < 5e-3, "{found:?}");
        }
    }

    #[test]
    fn times_differ_beyond_their_ranges_and_few_of_them_beyond_10_percent() {
        let of = |seconds: &[f64]| Spread::of(seconds.to_vec());
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
        let of = |runs: &[Run]| Interval::of(&group(runs)[0], |run| run.results.test_accuracy);
        let (low, high) = (Interval::wilson(96.0, 10_000).low, Interval::wilson(97.5, 10_000).high);
        assert_eq!(of(&runs), Some(Interval { low, high }));
        runs[1].record.data = None;
        assert_eq!(of(&runs[1..]), None);
    }
}
