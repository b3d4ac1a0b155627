//! Whether a row's times can be compared: long enough, undisturbed, steady, repeated like the others.

use super::rows::Row;

/// Shorter trainings, in seconds, can be compared only if they are repeated: one busy moment changes
/// the time of a single one by several times.
pub const SHORTEST_SECONDS: f64 = 2.0;
/// Repeats of a shorter training, whose median says something.
pub const REPEATS: usize = 3;
/// Percent of a machine's CPU time that other programs may use.
pub const OTHERS_PERCENT: f64 = 10.0;

/// Range of repeated times, in percent of their median, beyond which no ratio is computed: it would be off by more
/// than what a second transport or launcher usually costs.
pub const RANGE_PERCENT: f64 = 25.0;

/// A reason to doubt a row's times. The order is that of their marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// The training took less than [`SHORTEST_SECONDS`], and has fewer than [`REPEATS`].
    Short,
    /// Other programs used more than [`OTHERS_PERCENT`] of the machine.
    Disturbed,
    /// One run, where other rows have repeats.
    Single,
    /// Times of repeats have a range of more than [`RANGE_PERCENT`].
    Unsteady,
}

impl Doubt {
    /// All of them, in the order of their marks.
    pub const ALL: [Self; 4] = [Self::Short, Self::Disturbed, Self::Single, Self::Unsteady];

    /// Its mark beside a time.
    pub fn mark(self) -> &'static str {
        ["ᵃ", "ᵇ", "ᶜ", "ᶠ"][self as usize]
    }

    /// Its name for programs.
    pub fn name(self) -> &'static str {
        ["short", "disturbed", "single", "unsteady"][self as usize]
    }

    /// The footnote.
    pub fn footnote(self) -> String {
        let why = match self {
            Self::Short => {
                format!("Too short: under {SHORTEST_SECONDS} s of training, in fewer than {REPEATS} runs.")
            }
            Self::Disturbed => {
                format!(
                    "Disturbed: other programs used more than {OTHERS_PERCENT}% of the machine's CPU time."
                )
            }
            Self::Single => {
                return format!("{} Not repeated: one run, where other rows have several.", self.mark());
            }
            Self::Unsteady => {
                format!(
                    "Unsteady: times of repeats have a range of more than {RANGE_PERCENT}% of their median."
                )
            }
        };
        format!("{} {why} No ratio is computed from such a row.", self.mark())
    }
}

/// The doubts about the times of `row`, one of `rows`. Load and time are medians over repeats;
/// the load of runs of earlier versions is unknown, and not doubted.
pub fn doubts(row: &Row<'_>, rows: &[Row<'_>]) -> Vec<Doubt> {
    let others = row.spread(|run| run.results.others_cpu_percent.unwrap_or(0.0)).median;
    let is = |doubt: &Doubt| match doubt {
        Doubt::Short => row.train_seconds().median < SHORTEST_SECONDS && row.runs.len() < REPEATS,
        Doubt::Disturbed => others > OTHERS_PERCENT,
        Doubt::Single => row.runs.len() == 1 && rows.iter().any(|other| other.runs.len() > 1),
        Doubt::Unsteady => row.train_seconds().range_percent() > RANGE_PERCENT,
    };
    Doubt::ALL.into_iter().filter(is).collect()
}

/// Whether ratios of the row's times mean something: it is neither too short, nor disturbed, nor unsteady.
pub fn is_sound(row: &Row<'_>) -> bool {
    doubts(row, &[]).is_empty()
}

/// The marks of a row's doubts.
pub fn marks(doubts: &[Doubt]) -> String {
    doubts.iter().map(|doubt| doubt.mark()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::testing::run;

    #[test]
    fn short_disturbed_and_single_rows_are_doubted() {
        let mut runs = vec![run((1, 1), &[], 8.0), run((1, 1), &[], 9.0), run((1, 2), &[], 1.9)];
        runs.push(run((2, 1), &[], 4.0));
        runs[3].results.others_cpu_percent = Some(10.1);
        let rows = group(&runs);
        let found: Vec<Vec<Doubt>> = rows.iter().map(|row| doubts(row, &rows)).collect();
        use Doubt::{Disturbed, Short, Single};
        assert_eq!(found, [vec![], vec![Short, Single], vec![Disturbed, Single]]);
        assert_eq!(rows.iter().map(is_sound).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(marks(&found[1]), "ᵃᶜ");
        assert!(is_sound(&rows[0]) && Short.footnote().contains("2 s"));
    }

    #[test]
    fn a_short_training_that_is_repeated_can_be_compared() {
        let runs = |count| (0..count).map(|_| run((1, 1), &[], 0.3)).collect::<Vec<_>>();
        assert!(!is_sound(&group(&runs(2))[0]));
        assert!(is_sound(&group(&runs(3))[0]));
    }

    #[test]
    fn times_of_a_wide_range_are_doubted() {
        let of = |slowest| [run((1, 1), &[], 4.0), run((1, 1), &[], 4.0), run((1, 1), &[], slowest)];
        assert!(is_sound(&group(&of(5.0))[0]));
        let wide = of(6.4);
        let rows = group(&wide);
        assert_eq!((doubts(&rows[0], &rows), is_sound(&rows[0])), (vec![Doubt::Unsteady], false));
        assert!(Doubt::Unsteady.footnote().starts_with("ᶠ Unsteady: "));
    }

    #[test]
    fn one_disturbed_repeat_of_three_does_not_count() {
        let mut runs: Vec<_> = (0..3).map(|_| run((1, 1), &[], 8.0)).collect();
        runs[0].results.others_cpu_percent = Some(90.0);
        assert!(is_sound(&group(&runs)[0]));
        runs[1].results.others_cpu_percent = Some(90.0);
        assert!(!is_sound(&group(&runs)[0]));
    }
}
