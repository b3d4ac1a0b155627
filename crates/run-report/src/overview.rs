//! Findings from comparing the rows of a table. A row is a configuration: one run or its repeats. Rows are
//! only compared within one job, which is a group of rows that do the same work. A difference within noise is
//! not a finding.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use itertools::{Itertools, MinMaxResult};

use super::findings::{Finding, Question};
use super::pairs::{Pair, pairs};
use super::remarks::{has_changed_ranks, is_sound};
use super::rows::{Interval, Row, Spread, chance, tells_classes_apart, times_differ, varied};
use super::runs::{QUANTIZED, Run};
use super::summary::{balanced_accuracy, exposed_percent, speed_up, stored_kb, times_smaller};
use run_record::{Part, count};
use terminal::digits::seconds as shown;

/// Answer on the page's card if nothing differs.
const NONE: &str = "none beyond noise";
/// Whether rows that differ in this setting are different jobs, whose times cannot be compared. Such settings
/// are the seed, the number of epochs, the option `--model`, the samples, the processor, its vector
/// instructions and the sweep.
fn is_of_job(row: &Row<'_>, name: &str) -> bool {
    let is_of_run = row.part(name) == Some(Part::Run) || row.is_of_samples(name);
    is_of_run || ["data", "epochs_run", "processor", "simd_level", "sweep"].contains(&name)
}

/// Whether a setting is part of the recipe. Accuracies are only compared between rows with equal recipes. The
/// recipe is, for example, optimization, precision and batch size. The settings of network, process and
/// transport are not part of the recipe. Of the settings of quantization, only [`QUANTIZED`] is part of it.
fn is_of_recipe(row: &Row<'_>, name: &str) -> bool {
    let is_other = match row.part(name) {
        Some(Part::Network | Part::Process) => true,
        Some(Part::Quantization) => name != QUANTIZED,
        _ => row.is_of_transport(name) || name == "oversubscribed",
    };
    !is_other
}

/// Groups rows by job. If there are several jobs, each group has a heading that names its job.
pub fn jobs<'a>(rows: &[Row<'a>]) -> Vec<(String, Vec<Row<'a>>)> {
    groups(rows, is_of_job)
}

/// Returns the findings about the only row of a job, in a table with several jobs. The row is not compared
/// with rows of other jobs.
pub fn of_lone_row(rows: &[Row<'_>]) -> Vec<Finding> {
    let int8 = smaller(rows, |row| row.place(&[])).map(|found| Finding { is_listed: false, ..found });
    unlearned(rows, "").into_iter().map(Finding::from).chain(int8).collect()
}

/// Returns the findings about the rows of one job. They compare the fastest topology with `baseline`, other
/// backends with mpi, the accuracy on the most ranks with the accuracy on `baseline`, and the int8 model's
/// size with the float network's. They also say how long ranks wait for gradients. If no topology can be
/// compared with `baseline`, the findings name the fastest and the slowest row, and the most accurate row of
/// each recipe.
pub fn of_job(rows: &[Row<'_>], baseline: &str) -> Vec<Finding> {
    let (mut found, mut recipes) = (Vec::new(), Vec::new());
    let lost = lost_accuracy(rows, baseline);
    let said = lost.as_ref().map_or("", |lost| &lost.text);
    if let Some(line) = unlearned(rows, said) {
        let both = |(many, base): (&Row<'_>, &Row<'_>)| at_chance(many).and(at_chance(base)).is_some();
        let found_none = Finding::from(line);
        found.push(if most_ranks(rows, baseline).is_some_and(both) {
            found_none.answers(Question::Accuracy, "accuracy lost", "chance level")
        } else {
            found_none
        });
    }
    if let [row] = rows {
        found.extend(hidden_by_the_largest(row).map(Finding::from));
    }
    // Names distinguish a row from all rows of the job, even if only some of them are compared.
    let varied = varied(rows);
    let place = |row: &Row<'_>| row.place(&varied);
    let name = |row: &Row<'_>| row.name(rows, &varied);
    match representative(rows, |timed| topologies(timed, rows, baseline, place)) {
        Some(of_topologies) => found.push(of_topologies),
        None => {
            found.extend(representative(rows, |rows| settings(rows, name)));
            recipes = groups(rows, is_of_recipe);
        }
    }
    found.extend(transports(rows));
    found.extend(lost);
    found.extend(representative(rows, |rows| waiting(rows, place)));
    found.extend(smaller(rows, place));
    // The most accurate row of each recipe comes last, because there may be many recipes.
    found.extend(recipes.iter().filter_map(|(heading, rows)| highest(heading, rows)).map(Finding::from));
    found
}

/// Groups the rows that are equal in the settings for which `is_kept` returns true. If there are several
/// groups, each has a heading with the values of its settings.
fn groups<'a>(rows: &[Row<'a>], is_kept: impl Fn(&Row<'a>, &str) -> bool) -> Vec<(String, Vec<Row<'a>>)> {
    let mut groups: IndexMap<BTreeMap<&String, &String>, Vec<Row<'a>>> = IndexMap::new();
    for row in rows {
        let kept = row.settings.iter().filter(|(name, _)| is_kept(row, name)).collect();
        groups.entry(kept).or_default().push(row.clone());
    }
    let mut varied = varied(rows);
    let differ = rows.iter().any(|row| row.setting("topology") != rows[0].setting("topology"));
    varied.splice(..0, differ.then(|| "topology".into()));
    varied.retain(|name| is_kept(&rows[0], name));
    let groups: Vec<Vec<Row<'a>>> = groups.into_values().collect();
    let heading = |group: &[Row<'a>]| {
        let others = groups.iter().map(|other| &other[0]);
        group[0]
            .told_among(others, &varied)
            .map(|words| format!("{}: ", words.join(", ")))
            .unwrap_or_default()
    };
    let headings: Vec<String> = groups.iter().map(|group| heading(group)).collect();
    headings.into_iter().zip(groups).collect()
}

/// Returns the rows whose times represent their topology: the times are reliable, and ranks do not share
/// cores (oversubscription).
pub fn standing<'a>(rows: &[Row<'a>]) -> Vec<Row<'a>> {
    let stands = |row: &&Row<'_>| is_sound(row) && !row.first().record.oversubscribed;
    rows.iter().filter(stands).cloned().collect()
}

/// Calls `find` for the rows that [`standing`] returns, and adds to the finding how many oversubscribed rows
/// are left out. If nothing is found, calls `find` for all rows, and adds whether ranks share cores and
/// whether all times are unreliable. A run on several numbers of ranks represents none of them.
fn representative<'a>(rows: &[Row<'a>], find: impl Fn(&[Row<'a>]) -> Option<Finding>) -> Option<Finding> {
    let rows: Vec<Row<'a>> = rows.iter().filter(|row| !has_changed_ranks(row)).cloned().collect();
    let others = rows.iter().filter(|row| row.first().record.oversubscribed).count();
    let left_out = match others {
        0 => String::new(),
        others => format!("; {} left out", count(others, "oversubscribed row")),
    };
    let with = |found: Finding, word: &str| Finding { text: found.text + word, ..found };
    let shared = if others > 0 { "; threads of ranks share cores" } else { "" };
    let doubted = if rows.iter().any(is_sound) {
        ""
    } else {
        "; these times are unreliable: see the marks in the table"
    };
    let found = find(&standing(&rows)).map(|found| with(found, &left_out));
    found.or_else(|| Some(with(with(find(&rows)?, shared), doubted)))
}

/// Returns the row with the shortest training time, among the rows with reliable times.
pub fn fastest<'r, 'a>(rows: impl Iterator<Item = &'r Row<'a>>) -> Option<&'r Row<'a>> {
    let seconds = |row: &Row<'_>| row.train_seconds().median;
    rows.filter(|row| is_sound(row)).min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
}

fn differ(a: &Row<'_>, b: &Row<'_>) -> bool {
    times_differ(&a.train_seconds(), &b.train_seconds())
}

/// Says how many other rows have the same time as `row` within noise; empty if there is no such row.
fn alike(row: &Row<'_>, rows: &[Row<'_>]) -> String {
    match rows.iter().filter(|other| is_sound(other) && !differ(row, other)).count() {
        // Only the row itself.
        0 | 1 => String::new(),
        2 => " (1 other row has the same time within noise)".to_owned(),
        count => format!(" ({} other rows have the same time within noise)", count - 1),
    }
}

/// Compares the fastest of `rows` on other topologies than `baseline` with a row on `baseline`. Usually this
/// is the row of `all` with the same settings, as for the speed-ups in the table. If another row on
/// `baseline` is faster beyond noise, or the times of the row with the same settings are unreliable, the
/// fastest row on `baseline` is used instead.
fn topologies<'a>(
    rows: &[Row<'a>],
    all: &[Row<'a>],
    baseline: &str,
    name: impl Fn(&Row<'_>) -> String,
) -> Option<Finding> {
    let (on_baseline, others): (Vec<&Row<'_>>, Vec<&Row<'_>>) =
        rows.iter().partition(|row| row.setting("topology") == baseline);
    let row = fastest(others.into_iter())?;
    let first = fastest(on_baseline.into_iter())?;
    let own = row.baseline(all, baseline).filter(|own| is_sound(own) && !differ(own, first));
    let base = own.unwrap_or(first);
    let (faster, efficiency) = speed_up(row, base)?;
    if !differ(row, base) {
        let [of_row, of_base] = [row, base].map(|row| row.train_seconds().median);
        let line = format!(
            "{} and {} do not differ beyond noise ({} and {} s)",
            name(row),
            name(base),
            shown(of_row),
            shown(of_base)
        );
        return Some(Finding::from(line).answers(Question::Fastest, "fastest", NONE));
    }
    let (found, value) = if faster < 1.0 {
        (format!("no other topology is as fast as {baseline}; the next fastest"), name(base))
    } else {
        ("fastest".to_owned(), name(row))
    };
    let relative = match own {
        // The baseline is one rank over another backend, which is valid because one rank does not
        // communicate. Name it.
        Some(own) if own.setting("backend") != row.setting("backend") => {
            format!("{}, efficiency {efficiency:.0}%", name(own))
        }
        Some(_) => format!("{baseline} with the same settings, efficiency {efficiency:.0}%"),
        None => name(base),
    };
    let alike = alike(row, rows);
    let line = format!("{found}: {}, {faster:.2} times as fast as {relative}{alike}", name(row));
    Some(Finding::from(line).answers(Question::Fastest, "fastest", value))
}

/// Names the fastest row and the slowest row, or says that their times do not differ beyond noise.
fn settings(rows: &[Row<'_>], name: impl Fn(&Row<'_>) -> String) -> Option<Finding> {
    let seconds = |row: &Row<'_>| row.train_seconds().median;
    let sound = rows.iter().filter(|row| is_sound(row));
    let ends = sound.minmax_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let MinMaxResult::MinMax(first, last) = ends else { return None };
    if !differ(first, last) {
        let [least, most] = [seconds(first), seconds(last)];
        let line = format!("times from {} to {} s do not differ beyond noise", shown(least), shown(most));
        return Some(Finding::from(line).answers(Question::Fastest, "fastest", NONE));
    }
    let line_of = |row: &Row<'_>| format!("{} with {} s{}", name(row), shown(seconds(row)), alike(row, rows));
    let line = format!("fastest: {}; slowest: {}", line_of(first), line_of(last));
    Some(Finding::from(line).answers(Question::Fastest, "fastest", name(first)))
}

fn accuracy(row: &Row<'_>) -> f64 {
    row.spread(|run| run.results.test_accuracy).median
}

fn interval(row: &Row<'_>) -> Option<Interval> {
    Interval::of_row(row, |run: &Run| run.results.test_accuracy)
}

/// Whether the 95% interval of the accuracy of `run` reaches down to the share of the largest class, or lies
/// below it.
fn is_as_the_largest(run: &Run) -> bool {
    Interval::of_run(run, |run| run.results.test_accuracy).is_some_and(|of| of.low <= chance(run))
}

/// Returns the share of the largest class if `row` is at chance level: no run's accuracy is significantly
/// above this share, and no run tells classes apart.
fn at_chance(row: &Row<'_>) -> Option<f64> {
    let is_at = |run: &&Run| is_as_the_largest(run) && !tells_classes_apart(run);
    row.runs.iter().all(is_at).then(|| chance(row.first()))
}

/// Says that a row tells classes apart although its accuracy does not show it.
fn hidden_by_the_largest(row: &Row<'_>) -> Option<String> {
    let by_class = row.first().results.by_class.as_ref()?;
    let is_hidden = |run: &&Run| is_as_the_largest(run) && tells_classes_apart(run);
    let classes = by_class.classes.iter().filter(|class| class.samples > 0).count();
    let share = chance(row.first());
    let against = if interval(row)?.high < share { "is below" } else { "does not differ from" };
    row.runs.iter().all(is_hidden).then(|| {
        format!(
            "test accuracy {:.2}% {against} the {share:.2}% of always predicting the largest class, but the network does \
             distinguish classes: its balanced accuracy is {:.2}%, and {:.2}% for random predictions",
            accuracy(row),
            row.spread(balanced_accuracy).median,
            100.0 / classes as f64
        )
    })
}

/// Names the rows at chance level, which may have learned nothing. Rows that the text `said` already names as
/// being at chance level are left out.
fn unlearned(rows: &[Row<'_>], said: &str) -> Option<String> {
    /// Maximum number of rows to name. The others are counted.
    const MOST: usize = 3;
    let found: Vec<(&Row<'_>, f64)> = rows.iter().filter_map(|row| Some((row, at_chance(row)?))).collect();
    let &(row, share) = found.iter().max_by(|(a, _), (b, _)| accuracy(a).total_cmp(&accuracy(b)))?;
    let best = accuracy(row);
    if rows.len() == 1 {
        return Some(format!(
            "test accuracy {best:.2}% is at chance level: always predicting the largest class gives {share:.2}%"
        ));
    }
    if found.len() == rows.len() {
        return Some(format!(
            "no test accuracy is above chance level ({share:.2}%); the highest is {best:.2}%"
        ));
    }
    let varied = varied(rows);
    let name = |(row, share): &(&Row<'_>, f64)| {
        let place = row.place(&varied);
        let is_said = said.contains(&format!("{place} is at chance level"));
        (!is_said).then(|| format!("{place} with {:.2}% (largest class {share:.2}%)", accuracy(row)))
    };
    let names: Vec<String> = found.iter().filter_map(name).collect();
    let more = match names.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!(" and {}", count(more, "more row")),
    };
    let named = names.iter().take(MOST).join(", ");
    (!names.is_empty()).then(|| format!("at chance level: {named}{more}"))
}

/// Names the most accurate of `rows`, which all have the same recipe. `None` if this row is at chance level,
/// or if no other row is less accurate beyond noise.
fn highest(heading: &str, rows: &[Row<'_>]) -> Option<String> {
    let best = rows.iter().max_by(|a, b| accuracy(a).total_cmp(&accuracy(b))).filter(|_| rows.len() > 1)?;
    if at_chance(best).is_some() {
        return None;
    }
    let of_best = interval(best)?;
    let apart = |row: &&Row<'_>| interval(row).is_some_and(|of| of.is_apart(of_best));
    let alike = rows.len() - rows.iter().filter(apart).count() - 1;
    let alike = match alike {
        0 => String::new(),
        _ if alike + 1 == rows.len() => return None,
        _ => format!(" ({} with an overlapping 95% interval)", count(alike, "more row")),
    };
    Some(format!(
        "{heading}highest test accuracy: {} with {:.2}%{alike}",
        best.name(rows, &varied(rows)),
        accuracy(best)
    ))
}

/// Compares each other backend with mpi.
fn transports(rows: &[Row<'_>]) -> Vec<Finding> {
    let varied = varied(rows);
    let pairs = pairs(rows);
    let others = pairs.iter().map(|pair| pair.other.setting("backend")).sorted().dedup();
    others.filter_map(|other| representative(rows, |rows| transport(rows, other, &varied))).collect()
}

/// Compares the backend `other` with mpi by the pair of rows with the most ranks; the table of ratios has all
/// pairs. If the pair with the lowest or the highest ratio contradicts this result, it is named too.
fn transport(rows: &[Row<'_>], other: &str, varied: &[String]) -> Option<Finding> {
    let pairs = pairs(rows).into_iter().filter(|pair| pair.other.setting("backend") == other);
    let pairs: Vec<(Spread, Pair<'_, '_>)> = pairs.filter_map(|pair| Some((pair.ratio()?, pair))).collect();
    let widest = pairs.iter().max_by_key(|(_, pair)| pair.base.ranks())?;
    let (least, most) =
        pairs.iter().minmax_by(|(a, _), (b, _)| a.median.total_cmp(&b.median)).into_option()?;
    // Which of the two rows is faster; `None` if they do not differ beyond noise.
    let faster = |(ratio, pair): &(Spread, Pair<'_, '_>)| {
        differ(pair.other, pair.base).then(|| ratio.median.total_cmp(&1.0))
    };
    let against = [least, most].into_iter().filter(|of| faster(of).is_some() && faster(of) != faster(widest));
    let against: Vec<_> = against.collect();
    let (ratio, pair) = widest;
    let place = |pair: &Pair<'_, '_>| {
        [pair.base.setting("topology").to_owned()].into_iter().chain(pair.base.used(varied)).join(", ")
    };
    let range = match ratio.count {
        1 => String::new(),
        _ => format!(" (from {:.2} to {:.2} over repeats)", ratio.min, ratio.max),
    };
    let line = match faster(widest) {
        Some(_) => {
            format!("{other} takes {:.2} times as long as mpi on {}{range}", ratio.median, place(pair))
        }
        None => {
            let [of_other, of_mpi] = [pair.other, pair.base].map(|row| shown(row.train_seconds().median));
            let place = place(pair);
            format!("{other} and mpi do not differ beyond noise on {place} ({of_other} and {of_mpi} s)")
        }
    };
    let elsewhere =
        against.iter().map(|(ratio, pair)| format!(", but {:.2} times on {}", ratio.median, place(pair)));
    let ends = against.iter().map(|(ratio, _)| ratio.median).chain([ratio.median]).sorted_by(f64::total_cmp);
    let value = match (ends.collect::<Vec<_>>().as_slice(), faster(widest)) {
        ([_], None) => NONE.to_owned(),
        ([ratio], _) => format!("1 : {ratio:.2}"),
        (ends, _) => format!("1 : {:.2}–{:.2}", ends[0], ends[ends.len() - 1]),
    };
    let line = line + &elsewhere.collect::<String>();
    Some(Finding::from(line).answers(Question::Transport, format!("mpi : {other}"), value))
}

/// Returns the row with the most ranks, and the row of `baseline` with the same settings.
///
/// If there are several such pairs, a pair whose rows made the same number of updates is preferred. Of
/// several such pairs, the one whose accuracies differ most is returned. In most pairs, more ranks made fewer
/// updates. If no pair made the same number, the pair with the highest accuracy is returned. The accuracies
/// of another pair may differ more, for example because its learning rate is too low for fewer updates, but
/// nobody would choose this learning rate.
fn most_ranks<'r, 'a>(rows: &'r [Row<'a>], baseline: &str) -> Option<(&'r Row<'a>, &'r Row<'a>)> {
    let with_base = rows.iter().filter_map(|row| Some((row, row.baseline(rows, baseline)?)));
    let pairs: Vec<_> = with_base.filter(|(row, base)| base.ranks() < row.ranks()).collect();
    let most = pairs.iter().map(|(row, _)| row.ranks()).max()?;
    let lost = |(row, base): &(&Row<'_>, &Row<'_>)| (accuracy(row) - accuracy(base)).abs();
    let is_equal = |(row, base): &(&Row<'_>, &Row<'_>)| updates(row) == updates(base);
    let highest = |pair: &(&Row<'_>, &Row<'_>)| {
        if is_equal(pair) { f64::INFINITY } else { accuracy(pair.0).max(accuracy(pair.1)) }
    };
    let of_most = pairs.into_iter().filter(|(row, _)| row.ranks() == most);
    of_most.max_by(|a, b| highest(a).total_cmp(&highest(b)).then(lost(a).total_cmp(&lost(b))))
}

/// Returns the number of optimizer steps of the row's first run.
fn updates(row: &Row<'_>) -> usize {
    row.first().results.steps
}

/// Compares the accuracies of the two rows that [`most_ranks`] returns.
fn lost_accuracy(rows: &[Row<'_>], baseline: &str) -> Option<Finding> {
    let (many, base) = most_ranks(rows, baseline)?;
    let varied = varied(rows);
    let [on_many, on_base] = [many, base].map(|row| row.place(&varied));
    let [of_many, of_base] = [many, base].map(accuracy);
    let is_fewer = updates(many) < updates(base);
    let after = if updates(many) == updates(base) {
        String::new()
    } else {
        format!(" after {} instead of {}", count(updates(many), "update"), updates(base))
    };
    let mut points_lost = 0.0;
    let (line, value) = match (at_chance(many), at_chance(base)) {
        // Another finding says that both rows are at chance level.
        (Some(_), Some(_)) => return None,
        _ if !interval(many)?.is_apart(interval(base)?) => (
            format!(
                "test accuracies of {on_many} and {on_base} do not differ beyond noise: {}, and the 95% intervals overlap",
                if updates(many) == updates(base) {
                    format!("{of_many:.2}% and {of_base:.2}%")
                } else {
                    let after = count(updates(many), "update");
                    format!("{of_many:.2}% after {after} and {of_base:.2}% after {}", updates(base))
                }
            ),
            NONE.into(),
        ),
        (chance_of_many, chance_of_base) => {
            let points = of_many - of_base;
            points_lost = (-points).max(0.0);
            let at_chance = [(chance_of_many, on_many.as_str()), (chance_of_base, on_base.as_str())];
            let at_chance = at_chance.into_iter().filter_map(|(chance, on)| Some((chance?, on)));
            let at_chance = at_chance.map(|(chance, on)| format!("; {on} is at chance level, {chance:.2}%"));
            let line = format!(
                "test accuracy {of_many:.2}% on {on_many}, {of_base:.2}% on {on_base}: {points:+.2} points{after}{}",
                at_chance.collect::<String>()
            );
            let value = if points > 0.0 {
                format!("none, {points:.2} points gained")
            } else if is_fewer {
                format!("{:.2} points, with fewer updates", -points)
            } else {
                format!("{:.2} points", -points)
            };
            (line, value)
        }
    };
    let found = Finding::from(line).answers(Question::Accuracy, "accuracy lost", value);
    Some(Finding { weight: points_lost, ..found })
}

fn waiting(rows: &[Row<'_>], on: impl Fn(&Row<'_>) -> String) -> Option<Finding> {
    let share = |row: &Row<'_>| row.spread(exposed_percent).median;
    let shared = rows.iter().filter(|row| row.ranks() > 1);
    let most = shared.max_by(|a, b| share(a).total_cmp(&share(b)))?;
    let line = match rows.len() {
        1 => format!("ranks wait for gradients in {:.1}% of the training time", share(most)),
        _ => format!(
            "ranks wait for gradients in up to {:.1}% of the training time on {}",
            share(most),
            on(most)
        ),
    };
    Some(Finding::from(line))
}

/// Compares file sizes and accuracies of the float and the int8 model, in the first row that has an int8
/// model.
fn smaller(rows: &[Row<'_>], on: impl Fn(&Row<'_>) -> String) -> Option<Finding> {
    let row = rows.iter().find(|row| row.spread(times_smaller).is_known())?;
    let [float, int8] = stored_kb(row.first())?;
    let of_int8 = row.spread(|run| run.results.int8_test_accuracy.unwrap_or(f64::NAN));
    let accuracies = if of_int8.is_known() {
        format!("; its test accuracy is {:.2}% instead of {:.2}%", of_int8.median, accuracy(row))
    } else {
        String::new()
    };
    let smaller = format!("{:.2} times smaller", row.spread(times_smaller).median);
    let line = format!(
        "the int8 checkpoint of {} has {int8:.1} KB instead of {float:.1} KB in float ({smaller}){accuracies}",
        on(row)
    );
    Some(Finding::from(line).answers(Question::Int8, "int8", smaller))
}

#[cfg(test)]
#[path = "overview_tests.rs"]
mod tests;
