//! Time to accuracy: the columns of `--target-accuracy`, and which recipe keeps the accuracy of one rank.

use itertools::Itertools;

use super::rows::{Row, varied};
use super::sheet::{Cell, Column, Field};
use super::summary::{Dispersion, Measure, paths};

/// Seconds of training before the test that reached the target.
const TIME: Measure =
    Measure::new("s to target", "seconds_to_target", |run| run.results.seconds_to_target.unwrap_or(f64::NAN))
        .timed()
        .means("Seconds of training before the first test that reached --target-accuracy, without the tests");

const EPOCHS: Measure = Measure::new("epochs to target", "epochs_to_target", |run| {
    run.results.epochs_to_target.unwrap_or(f64::NAN)
})
.hide_order(6)
.beside(Dispersion::Range)
.means("Epochs before the first test that reached --target-accuracy");

/// Returns the columns of the time to the target accuracy.
pub fn columns<'c, 'a>() -> [Field<'c, Row<'a>>; 3] {
    let [time, epochs] = [TIME, EPOCHS].map(|measure| {
        measure.column().shows(move |row: &Row<'_>| missed(row).unwrap_or_else(|| measure.cell(row)))
    });
    let reached = Column::number("reached target", "reached_target")
        .means("Runs that reached --target-accuracy; if not all did, there is no time to it")
        .for_programs();
    let reached = reached.shows(|row: &Row<'_>| {
        let reached: Option<Vec<bool>> = row.runs.iter().map(|run| run.results.target_reached).collect();
        let count = |reached: Vec<bool>| reached.into_iter().filter(|reached| *reached).count();
        Cell::maybe(reached.map(|reached| Cell::number(count(reached) as f64, 0, paths(row))))
    });
    [time, epochs, reached]
}

/// Returns the cell of a row with a run that did not reach the target. `None` if all runs reached it, or if
/// they had no target.
fn missed(row: &Row<'_>) -> Option<Cell> {
    let missed = row.runs.iter().filter(|run| run.results.target_reached == Some(false)).count();
    let all = row.runs.len();
    let text = if missed == all { "not reached".into() } else { format!("not reached by {missed} of {all}") };
    (missed > 0).then(|| Cell { beside: text, ..Cell::of_runs(paths(row)) })
}

/// Whether a run of the row did not reach its target.
pub fn has_missed(row: &Row<'_>) -> bool {
    missed(row).is_some()
}

/// Says which rows with the most ranks are as accurate as the most accurate row on the topology `baseline`,
/// within half a point. `None` if no row scales its learning rate by the number of ranks.
pub fn accurate_on_most_ranks(rows: &[Row<'_>], baseline: &str) -> Option<String> {
    /// Largest loss of accuracy, in points.
    const WITHIN: f64 = 0.5;
    let mut varied = varied(rows);
    varied.retain(|name| !["seed", "epochs_run"].contains(&name.as_str()));
    let accuracy = |row: &Row<'_>| row.spread(|run| run.results.test_accuracy).median;
    let on_baseline = rows.iter().filter(|row| row.setting("topology") == baseline);
    let base = on_baseline.max_by(|a, b| accuracy(a).total_cmp(&accuracy(b)))?;
    let most = rows.iter().map(Row::ranks).max().filter(|most| *most > base.ranks())?;
    if !varied.iter().any(|name| name == "lr_scaling") {
        return None;
    }
    let name = |row: &Row<'_>| format!("{} with {:.2}%", row.told(&varied).join(", "), accuracy(row));
    let of_most = rows.iter().filter(|row| row.ranks() == most);
    let (kept, lost): (Vec<&Row<'_>>, Vec<&Row<'_>>) =
        of_most.partition(|row| accuracy(row) >= accuracy(base) - WITHIN);
    let listed = |rows: &[&Row<'_>]| match rows {
        [] => "none".into(),
        rows => rows.iter().map(|row| format!("{} ({})", row.setting("topology"), name(row))).join("; "),
    };
    Some(format!(
        "Most accurate on {baseline}: {}. On {most} ranks, within {WITHIN} points: {}. Less accurate: {}.",
        name(base),
        listed(&kept),
        listed(&lost)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::testing::run;

    #[test]
    fn the_recipes_that_keep_the_accuracy_of_one_rank_are_named() {
        let with = |topology, scaling: &str, accuracy| {
            let mut run = run(topology, &[], 4.0);
            run.record.config.insert("lr_scaling".into(), scaling.into());
            run.results.test_accuracy = accuracy;
            run
        };
        let runs = [
            with((1, 1), "none", 97.5),
            with((1, 2), "none", 97.4),
            with((2, 2), "none", 96.5),
            with((2, 2), "sqrt", 97.0),
            with((2, 2), "linear", 98.0),
        ];
        let rows = group(&runs);
        let text = accurate_on_most_ranks(&rows, "1x1").unwrap();
        let [kept, lost] = ["within 0.5 points: ", "Less accurate: "]
            .map(|title| text.split(title).nth(1).unwrap().split(". ").next().unwrap());
        assert!(kept.contains("linear with 98.00%") && kept.contains("sqrt with 97.00%"), "{text}");
        assert!(!kept.contains("96.50%") && lost.contains("96.50%"), "{text}");
        assert_eq!(accurate_on_most_ranks(&rows[..2], "1x1"), None, "no scaling");
        assert_eq!(accurate_on_most_ranks(&rows[1..], "1x1"), None, "no baseline");
    }
}
