//! The findings of a table in lines that a reader wants first, computed from its rows. Only rows of one job
//! are compared, and a difference within noise is none.

use indexmap::IndexMap;
use itertools::Itertools;

use super::footnotes::is_sound;
use super::measures::{exposed_percent, stored_kb, times_smaller};
use super::noise::{Interval, chance, times_differ};
use super::pairs::{Pair, pairs};
use super::rows::{Row, Spread, varied};
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
    for (name, job) in jobs(rows) {
        lines.extend(of_job(&job, baseline).into_iter().map(|line| format!("{name}{line}")));
    }
    lines
}

/// The rows of each job in which there is something to compare, and its name.
pub fn jobs<'a>(rows: &[Row<'a>]) -> Vec<(String, Vec<Row<'a>>)> {
    let mut jobs = groups(rows, &JOB);
    jobs.retain(|(_, job)| job.len() > 1 || job.len() == rows.len());
    jobs
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

/// The rows whose times stand for their topology.
pub fn standing<'a>(rows: &[Row<'a>]) -> Vec<Row<'a>> {
    let stands = |row: &&Row<'_>| is_sound(row) && !row.first().record.oversubscribed;
    rows.iter().filter(stands).cloned().collect()
}

/// What `find` finds in the rows whose times stand for their topology or else, with a word about it, in all.
fn representative<'a>(rows: &[Row<'a>], find: impl Fn(&[Row<'a>]) -> Option<String>) -> Option<String> {
    let others = rows.iter().filter(|row| row.first().record.oversubscribed).count();
    let left_out = |line| match others {
        0 => line,
        others => format!("{line}; {} left out", count(others, "oversubscribed row")),
    };
    let doubted = || {
        find(rows)
            .map(|line| format!("{line}; oversubscribed or doubted rows are among these, for lack of others"))
    };
    find(&standing(rows)).map(left_out).or_else(doubted)
}

/// The row of the shortest time among those that are sound.
pub fn fastest<'r, 'a>(rows: impl Iterator<Item = &'r Row<'a>>) -> Option<&'r Row<'a>> {
    let seconds = |row: &Row<'_>| row.train_seconds().median;
    rows.filter(|row| is_sound(row)).min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
}

pub fn differ(a: &Row<'_>, b: &Row<'_>) -> bool {
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

/// The fastest row of the other topologies, the row of `baseline` that it is compared with, and whether this has the same
/// settings: another one is compared with if it is faster.
pub fn fastest_topology<'r, 'a>(
    rows: &'r [Row<'a>],
    baseline: &str,
) -> Option<(&'r Row<'a>, &'r Row<'a>, bool)> {
    let (on_baseline, others): (Vec<&Row<'_>>, Vec<&Row<'_>>) =
        rows.iter().partition(|row| row.setting("topology") == baseline);
    let row = fastest(others.into_iter())?;
    let first = fastest(on_baseline.into_iter())?;
    let own = row.baseline(rows, baseline).filter(|own| is_sound(own) && !differ(own, first));
    Some((row, own.unwrap_or(first), own.is_some()))
}

/// The fastest row of the other topologies, relative to `baseline`: to the row with the same settings or, if
/// another is faster, to that one.
fn topologies(rows: &[Row<'_>], baseline: &str, name: impl Fn(&Row<'_>) -> String) -> Option<String> {
    let (row, base, own) = fastest_topology(rows, baseline)?;
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
        true => format!("{baseline} with the same settings, efficiency {efficiency:.0}%"),
        false => name(base),
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

pub fn accuracy(row: &Row<'_>) -> f64 {
    row.spread(|run| run.results.test_accuracy).median
}

pub fn interval(row: &Row<'_>) -> Option<Interval> {
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
    let varied = varied(rows);
    other_backends(rows)
        .iter()
        .filter_map(|other| representative(rows, |rows| transport(rows, other, &varied)))
        .collect()
}

/// The backends beside mpi, with as many ranks.
pub fn other_backends(rows: &[Row<'_>]) -> Vec<String> {
    let pairs = pairs(rows);
    pairs.iter().map(|pair| pair.other.setting("backend").to_owned()).sorted().dedup().collect()
}

/// The pair of most ranks over mpi and over `other`, and its ratio.
pub fn widest_pair<'r, 'a>(rows: &'r [Row<'a>], other: &str) -> Option<(Spread, Pair<'r, 'a>)> {
    let pairs = pairs(rows).into_iter().filter(|pair| pair.other.setting("backend") == other);
    pairs.filter_map(|pair| Some((pair.ratio()?, pair))).max_by_key(|(_, pair)| pair.base.ranks())
}

fn transport(rows: &[Row<'_>], other: &str, varied: &[String]) -> Option<String> {
    let (ratio, pair) = widest_pair(rows, other)?;
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

/// The row of most ranks, and that of `baseline` with the same settings. Of several, those whose accuracies differ most.
pub fn most_ranks<'r, 'a>(rows: &'r [Row<'a>], baseline: &str) -> Option<(&'r Row<'a>, &'r Row<'a>)> {
    let with_base = rows.iter().filter_map(|row| Some((row, row.baseline(rows, baseline)?)));
    let pairs: Vec<_> = with_base.filter(|(row, base)| base.ranks() < row.ranks()).collect();
    let most = pairs.iter().map(|(row, _)| row.ranks()).max()?;
    let lost = |(row, base): &(&Row<'_>, &Row<'_>)| (accuracy(row) - accuracy(base)).abs();
    let of_most = pairs.into_iter().filter(|(row, _)| row.ranks() == most);
    of_most.max_by(|a, b| lost(a).total_cmp(&lost(b)))
}

/// The accuracy of most ranks, relative to the row of `baseline` with the same settings.
fn lost_accuracy(rows: &[Row<'_>], baseline: &str) -> Option<String> {
    let (many, base) = most_ranks(rows, baseline)?;
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
#[path = "overview_tests.rs"]
mod tests;
