//! Reads the points of a run's curves (loss and accuracy over the epochs), from the files of its ranks or
//! from `epochs.csv`.
//!
//! The x axis is the number of epochs. A test is drawn at the step after which it was made. A training value
//! is a mean over several steps, so it is drawn in the middle of these steps. If it were drawn at the last of
//! these steps, a falling loss would look higher than it is.

use std::collections::BTreeMap;
use std::path::Path;

use itertools::Itertools;
use run_record::files::read_regular;
use run_record::{EpochRow, RankRecord, out_of_bounds};

use super::csv_table::damaged;
use super::plots::span;
use super::runs::{Run, epochs};

/// A point of a curve: number of epochs done, then mean, minimum and maximum over ranks.
pub type MeanPoint = [f64; 4];

/// Returns the training curve, and whether its points are from `epochs.csv`.
///
/// The points are usually from the files `train.ENDING` of the ranks; `ending` is `loss` or `acc`. They are
/// from `epochs.csv` if an epoch has fewer steps than `--log-every`, or if fewer than two values were logged
/// and `epochs.csv` has more.
///
/// # Errors
/// The first damaged line of a file.
pub fn training(run: &Run, ending: &str) -> Result<(Vec<MeanPoint>, bool), String> {
    let values = of_ranks(run, "train", ending, |rank| rank.train_samples)?;
    let (steps, log_every) = (steps_of_epoch(run), log_every(run));
    if values.len() < 2 || steps < log_every {
        let value_of =
            |row: &EpochRow| Some(if ending == "loss" { row.train_loss } else { row.train_accuracy });
        let points = by_epoch(run, 0.5, value_of);
        if !points.is_empty() && (steps < log_every || points.len() > values.len()) {
            return Ok((points, true));
        }
    }
    let mut before = 0;
    let point = |(step, values): (u64, Values)| {
        let begin = begin(run, before, step);
        before = step;
        values.point((begin + step) as f64 / 2.0 / steps as f64)
    };
    Ok((values.into_iter().map(point).collect(), false))
}

/// Returns the test curve from the files `NAME.ENDING` of the ranks. `NAME` is `test` or `test.int8`.
///
/// If there are no such files, as in a copy of a run without the ranks' folders, the points are from
/// `epochs.csv`.
///
/// # Errors
/// The first damaged line of a file.
pub fn tests(run: &Run, name: &str, ending: &str) -> Result<Vec<MeanPoint>, String> {
    let values = of_ranks(run, name, ending, |rank| rank.test_samples)?;
    if values.is_empty() {
        let value_of = |row: &EpochRow| match (name, ending) {
            ("test", "loss") => Some(row.test_loss),
            ("test", _) => Some(row.test_accuracy),
            (_, "loss") => row.int8_test_loss,
            _ => row.int8_test_accuracy,
        };
        return Ok(by_epoch(run, 0.0, value_of));
    }
    let steps = steps_of_epoch(run) as f64;
    Ok(values.into_iter().map(|(step, values)| values.point(step as f64 / steps)).collect())
}

fn steps_of_epoch(run: &Run) -> u64 {
    run.steps_of_epoch() as u64
}

fn log_every(run: &Run) -> u64 {
    run.option("log_every").as_u64().unwrap_or(1).max(1)
}

/// Returns the step before the first step of the mean that was logged at `step`. `before` is the step at
/// which the previous mean was logged.
///
/// Each epoch begins a new mean. Older versions counted `--log-every` over the whole run, so a mean could
/// span several epochs.
fn begin(run: &Run, before: u64, step: u64) -> u64 {
    let steps = steps_of_epoch(run);
    let in_epoch = match step % steps {
        0 => steps,
        rest => rest,
    };
    // If the run stopped at its target, the last value is of the steps since the epoch began.
    let is_last = step == run.results.steps as u64;
    let counts_in_epoch = in_epoch.is_multiple_of(log_every(run)) || in_epoch == steps || is_last;
    let of_epoch = if counts_in_epoch { step - in_epoch.min(step) } else { 0 };
    // A resume with another --log-every begins a new mean.
    let changes = run.record.history.iter().filter(|attempt| {
        (attempt.step as u64) < step && attempt.changed.iter().any(|change| change.field == "log_every")
    });
    before.max(of_epoch).max(changes.map(|attempt| attempt.step as u64).max().unwrap_or(0))
}

/// Returns one point for each epoch in `epochs.csv` whose value is finite. Each point is drawn `before`
/// epochs before the end of its epoch.
fn by_epoch(run: &Run, before: f64, of: impl Fn(&EpochRow) -> Option<f64>) -> Vec<MeanPoint> {
    let point = |row: EpochRow| {
        let value = of(&row).filter(|value| value.is_finite())?;
        Some([row.epoch as f64 - before, value, value, value])
    };
    epochs(run).into_iter().filter_map(point).collect()
}

/// The values of one step: each rank's value, and its number of samples.
#[derive(Default)]
struct Values(Vec<(f64, f64)>);

impl Values {
    fn point(self, x: f64) -> MeanPoint {
        let samples: f64 = self.0.iter().map(|(_, samples)| samples).sum();
        let mean = self.0.iter().map(|(value, samples)| value * samples).sum::<f64>() / samples;
        let (min, max) = span(self.0.into_iter().map(|(value, _)| value));
        [x, mean, min, max]
    }
}

/// Reads the files `NAME.ENDING` of all ranks, and groups their values by step. `samples` returns a rank's
/// number of samples, its weight in the mean.
///
/// The result begins at the first step at which every rank with samples has a value: a mean over only some
/// ranks would be wrong. A rank's file may be missing, or begin late because somebody removed the earlier
/// file. If a resume has changed the number of ranks, each step has the ranks that the run had then.
fn of_ranks(
    run: &Run,
    name: &str,
    ending: &str,
    samples: fn(&RankRecord) -> usize,
) -> Result<BTreeMap<u64, Values>, String> {
    let mut values: BTreeMap<u64, Values> = BTreeMap::new();
    let counts = run.rank_counts();
    let shards: Vec<usize> = run.results.per_rank.iter().map(samples).collect();
    let all: usize = shards.iter().sum();
    // run.json has the shards of the last number of ranks only.
    let shard = |rank: usize, ranks: usize| {
        if ranks == run.record.world_size {
            shards.get(rank).copied().unwrap_or_default()
        } else {
            all.saturating_sub(rank).div_ceil(ranks)
        }
    };
    let most = counts.iter().map(|(_, ranks)| *ranks).max().unwrap_or_default();
    let file = |rank| run.path.join(format!("rank{rank}/{name}.{ending}"));
    let read = |rank| of_rank(&file(rank), if ending == "loss" { "loss" } else { "accuracy" });
    let curves: Vec<Vec<(u64, f64)>> = (0..most).map(read).collect::<Result<_, _>>()?;
    let mut begin = 0;
    for (at, &(before, ranks)) in counts.iter().enumerate() {
        let last = counts.get(at + 1).map_or(u64::MAX, |(step, _)| *step);
        let is_of_part = |(step, _): &&(u64, f64)| *step > before && *step <= last;
        if !curves.iter().take(ranks).flatten().any(|point| is_of_part(&point)) && counts.len() > 1 {
            // The run had this number of ranks for less than --log-every steps.
            continue;
        }
        let mut firsts = Vec::new();
        for (rank, points) in curves.iter().take(ranks).enumerate() {
            let shard = shard(rank, ranks);
            let mut points = points.iter().filter(is_of_part).peekable();
            let first = points.peek().map(|(step, _)| *step);
            firsts.extend(first.or((shard > 0).then_some(last.saturating_add(1))));
            for (step, value) in points {
                values.entry(*step).or_default().0.push((*value, shard.max(1) as f64));
            }
        }
        if !firsts.iter().all_equal() {
            begin = firsts.into_iter().fold(begin, u64::max);
        }
    }
    Ok(values.split_off(&begin))
}

/// Reads the steps and values of one file; an empty list if the file is missing or cannot be read. `quantity`
/// is `loss` or `accuracy`, and selects the bounds.
fn of_rank(file: &Path, quantity: &str) -> Result<Vec<(u64, f64)>, String> {
    let bytes = read_regular(file).unwrap_or_default();
    let mut points: Vec<(u64, f64)> = Vec::new();
    for (at, line) in String::from_utf8_lossy(&bytes).lines().enumerate() {
        let words = line.split_once(' ').and_then(|(step, value)| Some((step.parse().ok()?, value)));
        let last = points.last().map_or(0, |(step, _)| *step);
        let damage = match words {
            None => Some("expected a step and a value".to_owned()),
            Some((step, _)) if step < last => Some(format!("step {step} after step {last}")),
            Some((step, value)) => match value.parse::<f64>() {
                Err(_) => Some(format!("{value:?} is not a number")),
                // If the training diverged at this step, the value is not drawn.
                Ok(loss) if quantity == "loss" && !loss.is_finite() => None,
                Ok(number) => {
                    points.push((step, number));
                    out_of_bounds(quantity, value)
                }
            },
        };
        if let Some(damage) = damage {
            return Err(damaged::<EpochRow>(file, &format!("line {}: {damage}", at + 1)));
        }
    }
    Ok(points)
}

#[cfg(test)]
mod tests_of_points {
    use run_record::{Attempt, Change};

    use super::*;
    use crate::testing::{run, with_test_losses};

    /// Makes a run of `epochs` epochs of `steps` steps in `folder`. `files` are files of rank 0.
    fn with_files(folder: &Path, [epochs, steps, log_every]: [usize; 3], files: &[(&str, &str)]) -> Run {
        let options = ["--epochs", &epochs.to_string(), "--log-every", &log_every.to_string()];
        let losses: Vec<f64> = (0..epochs).map(|epoch| 2.0 / (epoch + 1) as f64).collect();
        let mut run = with_test_losses(run((1, 1), &options, 4.0), folder, &losses);
        run.results.steps = epochs * steps;
        std::fs::create_dir_all(folder.join("rank0")).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join("rank0").join(name), text).unwrap();
        }
        run
    }

    fn drawn((points, is_by_epoch): (Vec<MeanPoint>, bool)) -> (Vec<(f64, f64)>, bool) {
        (points.into_iter().map(|point| (point[0], point[1])).collect(), is_by_epoch)
    }

    #[test]
    fn a_mean_is_drawn_in_the_middle_of_its_steps_and_short_epochs_are_those_of_epochs_csv() {
        let folder = tempfile::tempdir().unwrap();
        for (shape, lines, expected, is_by_epoch) in [
            // An epoch of 40 steps, with a line after every 10.
            (
                [1, 40, 10],
                "10 4\n20 3\n30 2\n40 1\n",
                vec![(0.125, 4.0), (0.375, 3.0), (0.625, 2.0), (0.875, 1.0)],
                false,
            ),
            // Means over 15 steps begin anew with each epoch of 20 steps.
            ([2, 20, 15], "15 4\n35 2\n", vec![(0.375, 4.0), (1.375, 2.0)], false),
            // In a file of an older version, a mean begins at the line before.
            ([3, 25, 20], "20 4\n40 3\n60 2\n", vec![(0.4, 4.0), (1.2, 3.0), (2.0, 2.0)], false),
            // In a file of an older version, a line covers two epochs of 5 steps. In a file of this version,
            // it covers one.
            ([3, 5, 10], "10 4\n", vec![(0.5, 1.0), (1.5, 0.5), (2.5, 1.0 / 3.0)], true),
            ([3, 5, 100], "5 1\n10 0.5\n15 0.25\n", vec![(0.5, 1.0), (1.5, 0.5), (2.5, 1.0 / 3.0)], true),
        ] {
            let run = with_files(folder.path(), shape, &[("train.loss", lines)]);
            let (points, by_epoch) = drawn(training(&run, "loss").unwrap());
            assert_eq!(by_epoch, is_by_epoch, "{shape:?}");
            let is_near = |(a, b): (&(f64, f64), &(f64, f64))| (a.0 - b.0).abs() < 1e-9 && a.1 == b.1;
            assert!(
                points.len() == expected.len() && points.iter().zip(&expected).all(is_near),
                "{shape:?}: {points:?}"
            );
        }
    }

    #[test]
    fn tests_without_files_of_ranks_are_those_of_epochs_csv() {
        let folder = tempfile::tempdir().unwrap();
        let run = with_files(folder.path(), [2, 40, 10], &[]);
        assert_eq!(tests(&run, "test", "loss").unwrap(), [[1.0, 2.0, 2.0, 2.0], [2.0, 1.0, 1.0, 1.0]]);
        assert_eq!(tests(&run, "test", "acc").unwrap().len(), 2);
        assert!(tests(&run, "test.int8", "acc").unwrap().is_empty());
    }

    #[test]
    fn another_log_every_begins_another_mean() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = with_files(folder.path(), [1, 100, 10], &[("train.loss", "50 4\n80 3\n90 2\n")]);
        let changed = vec![Change { field: "log_every".into(), from: 50.into(), to: 10.into() }];
        run.record.history.push(Attempt { started_at: String::new(), step: 76, changed });
        let points = drawn(training(&run, "loss").unwrap()).0;
        assert_eq!(points.iter().map(|point| point.0).collect::<Vec<_>>(), [0.25, 0.78, 0.85]);
    }

    #[test]
    fn ranks_count_by_their_samples() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = Run { path: folder.path().into(), ..run((1, 2), &["--epochs", "1"], 4.0) };
        for (rank, accuracy) in [(0, 50.0), (1, 100.0)] {
            std::fs::create_dir_all(folder.path().join(format!("rank{rank}"))).unwrap();
            let line = format!("{} {accuracy}\n", run.results.steps);
            std::fs::write(folder.path().join(format!("rank{rank}/test.acc")), line).unwrap();
        }
        assert_eq!(tests(&run, "test", "acc").unwrap(), [[1.0, 75.0, 50.0, 100.0]]);
        run.results.per_rank = crate::testing::ranks(&[2, 1]);
        let [x, mean, low, high] = tests(&run, "test", "acc").unwrap()[0];
        assert!((mean - 200.0 / 3.0).abs() < 1e-9 && [x, low, high] == [1.0, 50.0, 100.0], "{mean}");
        let lines = format!("1 40\n{} 50\n", run.results.steps);
        std::fs::write(folder.path().join("rank0/test.acc"), lines).unwrap();
        assert_eq!(tests(&run, "test", "acc").unwrap().len(), 1, "rank 1 began later");
        std::fs::remove_file(folder.path().join("rank1/test.acc")).unwrap();
        assert!(tests(&run, "test", "acc").unwrap().is_empty(), "a mean of rank 0 alone");
        run.results.per_rank[1].test_samples = 0;
        assert_eq!(tests(&run, "test", "acc").unwrap().len(), 2, "rank 1 tests nothing");
    }

    /// 1 rank, then 2 ranks, then 1 rank again. Rank 1 has a point that a kill lost, after the last change.
    #[test]
    fn each_step_has_the_ranks_that_the_run_had_then() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = Run { path: folder.path().into(), ..run((1, 1), &["--epochs", "1"], 4.0) };
        let rank_0 = [(10, 50.0), (20, 60.0), (30, 70.0), (40, 80.0), (50, 90.0)];
        for (rank, points) in [(0, &rank_0[..]), (1, &[(20, 70.0), (30, 80.0), (50, 0.0)])] {
            let lines: String = points.iter().map(|(step, value)| format!("{step} {value}\n")).collect();
            std::fs::create_dir_all(folder.path().join(format!("rank{rank}"))).unwrap();
            std::fs::write(folder.path().join(format!("rank{rank}/test.acc")), lines).unwrap();
        }
        let attempt = |(step, ranks): (usize, Option<[usize; 2]>)| {
            let change = |[from, to]: [usize; 2]| Change {
                field: run_record::WORLD_SIZE.into(),
                from: from.into(),
                to: to.into(),
            };
            Attempt { started_at: String::new(), step, changed: ranks.map(change).into_iter().collect() }
        };
        run.record.history =
            [(0, None), (12, Some([1, 2])), (30, Some([2, 1])), (41, None)].map(attempt).into();
        run.results.per_rank = crate::testing::ranks(&[8]);
        assert_eq!(run.rank_counts(), [(0, 1), (12, 2), (30, 1)]);
        let means = |run: &Run| -> Vec<f64> {
            tests(run, "test", "acc").unwrap().iter().map(|point| point[1]).collect()
        };
        assert_eq!(means(&run), [50.0, 65.0, 75.0, 80.0, 90.0]);
        std::fs::remove_file(folder.path().join("rank1/test.acc")).unwrap();
        assert_eq!(means(&run), [80.0, 90.0], "a mean of rank 0 alone is not shown");
        // The checkpoints after step 15 were lost, so 2 ranks made only steps 13 to 15.
        run.record.history[3].step = 15;
        assert_eq!(run.rank_counts(), [(0, 1), (12, 2), (15, 1)]);
        assert_eq!(means(&run), [50.0, 60.0, 70.0, 80.0, 90.0]);
    }
}
