//! The plots of a section: times by topology, and curves of loss and accuracy.

use std::collections::BTreeMap;

use run_record::files::read_regular;

use super::matrix::Matrix;
use super::measures::exposed_percent;
use super::plots::{Axis, Bars, Line, LinePlot, Mark, Panel, Picture, Plot, colour, span};
use super::rows::{Row, Spread, varied};
use super::runs::{Run, Section, overfitting_epoch};
use super::sheet::significant;
use super::summary::speed_up;

/// The plots of `rows`; efficiency is relative to `baseline`.
pub fn pictures(section: &Section, rows: &[Row<'_>], baseline: &str) -> Vec<Picture> {
    let varied = varied(rows);
    let grouped = (rows, varied.as_slice());
    // One topology alone has no efficiency.
    let several = rows.iter().any(|row| row.setting("topology") != baseline);
    let efficiency = |row: &Row<'_>| {
        let base = row.baseline(rows, baseline).filter(|_| several)?;
        Some(Spread::of(vec![speed_up(row, base)?.1]))
    };
    let share = |row: &Row<'_>| (row.ranks() > 1).then(|| row.spread(exposed_percent));
    let of_several = "medians; error bars from minimum to maximum if there are repeats";
    let bars = [
        (
            "time",
            format!("Training time by topology: {of_several}."),
            Bars::of("training time", "train s", 2, grouped, |row| Some(row.train_seconds())),
        ),
        (
            "efficiency",
            format!(
                "Parallel efficiency: speed-up over {baseline} divided by the number of ranks, from medians."
            ),
            Bars::of(format!("efficiency, {baseline} = 100%"), "efficiency [%]", 0, grouped, efficiency),
        ),
        (
            "communication",
            format!("Share of the training time in which ranks only waited for gradients: {of_several}."),
            Bars::of("exposed communication", "share of train s [%]", 1, grouped, share),
        ),
    ];
    let bars = bars.into_iter().filter_map(|(name, caption, bars)| Some((name, caption, Plot::Bars(bars?))));
    let lines = [("loss", "Loss", "loss", "loss"), ("accuracy", "Accuracy", "accuracy [%]", "acc")];
    let lines = lines.into_iter().filter_map(|(name, word, quantity, ending)| {
        let (plot, marks) = curves(quantity, ending, rows, &varied)?;
        let caption = format!(
            "{word} of each configuration's first run: the mean over ranks; the band is from the minimum to the maximum \
             over ranks. Equal curves overlap.{marks}"
        );
        Some((name, caption, plot))
    });
    let best = rows.iter().max_by(|a, b| accuracy(a).total_cmp(&accuracy(b)));
    let matrix = best.and_then(|row| {
        let name = row.name(rows, &varied);
        let matrix = Matrix::of(format!("test samples of {name}"), row.first().results.by_class.as_ref()?)?;
        let caption = format!(
            "Confusion matrix of the most accurate configuration's first run, {name}: a row for each class, and in it \
             how many of its test samples were named as the class of each column."
        );
        Some(("confusion", caption, Plot::Matrix(matrix)))
    });
    bars.chain(lines)
        .chain(matrix)
        .map(|(name, caption, plot)| Picture { name: format!("{}-{name}", section.name), caption, plot })
        .collect()
}

/// The test accuracy of a row's first run.
fn accuracy(row: &&Row<'_>) -> f64 {
    row.first().results.test_accuracy
}

/// A point of a curve: epochs done, then mean, minimum and maximum over ranks.
type Point = [f64; 4];

/// Training and test curves side by side of each row's first run, from the files `train.ENDING` and `test.ENDING` of
/// its ranks, and of its int8 models from `test.int8.ENDING`; and what the caption says of their marks. None if no
/// run has any.
fn curves(quantity: &str, ending: &str, rows: &[Row<'_>], varied: &[String]) -> Option<(Plot, String)> {
    let mut topologies: Vec<&str> = rows.iter().map(|row| row.setting("topology")).collect();
    topologies.dedup();
    let of = |row: &Row<'_>| {
        ["train", "test", "test.int8"].map(|name| read(row.first(), &format!("{name}.{ending}")))
    };
    let found = rows.iter().enumerate().map(|(i, row)| (i, row, of(row)));
    let found: Vec<(usize, &Row<'_>, [Vec<Point>; 3])> =
        found.filter(|(.., [train, test, _])| !(train.is_empty() && test.is_empty())).collect();
    let mut labels: Vec<String> = found.iter().map(|(_, row, _)| row.label(varied)).collect();
    let first = labels.first()?.clone();
    labels.sort();
    labels.dedup();
    // With two series of each topology, the second has the same colour, dashed; with more, or with int8 curves, each
    // has its own colour.
    let has_int8 = found.iter().any(|(.., [.., int8])| !int8.is_empty());
    let in_pairs = labels.len() <= 2 && !has_int8;
    let (mut panels, mut legend, mut has_rings) = ([Vec::new(), Vec::new()], Vec::new(), false);
    for (i, row, [train, test, int8]) in &found {
        let topology = topologies.iter().position(|name| *name == row.setting("topology"));
        let colour = colour(if in_pairs { topology.unwrap_or_default() } else { *i });
        let dashed = if in_pairs { row.label(varied) != first } else { *i >= 7 };
        let turn = overfitting_epoch(row.first()).filter(|_| ending == "loss");
        has_rings |= turn.is_some();
        let style = Line { colour, dashed, ..Line::default() };
        panels[0].push(line(&style, train, None));
        panels[1].push(line(&style, test, turn));
        let mark = if dashed { Mark::Dashes } else { Mark::Line };
        legend.push((row.name(rows, varied), colour, mark));
        if !int8.is_empty() {
            panels[1].push(line(&Line { dashed: true, hollow: true, ..style }, int8, None));
            legend.push((format!("{}, int8", row.name(rows, varied)), colour, Mark::Dashes));
        }
    }
    let panels = panels.into_iter().zip(["training", "test"]);
    let panels = panels.map(|(lines, name)| panel(&format!("{name} {quantity}"), lines)).collect();
    let marks = [
        (has_int8, " Dashed: the int8 models, after each epoch."),
        (has_rings, " A ring marks overfitting: from there, test loss rises while training loss falls."),
    ];
    let marks = marks.iter().filter(|(has, _)| *has).map(|(_, text)| *text).collect();
    // The legend has room for the longest names.
    Some((Plot::Lines(LinePlot { size: (1080, 440), beside: 270, panels, legend }), marks))
}

/// A panel of curves over epochs.
fn panel(title: &str, lines: Vec<Line>) -> Panel {
    let bands = || lines.iter().flat_map(|line| line.band.iter().copied());
    let (low, high) = span(bands().map(|(_, y)| y));
    let margin = (0.06 * (high - low)).max(1e-3);
    let last = bands().map(|(x, _)| x).fold(1.0, f64::max);
    // Of runs with fewer steps than --log-every.
    let remark = if bands().next().is_none() { ": no value logged" } else { "" };
    let axis = |title, range, labels| Axis { title, range, labels, text: |value| significant(*value, 5) };
    Panel {
        title: format!("{title}{remark}"),
        x: axis("epochs", 0.0..last * 1.03, 7),
        y: axis("", low - margin..high + margin, 8),
        lines,
    }
}

/// The line of a curve, with a ring where its run begins to overfit.
fn line(style: &Line, points: &[Point], overfits_after: Option<usize>) -> Line {
    let means: Vec<(f64, f64)> = points.iter().map(|point| (point[0], point[1])).collect();
    let upper = points.iter().map(|point| (point[0], point[3]));
    let lower = points.iter().rev().map(|point| (point[0], point[2]));
    let turn = overfits_after.map_or(f64::NAN, |epoch| epoch as f64);
    Line {
        band: upper.chain(lower).collect(),
        // A few points, such as one per epoch, are drawn as dots as well.
        dots: if points.len() <= 12 { means.clone() } else { Vec::new() },
        rings: means.iter().copied().filter(|(x, _)| (x - turn).abs() < 0.5).collect(),
        points: means,
        ..style.clone()
    }
}

/// All ranks' lines of one file, merged by step. Damaged lines are skipped.
fn read(run: &Run, file: &str) -> Vec<Point> {
    let mut values: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for rank in 0..run.record.world_size {
        let bytes = read_regular(&run.path.join(format!("rank{rank}")).join(file)).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        for (step, value) in text.lines().filter_map(|line| line.split_once(' ')) {
            if let (Ok(step), Ok(value)) = (step.parse(), value.trim().parse::<f64>())
                && value.is_finite()
            {
                values.entry(step).or_default().push(value);
            }
        }
    }
    let steps_of_an_epoch = run.results.steps as f64 / run.epochs_done().max(1) as f64;
    let point = |(step, values): (u64, Vec<f64>)| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let (min, max) = span(values.into_iter());
        [step as f64 / steps_of_an_epoch.max(1.0), mean, min, max]
    };
    values.into_iter().map(point).collect()
}

#[cfg(test)]
#[path = "pictures_tests.rs"]
mod tests;
