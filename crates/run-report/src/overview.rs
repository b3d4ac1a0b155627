//! The findings of a table in lines that a reader wants first, computed from its rows. Only rows of one job
//! are compared, and a difference within noise is none.

use indexmap::IndexMap;
use itertools::Itertools;

use super::footnotes::is_sound;
use super::measures::{exposed_percent, stored_kb, times_smaller};
use super::noise::{Interval, chance, times_differ};
use super::pairs::pairs;
use super::rows::{Row, varied};
use super::runs::Run;
use run_record::count;

/// Settings of the amount of work, and the seed: rows in which they differ are different jobs, whose times say nothing
/// about each other.
const JOB: [&str; 10] = [
    "data",
    "data_root",
    "epochs",
    "epochs_run",
    "model",
    "processor",
    "seed",
    "simd_level",
    "sweep",
    "train_samples",
];
/// Settings of the optimization, precision and batch among others, beside which an accuracy is not compared.
const RECIPE: [&str; 24] = [
    "accumulate",
    "augment",
    "changed",
    "class_weights",
    "clip_norm",
    "early_stopping",
    "gamma",
    "init",
    "l1",
    "l2",
    "label_smoothing",
    "lr",
    "max_lr",
    "momentum",
    "optimizer",
    "precision",
    "quantized",
    "schedule",
    "shuffle",
    "step_size",
    "test_samples",
    "topology",
    "train_batch_size",
    "weight_decay",
];

/// One line each: the fastest topology, mpi against the other backends, accuracy and waiting of many ranks. A
/// table of one topology has its fastest row and its most accurate one. Of several jobs, those of several rows have lines.
pub fn findings(rows: &[Row<'_>], baseline: &str) -> Vec<String> {
    let mut lines = Vec::new();
    if rows.is_empty() {
        return vec!["no finished run".into()];
    }
    let sound = rows.iter().filter(|row| is_sound(row)).count();
    if sound < rows.len() {
        lines.push(format!(
            "times of {} of {} rows are not compared: too short, disturbed or unsteady",
            rows.len() - sound,
            rows.len()
        ));
    }
    let jobs = groups(rows, &JOB);
    let is_compared = |job: &Vec<Row<'_>>| job.len() > 1 || job.len() == rows.len();
    for (name, job) in jobs.iter().filter(|(_, job)| is_compared(job)) {
        lines.extend(of_job(job, baseline).into_iter().map(|line| format!("{name}{line}")));
    }
    lines
}

/// The findings of the rows of one job.
fn of_job(rows: &[Row<'_>], baseline: &str) -> Vec<String> {
    let mut lines = Vec::new();
    // A row is named among all of the job, of which only some are compared.
    let varied = varied(rows);
    let on = |row: &Row<'_>| row.place(&varied);
    let name = |row: &Row<'_>| row.name(rows, &varied);
    match representative(rows, |rows| topologies(rows, baseline, on)) {
        Some(line) => lines.push(line),
        None => {
            lines.extend(representative(rows, |rows| settings(rows, name)));
            let of_recipes = groups(rows, &RECIPE);
            lines.extend(of_recipes.iter().filter_map(|(heading, rows)| highest(heading, rows)));
        }
    }
    lines.extend(transports(rows));
    lines.extend(lost_accuracy(rows, baseline));
    lines.extend(representative(rows, |rows| waiting(rows, on)));
    lines.extend(smaller(rows));
    lines
}

/// Rows that are equal in the settings `names`. If there are several groups, each has its values as a heading.
fn groups<'a>(rows: &[Row<'a>], names: &[&str]) -> Vec<(String, Vec<Row<'a>>)> {
    let mut groups: IndexMap<Vec<&str>, Vec<Row<'a>>> = IndexMap::new();
    for row in rows {
        groups.entry(names.iter().map(|name| row.setting(name)).collect()).or_default().push(row.clone());
    }
    let mut varied = varied(rows);
    varied.retain(|name| names.contains(&name.as_str()));
    let heading = |group: &Vec<Row<'a>>| match group[0].words(&varied) {
        words if words.is_empty() => String::new(),
        words => format!("{}: ", words.join(", ")),
    };
    groups.into_values().map(|group| (heading(&group), group)).collect()
}

/// What `find` finds in the rows whose times stand for their topology or else, with a word about it, in all.
fn representative<'a>(rows: &[Row<'a>], find: impl Fn(&[Row<'a>]) -> Option<String>) -> Option<String> {
    let stands = |row: &&Row<'_>| is_sound(row) && !row.first().record.oversubscribed;
    let standing: Vec<Row<'a>> = rows.iter().filter(stands).cloned().collect();
    let others = rows.iter().filter(|row| row.first().record.oversubscribed).count();
    let left_out = |line| match others {
        0 => line,
        others => format!("{line}; {} left out", count(others, "oversubscribed row")),
    };
    let doubted = || {
        find(rows)
            .map(|line| format!("{line}; oversubscribed or doubted rows are among these, for lack of others"))
    };
    find(&standing).map(left_out).or_else(doubted)
}

/// The row of the shortest time among those that are sound.
fn fastest<'r, 'a>(rows: impl Iterator<Item = &'r Row<'a>>) -> Option<&'r Row<'a>> {
    let seconds = |row: &Row<'_>| row.train_seconds().median;
    rows.filter(|row| is_sound(row)).min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
}

fn differ(a: &Row<'_>, b: &Row<'_>) -> bool {
    times_differ(&a.train_seconds(), &b.train_seconds())
}

/// How many other rows take as long as `row`, if any do.
fn alike(row: &Row<'_>, rows: &[Row<'_>]) -> String {
    match rows.iter().filter(|other| is_sound(other) && !differ(row, other)).count() {
        // The row itself.
        0 | 1 => String::new(),
        count => format!(" ({} more within noise)", count - 1),
    }
}

/// The fastest row of the other topologies, relative to `baseline`: to the row with the same settings or, if
/// another is faster, to that one.
fn topologies(rows: &[Row<'_>], baseline: &str, name: impl Fn(&Row<'_>) -> String) -> Option<String> {
    let (on_baseline, others): (Vec<&Row<'_>>, Vec<&Row<'_>>) =
        rows.iter().partition(|row| row.setting("topology") == baseline);
    let row = fastest(others.into_iter())?;
    let first = fastest(on_baseline.into_iter())?;
    let own = row.baseline(rows, baseline).filter(|own| is_sound(own) && !differ(own, first));
    let base = own.unwrap_or(first);
    let [of_row, of_base] = [row, base].map(|row| row.train_seconds().median);
    if !differ(row, base) {
        return Some(format!(
            "{} and {} do not differ beyond noise ({of_row:.2} and {of_base:.2} s)",
            name(row),
            name(base)
        ));
    }
    let faster = of_base / of_row;
    let found = match faster < 1.0 {
        true => format!("none is as fast as {baseline}; next"),
        false => "fastest".to_owned(),
    };
    let efficiency = 100.0 * faster * base.ranks() as f64 / row.ranks() as f64;
    let relative = match own {
        Some(_) => format!("{baseline} with the same settings, efficiency {efficiency:.0}%"),
        None => name(base),
    };
    let alike = alike(row, rows);
    Some(format!("{found}: {}, {faster:.2} times as fast as {relative}{alike}", name(row)))
}

/// The fastest row and the slowest one.
fn settings(rows: &[Row<'_>], name: impl Fn(&Row<'_>) -> String) -> Option<String> {
    let seconds = |row: &Row<'_>| row.train_seconds().median;
    let sound: Vec<&Row<'_>> = rows.iter().filter(|row| is_sound(row)).collect();
    let first = fastest(rows.iter())?;
    let last = sound.iter().max_by(|a, b| seconds(a).total_cmp(&seconds(b))).filter(|_| sound.len() > 1)?;
    if !differ(first, last) {
        let [least, most] = [seconds(first), seconds(last)];
        return Some(format!("times from {least:.2} to {most:.2} s do not differ beyond noise"));
    }
    Some(format!(
        "fastest: {} with {:.2} s{}; slowest: {} with {:.2} s{}",
        name(first),
        seconds(first),
        alike(first, rows),
        name(last),
        seconds(last),
        alike(last, rows)
    ))
}

fn accuracy(row: &Row<'_>) -> f64 {
    row.spread(|run| run.results.test_accuracy).median
}

fn interval(row: &Row<'_>) -> Option<Interval> {
    Interval::of(row, |run: &Run| run.results.test_accuracy)
}

/// The share of the largest class, if the accuracy of no run of `row` can be told from it or is above.
fn at_chance(row: &Row<'_>) -> Option<f64> {
    let is_at = |run: &&Run| {
        let of = Interval::of_run(run, |run| run.results.test_accuracy)?;
        Some(of.low <= chance(run)?)
    };
    row.runs.iter().all(|run| is_at(run) == Some(true)).then(|| chance(row.first()))?
}

/// The most accurate of rows with one recipe, if it differs from any of them.
fn highest(heading: &str, rows: &[Row<'_>]) -> Option<String> {
    let best = rows.iter().max_by(|a, b| accuracy(a).total_cmp(&accuracy(b))).filter(|_| rows.len() > 1)?;
    if let Some(chance) = at_chance(best) {
        return Some(format!(
            "{heading}no test accuracy is above chance level, {chance:.2}%: at most {:.2}%",
            accuracy(best)
        ));
    }
    let of_best = interval(best)?;
    let apart = |row: &&Row<'_>| interval(row).is_some_and(|of| of.is_apart(of_best));
    let alike = rows.len() - rows.iter().filter(apart).count() - 1;
    let alike = match alike {
        0 => String::new(),
        _ if alike + 1 == rows.len() => return None,
        _ => format!(" ({alike} more with an interval that overlaps)"),
    };
    Some(format!(
        "{heading}highest test accuracy: {} with {:.2}%{alike}",
        best.name(rows, &varied(rows)),
        accuracy(best)
    ))
}

/// Each other backend against mpi. The pair of most ranks speaks for the table, which has the others.
fn transports(rows: &[Row<'_>]) -> Vec<String> {
    let mut others: Vec<&str> = pairs(rows).iter().map(|pair| pair.other.setting("backend")).collect();
    others.sort_unstable();
    others.dedup();
    let varied = varied(rows);
    others.iter().filter_map(|other| representative(rows, |rows| transport(rows, other, &varied))).collect()
}

fn transport(rows: &[Row<'_>], other: &str, varied: &[String]) -> Option<String> {
    let pairs = pairs(rows).into_iter().filter(|pair| pair.other.setting("backend") == other);
    let found = pairs.filter_map(|pair| Some((pair.ratio()?, pair)));
    let (ratio, pair) = found.max_by_key(|(_, pair)| pair.base.ranks())?;
    let place = [pair.base.setting("topology").to_owned()].into_iter().chain(pair.base.used(varied));
    let place = place.into_iter().join(", ");
    if !differ(pair.other, pair.base) {
        let [of_other, of_mpi] = [pair.other, pair.base].map(|row| row.train_seconds().median);
        return Some(format!(
            "{other} and mpi do not differ beyond noise on {place} ({of_other:.2} and {of_mpi:.2} s)"
        ));
    }
    let range = match ratio.count {
        1 => String::new(),
        _ => format!(" (from {:.2} to {:.2} over repeats)", ratio.min, ratio.max),
    };
    Some(format!("{other} takes {:.2} times as long as mpi on {place}{range}", ratio.median))
}

/// The accuracy of most ranks, relative to the row of `baseline` with the same settings. Of several, where it
/// differs most.
fn lost_accuracy(rows: &[Row<'_>], baseline: &str) -> Option<String> {
    let with_base = rows.iter().filter_map(|row| Some((row, row.baseline(rows, baseline)?)));
    let pairs: Vec<_> = with_base.filter(|(row, base)| base.ranks() < row.ranks()).collect();
    let most = pairs.iter().map(|(row, _)| row.ranks()).max()?;
    let lost = |(row, base): &(&Row<'_>, &Row<'_>)| (accuracy(row) - accuracy(base)).abs();
    let of_most = pairs.into_iter().filter(|(row, _)| row.ranks() == most);
    let (many, base) = of_most.max_by(|a, b| lost(a).total_cmp(&lost(b)))?;
    let place = many.place(&varied(rows));
    if let (Some(chance), Some(_)) = (at_chance(many), at_chance(base)) {
        return Some(format!("test accuracy is at chance level, {chance:.2}%, on {place} and on {baseline}"));
    }
    let [of_many, of_base] = [many, base].map(accuracy);
    Some(match interval(many)?.is_apart(interval(base)?) {
        true => format!(
            "test accuracy {of_many:.2}% on {place}, {of_base:.2}% on {}: {:+.2} points",
            base.place(&varied(rows)),
            of_many - of_base
        ),
        false => format!(
            "test accuracies of {place} and {} cannot be told apart: {of_many:.2}% and {of_base:.2}%, whose 95% \
             intervals overlap",
            base.place(&varied(rows))
        ),
    })
}

fn waiting(rows: &[Row<'_>], on: impl Fn(&Row<'_>) -> String) -> Option<String> {
    let share = |row: &Row<'_>| row.spread(exposed_percent).median;
    let shared = rows.iter().filter(|row| row.ranks() > 1);
    let most = shared.max_by(|a, b| share(a).total_cmp(&share(b)))?;
    Some(format!(
        "ranks wait for gradients in up to {:.1}% of the training time on {}",
        share(most),
        on(most)
    ))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::runs::Run;
    use crate::testing::run;

    /// One of several seeds that learns nothing does not bring the others down.
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
            of(&runs)
        };
        assert!(
            seeds([11.2, 11.3, 11.1]).contains("no test accuracy is above chance level"),
            "{}",
            seeds([11.2; 3])
        );
        assert!(!seeds([11.2, 97.0, 97.2]).contains("chance level"), "{}", seeds([11.2, 97.0, 97.2]));
    }

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
        assert!(
            text.contains("on 1x1 (mpi): ") && text.contains("wait for gradients in up to 10.0%"),
            "{text}"
        );
        assert!(!text.contains("not compared"), "{text}");
        let text = of(&[run((1, 1), &[], 4.0), run((1, 2), &[], 8.0)]);
        assert!(text.contains("none is as fast as 1x1; next: 1x2 (mpi), 0.50 times as fast"), "{text}");
    }

    #[test]
    fn the_fastest_row_is_that_of_the_shortest_time() {
        let fp16 = ["--precision", "fp16"];
        let runs =
            [run((1, 1), &[], 4.0), run((1, 1), &fp16, 8.0), run((1, 2), &[], 2.5), run((1, 2), &fp16, 4.0)];
        let text = of(&runs);
        assert!(
            text.contains("fastest: 1x2 (mpi), 1.60 times as fast as 1x1 with the same settings"),
            "{text}"
        );
        // Another row of one rank is what a reader compares with.
        let text = of(&[run((1, 1), &[], 4.0), run((1, 1), &fp16, 8.0), run((1, 2), &fp16, 3.2)]);
        assert!(
            text.contains("fastest: 1x2 (mpi, precision fp16), 1.25 times as fast as 1x1 (mpi)"),
            "{text}"
        );
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
        let text = of(&runs);
        assert!(text.contains("fastest: 1x2 (mpi), 1.60 times as fast"), "{text}");
        assert!(text.contains("gloo takes 1.20 times as long as mpi on 1x2"), "{text}");
        assert!(text.contains("up to 10.0% of the training time on 1x2 ("), "{text}");
        let text = of(&runs[3..]);
        assert!(
            text.contains("gloo takes 3.00 times as long as mpi on 2x2; oversubscribed or doubted"),
            "{text}"
        );
        assert!(
            text.contains("up to 83.3% of the training time on 2x2 (mpi); oversubscribed or doubted"),
            "{text}"
        );
    }

    #[test]
    fn a_row_is_named_among_those_that_are_not_compared_too() {
        let fp16 = ["--precision", "fp16"];
        let mut runs = vec![run((1, 1), &fp16, 8.0), run((1, 2), &fp16, 5.0), run((1, 2), &[], 3.0)];
        runs[2].results.others_cpu_percent = Some(50.0);
        let text = of(&runs);
        assert!(text.contains("fastest: 1x2 (mpi, precision fp16), 1.60 times as fast as 1x1"), "{text}");
        assert!(text.contains("up to 10.0% of the training time on 1x2 (mpi, precision fp16)"), "{text}");
    }

    #[test]
    fn differences_within_noise_are_no_findings() {
        let batch = |size, seconds| run((1, 1), &["--batch-size", size], seconds);
        let text = of(&[batch("16", 5.66), batch("64", 5.59)]);
        assert!(text.contains("times from 5.59 to 5.66 s do not differ beyond noise"), "{text}");
        let text = of(&[batch("16", 4.0), batch("32", 7.9), batch("64", 8.0)]);
        assert!(text.contains("slowest: train batch size 64 with 8.00 s (1 more within noise)"), "{text}");
        let text = of(&[run((1, 1), &[], 8.0), run((1, 2), &[], 4.1), run((2, 1), &[], 4.0)]);
        assert!(
            text.contains("fastest: 2x1 (mpi), 2.00 times as fast") && text.contains("(1 more within noise)"),
            "{text}"
        );
        let gloo = ["--backend", "gloo"];
        let text = of(&[run((1, 2), &[], 5.59), run((1, 2), &gloo, 5.66)]);
        assert!(text.contains("gloo and mpi do not differ beyond noise on 1x2 (5.66 and 5.59 s)"), "{text}");
        let text = of(&[run((1, 1), &[], 5.66), run((1, 2), &[], 5.59)]);
        assert!(
            text.contains("1x2 (mpi) and 1x1 (mpi) do not differ beyond noise (5.59 and 5.66 s)"),
            "{text}"
        );
        // Of 2,000 samples, 0.2 points are four.
        let mut runs = ["1x1", "1x2"]
            .map(|name| run((1, if name == "1x1" { 1 } else { 2 }), &["--test-samples", "2000"], 4.0));
        runs[1].results.test_accuracy += 0.2;
        let text = of(&runs);
        assert!(text.contains("test accuracies of 1x2 (mpi) and 1x1 (mpi) cannot be told apart"), "{text}");
        assert!(!text.contains("points"), "{text}");
    }

    #[test]
    fn accuracies_are_compared_within_one_recipe_and_above_chance() {
        let of_lr = |lr, activation, accuracy| {
            let mut run =
                run((1, 1), &["--lr", lr, "--activation", activation, "--test-samples", "200"], 4.0);
            run.results.test_accuracy = accuracy;
            run
        };
        let text = of(&[of_lr("1", "relu", 30.0), of_lr("2", "relu", 90.0)]);
        assert!(!text.contains("test accuracy"), "another learning rate is another recipe: {text}");
        let text = of(&[of_lr("1", "relu", 30.0), of_lr("1", "gelu", 90.0)]);
        assert!(text.contains("highest test accuracy: activation gelu with 90.00%"), "{text}");
        let text = of(&[of_lr("1", "relu", 14.0), of_lr("1", "gelu", 12.0)]);
        assert!(
            !text.contains("highest") && text.contains("no test accuracy is above chance level"),
            "{text}"
        );
    }

    #[test]
    fn other_jobs_are_not_ranked_with_each_other() {
        let epochs = |epochs, activation, seconds| {
            run((1, 1), &["--epochs", epochs, "--activation", activation], seconds)
        };
        let text = of(&[epochs("1", "relu", 2.5), epochs("3", "relu", 9.0), epochs("3", "gelu", 12.0)]);
        assert!(
            text.contains(
                "epochs 3: fastest: activation relu with 9.00 s; slowest: activation gelu with 12.00 s"
            ),
            "{text}"
        );
        assert!(!text.contains("2.50"), "{text}");
        let alone = of(&[run((1, 2), &["--epochs", "1"], 2.5), run((1, 2), &["--epochs", "2"], 5.0)]);
        assert_eq!(alone, "", "nothing is compared");
        assert!(of(&[run((1, 2), &[], 2.5)]).contains("ranks wait for gradients"));
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
        assert!(!text.contains("accuracy") && !text.contains("wait for"), "{text}");
        assert_eq!(of(&[]), "no finished run");
    }
}
