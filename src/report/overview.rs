//! The findings of a table in lines that a reader wants first, computed from its rows.

use super::measures::{exposed_percent, stored_kb, times_smaller};
use super::quality::is_sound;
use super::ratios::pairs;
use super::rows::{Row, varied};
use super::summary::speed_up;

/// One line each: the fastest topology, mpi against gloo, accuracy and waiting of many ranks. A
/// table of one topology has its fastest row and its most accurate one.
pub fn findings(rows: &[Row<'_>], baseline: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if rows.is_empty() {
        return vec!["no finished run".into()];
    }
    let sound = rows.iter().filter(|row| is_sound(row)).count();
    if sound < rows.len() {
        lines.push(format!(
            "times of {} of {} rows are not compared: too short or disturbed",
            rows.len() - sound,
            rows.len()
        ));
    }
    match topologies(rows, baseline) {
        Some(line) => lines.push(line),
        None => lines.extend(settings(rows)),
    }
    lines.extend(transports(rows));
    lines.extend(lost_accuracy(rows, baseline));
    lines.extend(waiting(rows));
    lines.extend(smaller(rows));
    lines
}

/// The checkpoint's sizes in the first row with an integer model.
fn smaller(rows: &[Row<'_>]) -> Option<String> {
    let row = rows.iter().find(|row| row.spread(times_smaller).is_known())?;
    let [float, int8] = stored_kb(row.first())?;
    Some(format!(
        "an int8 checkpoint has {int8:.1} KB, {:.2} times smaller than {float:.1} KB in float",
        float / int8
    ))
}

fn topologies(rows: &[Row<'_>], baseline: &str) -> Option<String> {
    let faster = rows.iter().filter(|row| row.setting("topology") != baseline).filter_map(|row| {
        let (faster, efficiency) = speed_up(row, row.baseline(rows, baseline)?)?;
        Some((row, faster, efficiency))
    });
    let (row, faster, efficiency) = faster.max_by(|a, b| a.1.total_cmp(&b.1))?;
    let found = match faster < 1.0 {
        true => format!("none is as fast as {baseline}; next"),
        false => "fastest".to_owned(),
    };
    Some(format!(
        "{found}: {} ({}), {faster:.2} times as fast as {baseline} with the same settings, efficiency {efficiency:.0}%",
        row.setting("topology"),
        row.label(&varied(rows))
    ))
}

/// The fastest and the most accurate row of a table that compares settings.
fn settings(rows: &[Row<'_>]) -> Vec<String> {
    let varied = varied(rows);
    let name = |row: &Row<'_>| match row.used(&varied) {
        words if words.is_empty() => format!("{} {}", row.setting("topology"), row.setting("backend")),
        words => words.join(", "),
    };
    let sound: Vec<&Row<'_>> = rows.iter().filter(|row| is_sound(row)).collect();
    let seconds = |row: &Row<'_>| row.train_seconds().median;
    let fastest = sound.iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let slowest = sound.iter().max_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let mut lines = Vec::new();
    if let (Some(fastest), Some(slowest), true) = (fastest, slowest, sound.len() > 1) {
        lines.push(format!(
            "fastest: {} with {:.2} s; slowest: {} with {:.2} s",
            name(fastest),
            seconds(fastest),
            name(slowest),
            seconds(slowest)
        ));
    }
    let accuracy = |row: &Row<'_>| row.spread(|run| run.results.test_accuracy).median;
    let best = rows.iter().max_by(|a, b| accuracy(a).total_cmp(&accuracy(b)));
    lines.extend(
        best.filter(|_| rows.len() > 1)
            .map(|best| format!("highest test accuracy: {} with {:.2}%", name(best), accuracy(best))),
    );
    lines
}

fn transports(rows: &[Row<'_>]) -> Vec<String> {
    let pairs = pairs(rows);
    let found = pairs.iter().filter_map(|pair| Some((pair, pair.ratio()?)));
    let line = |(pair, ratio): (&super::ratios::Pair<'_, '_>, super::rows::Spread)| {
        let range = match ratio.count {
            1 => String::new(),
            _ => format!(" (from {:.2} to {:.2} over repeats)", ratio.min, ratio.max),
        };
        format!(
            "{} takes {:.2} times as long as mpi on {}{range}",
            pair.other.setting("backend"),
            ratio.median,
            pair.mpi.setting("topology")
        )
    };
    // The one of most ranks speaks for the table, which has the others.
    found.max_by_key(|(pair, _)| pair.mpi.ranks()).map(line).into_iter().collect()
}

fn lost_accuracy(rows: &[Row<'_>], baseline: &str) -> Option<String> {
    let accuracy = |row: &Row<'_>| row.spread(|run| run.results.test_accuracy).median;
    let many = rows.iter().max_by_key(|row| row.ranks())?;
    let base = many.baseline(rows, baseline).filter(|base| base.ranks() < many.ranks())?;
    Some(format!(
        "test accuracy {:.2}% on {}, {:.2}% on {baseline}: {:+.2} points",
        accuracy(many),
        many.setting("topology"),
        accuracy(base),
        accuracy(many) - accuracy(base)
    ))
}

fn waiting(rows: &[Row<'_>]) -> Option<String> {
    let share = |row: &Row<'_>| row.spread(exposed_percent).median;
    let shared = rows.iter().filter(|row| row.ranks() > 1);
    let most = shared.max_by(|a, b| share(a).total_cmp(&share(b)))?;
    Some(format!(
        "ranks wait for gradients in up to {:.1}% of the training time ({}, {})",
        share(most),
        most.setting("topology"),
        most.label(&varied(rows))
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::rows::group;
    use crate::report::runs::Run;
    use crate::report::testing::run;

    fn of(runs: &[Run]) -> String {
        findings(&group(runs), "1x1").join("\n")
    }

    #[test]
    fn topologies_have_speed_up_ratio_accuracy_and_waiting() {
        let gloo = ["--backend", "gloo"];
        let mut runs = vec![run((1, 1), &[], 8.0), run((1, 2), &[], 5.0), run((2, 2), &[], 4.0)];
        runs.push(run((2, 2), &gloo, 5.0));
        runs[2].results.test_accuracy = 96.0;
        let text = of(&runs);
        assert!(
            text.contains("fastest: 2x2 (mpi), 2.00 times as fast as 1x1") && text.contains("efficiency 50%"),
            "{text}"
        );
        assert!(text.contains("gloo takes 1.25 times as long as mpi on 2x2"), "{text}");
        assert!(text.contains("on 1x1: ") && text.contains("wait for gradients in up to 10.0%"), "{text}");
        assert!(!text.contains("not compared"), "{text}");
        let text = of(&[run((1, 1), &[], 4.0), run((1, 2), &[], 8.0)]);
        assert!(text.contains("none is as fast as 1x1; next: 1x2 (mpi), 0.50 times as fast"), "{text}");
    }

    #[test]
    fn short_rows_give_no_times_and_settings_are_compared_by_name() {
        let text = of(&[run((1, 1), &[], 1.0), run((1, 2), &[], 0.5)]);
        assert!(
            text.contains("times of 2 of 2 rows are not compared") && !text.contains("fastest"),
            "{text}"
        );
        let batch = |size, seconds| run((1, 1), &["--batch-size", size], seconds);
        let text = of(&[batch("16", 8.0), batch("64", 4.0)]);
        assert!(
            text.contains("fastest: train batch size 64 with 4.00 s; slowest: train batch size 16"),
            "{text}"
        );
        assert!(text.contains("highest test accuracy: ") && !text.contains("wait for"), "{text}");
        assert_eq!(of(&[]), "no finished run");
    }
}
