//! Makes the plots of a section, which is the runs of one sweep, or all runs outside sweeps: times by
//! topology, curves of loss and accuracy, and a confusion matrix.

use plotters::style::RGBColor;

use super::curve_points::{MeanPoint, tests, training};
use super::matrix::Matrix;
use super::naming::{left_out, legend, names};
use super::plots::{Axis, Bar, Bars, Line, LinePlot, Mark, Palette, Panel, Picture, Plot, span};
use super::rows::{Row, Spread};
use super::runs::{Run, Section, overfitting_epoch};
use super::sheet::significant;
use super::summary::{exposed_percent, speed_up};
use super::target::has_missed;

/// Makes the plots of `rows`, in the colours of `palette`. A row is a configuration: one run or its repeats.
/// Efficiency is relative to the topology `baseline`. Damaged curves are left out and get a line in `notes`.
pub fn pictures(
    section: &Section,
    rows: &[Row<'_>],
    baseline: &str,
    palette: &Palette,
    notes: &mut Vec<String>,
) -> Vec<Picture> {
    let named = NamedRow::all(rows, palette);
    let left_out = match left_out(rows) {
        settings if settings.is_empty() => settings,
        settings => format!(" Settings of all rows, unless the row's name says otherwise: {settings}."),
    };
    let mut pictures = bar_charts(rows, &named, baseline);
    pictures.extend(curve_plots(rows, &named, notes));
    pictures.extend(confusion(&named));
    for picture in &mut pictures {
        picture.name = format!("{}-{}", section.name, picture.name);
        picture.caption += &left_out;
    }
    pictures
}

/// Makes bar charts of training time, efficiency, waiting and the time to the target accuracy, with a bar for each row that has a value.
fn bar_charts(rows: &[Row<'_>], named: &[NamedRow<'_, '_>], baseline: &str) -> Vec<Picture> {
    // If all rows are on the baseline's topology, there is no efficiency.
    let several = rows.iter().any(|row| row.setting("topology") != baseline);
    let efficiency = |row: &Row<'_>| {
        let base = row.baseline(rows, baseline).filter(|_| several)?;
        Some(Spread::from_values(vec![speed_up(row, base)?.1]))
    };
    let share = |row: &Row<'_>| (row.ranks() > 1).then(|| row.spread(exposed_percent));
    let of_several = "medians; error bars from minimum to maximum if there are repeats";
    let time_to_target = |row: &Row<'_>| {
        let spread = row.spread(|run| run.results.seconds_to_target.unwrap_or(f64::NAN));
        spread.is_known().then_some(spread)
    };
    let missed: Vec<&str> =
        named.iter().filter(|row| has_missed(row.row)).map(|row| row.name.as_str()).collect();
    let missed = match missed.join("; ") {
        names if names.is_empty() => names,
        names => format!(" Not reached by all runs: {names}."),
    };
    let bars = [
        (
            "time",
            format!("Training time: {of_several}."),
            bars(named, "training time", "train s", 2, |row| Some(row.train_seconds())),
        ),
        (
            "efficiency",
            format!(
                "Parallel efficiency: speed-up over {baseline} divided by the number of ranks, from medians."
            ),
            bars(named, &format!("efficiency, {baseline} = 100%"), "efficiency [%]", 0, efficiency),
        ),
        (
            "communication",
            format!("Share of the training time in which ranks only waited for gradients: {of_several}."),
            bars(named, "exposed communication", "share of train s [%]", 1, share),
        ),
        (
            "target",
            format!("Training time to the target accuracy, without tests: {of_several}.{missed}"),
            bars(named, "time to target accuracy", "s to target", 2, time_to_target),
        ),
    ];
    let oversubscribed = if rows.iter().any(|row| row.first().record.oversubscribed) {
        " *: more ranks than cores."
    } else {
        ""
    };
    let pictures = bars.into_iter().filter_map(|(name, caption, bars)| {
        let caption = format!("{caption}{oversubscribed}");
        Some(Picture { name: name.into(), caption, plot: Plot::Bars(bars?) })
    });
    pictures.collect()
}

/// Makes the plots of loss and of accuracy.
fn curve_plots(rows: &[Row<'_>], named: &[NamedRow<'_, '_>], notes: &mut Vec<String>) -> Vec<Picture> {
    let whose = match (rows.len(), rows.iter().any(|row| row.runs.len() > 1)) {
        (1, false) => "",
        (1, true) => " of the first run",
        (_, false) => " of each run",
        (_, true) => " of each configuration's first run",
    };
    let ranks = if rows.iter().any(|row| row.ranks() > 1) {
        ", mean over ranks; the band is from the minimum to the maximum over ranks"
    } else {
        ""
    };
    let plots = [("loss", "Loss", "loss", "loss"), ("accuracy", "Accuracy", "accuracy [%]", "acc")];
    let pictures = plots.into_iter().filter_map(|(name, word, quantity, ending)| {
        let (plot, marks) = curves(quantity, ending, named, notes)?;
        Some(Picture { name: name.into(), caption: format!("{word}{whose}{ranks}.{marks}"), plot })
    });
    pictures.collect()
}

/// Makes the confusion matrix of the first run of the most accurate row.
fn confusion(named: &[NamedRow<'_, '_>]) -> Option<Picture> {
    let best = named.iter().max_by(|a, b| accuracy(a.row).total_cmp(&accuracy(b.row)));
    let NamedRow { name, row, .. } = best?;
    // If the section has a single configuration, it needs no name. Rows without repeats have no "first run".
    let name = if named.len() > 1 { name.as_str() } else { "" };
    let matrix = Matrix::from_by_class(name, row.first().results.by_class.as_ref()?)?;
    let first = if row.runs.len() > 1 { "the first run of " } else { "" };
    let whose = match name {
        "" => String::new(),
        name => format!(" of {first}the most accurate configuration, {name}"),
    };
    let caption =
        format!("Confusion matrix{whose}: number of test samples by true class and by predicted class.");
    Some(Picture { name: "confusion".into(), caption, plot: Plot::Matrix(matrix) })
}

/// A row with its name and colour in all plots.
struct NamedRow<'r, 'a> {
    name: String,
    colour: RGBColor,
    row: &'r Row<'a>,
}

impl<'r, 'a> NamedRow<'r, 'a> {
    /// Gives every row a name and a colour.
    fn all(rows: &'r [Row<'a>], palette: &Palette) -> Vec<Self> {
        let named = names(rows).into_iter().zip(rows);
        named.map(|(name, row)| Self { colour: palette.colour(&name), name, row }).collect()
    }
}

/// Makes a bar chart of the values that `read` returns. A row without a value has no bar. `None` if there
/// would be fewer than two bars, because they would compare nothing.
fn bars(
    named: &[NamedRow<'_, '_>],
    title: &str,
    axis: &str,
    digits: usize,
    read: impl Fn(&Row<'_>) -> Option<Spread>,
) -> Option<Bars> {
    let bar = |NamedRow { name, colour, row }: &NamedRow<'_, '_>| {
        let crowded = if row.first().record.oversubscribed { " *" } else { "" };
        Some(Bar { name: format!("{name}{crowded}"), colour: *colour, spread: read(row)? })
    };
    let bars: Vec<Bar> = named.iter().filter_map(bar).collect();
    let (title, axis) = (title.to_owned(), axis.to_owned());
    (bars.len() > 1).then_some(Bars { title, axis, digits, bars })
}

/// Returns the test accuracy of a row's first run.
fn accuracy(row: &Row<'_>) -> f64 {
    row.first().results.test_accuracy
}

/// The points of a run's curves of one quantity, loss or accuracy.
struct RunCurves {
    train: Vec<MeanPoint>,
    /// Whether the points of `train` are from `epochs.csv`.
    is_by_epoch: bool,
    test: Vec<MeanPoint>,
    int8: Vec<MeanPoint>,
    overfits_after: Option<usize>,
}

impl RunCurves {
    /// Reads the curves of the run's ranks from the files `train.ENDING`, `test.ENDING` and
    /// `test.int8.ENDING` (int8 models). If epochs are short, or these files are missing, the curves are from
    /// `epochs.csv`. A damaged file gets a line in `notes`. `None` if the run has no training curve and no
    /// test curve.
    fn read(run: &Run, ending: &str, notes: &mut Vec<String>) -> Option<Self> {
        let (train, is_by_epoch) = training(run, ending).unwrap_or_else(|line| {
            notes.push(line);
            Default::default()
        });
        let read = |name| tests(run, name, ending).map_err(|line| notes.push(line));
        let [test, int8] = ["test", "test.int8"].map(read).map(Result::unwrap_or_default);
        let overfits_after = overfitting_epoch(run).filter(|_| ending == "loss");
        let has_any = !train.is_empty() || !test.is_empty();
        has_any.then_some(Self { train, is_by_epoch, test, int8, overfits_after })
    }
}

/// Plots training and test curves of each row's first run. Also returns what the caption says about the
/// plot's marks. `None` if no run has curves.
fn curves(
    quantity: &'static str,
    ending: &str,
    rows: &[NamedRow<'_, '_>],
    notes: &mut Vec<String>,
) -> Option<(Plot, String)> {
    let (mut panels, mut entries, mut found) = ([Vec::new(), Vec::new()], Vec::new(), Vec::new());
    let all: Vec<Row<'_>> = rows.iter().map(|named| named.row.clone()).collect();
    let (heading, names) = legend(&all);
    for (NamedRow { colour, row, .. }, name) in rows.iter().zip(names) {
        let Some(curves) = RunCurves::read(row.first(), ending, notes) else { continue };
        let style = Line { colour: *colour, ..Line::default() };
        panels[0].push(line(&style, &curves.train, None));
        panels[1].push(line(&style, &curves.test, curves.overfits_after));
        // If the section has a single configuration, it needs no name.
        let network = if rows.len() > 1 { name.clone() } else { "float".into() };
        entries.push((network, *colour, Mark::Line));
        if !curves.int8.is_empty() {
            panels[1].push(line(&Line { dashed: true, hollow: true, ..style }, &curves.int8, None));
            let name = if rows.len() > 1 { format!("{name}, int8") } else { "int8".into() };
            entries.push((name, *colour, Mark::Dashes));
        }
        found.push(curves);
    }
    if entries.is_empty() {
        return None;
    }
    if entries.len() == 1 {
        // A single curve needs no name.
        entries.clear();
    }
    let marks = marks(&found, &panels);
    let axes = axes(quantity, &panels.concat(), all.iter().map(|row| row.first().results.epochs_run));
    let panels = panels.into_iter().zip(["training", "test"]);
    let panels = panels.map(|(lines, name)| panel(name, &axes, lines)).collect();
    Some((Plot::Lines(LinePlot { panels, heading, legend: entries }), marks))
}

/// Returns what the caption says about the marks of `curves`. `panels` has the lines of each panel.
fn marks(curves: &[RunCurves], panels: &[Vec<Line>]) -> String {
    let is_repeated = |lines: &Vec<Line>| {
        let like = |line: &&Line| lines.iter().filter(|other| other.points == line.points).count() > 1;
        lines.iter().filter(|line| !line.points.is_empty()).any(|line| like(&line))
    };
    let has_epochs = curves.iter().any(|curves| curves.is_by_epoch);
    let is_all_by_epoch = curves.iter().all(|curves| curves.is_by_epoch);
    let has_int8 = curves.iter().any(|curves| !curves.int8.is_empty());
    let has_rings = curves.iter().any(|curves| curves.overfits_after.is_some());
    let marks = [
        (panels.iter().any(is_repeated), " Where curves are equal, their colours alternate."),
        (!is_all_by_epoch, " A training value is the mean of several steps, drawn in their middle."),
        (has_epochs && !is_all_by_epoch, " Short epochs have one training value, the mean of the epoch."),
        (is_all_by_epoch, " A training value is the mean of an epoch, drawn in its middle."),
        (has_int8, " Dashed: the int8 models, after each epoch."),
        (has_rings, " A ring marks overfitting: after it, test loss is higher and training loss is lower."),
    ];
    marks.iter().filter(|(has, _)| *has).map(|(_, text)| *text).collect()
}

/// Makes the axes of a plot, which are the same in all panels: `quantity` over epochs.
fn axes(quantity: &'static str, lines: &[Line], epochs: impl Iterator<Item = usize>) -> [Axis; 2] {
    let bands = || lines.iter().flat_map(|line| line.band.iter().copied());
    let (low, high) = span(bands().map(|(_, y)| y));
    // Labels have five significant digits. The margin is wide enough that the labels at both ends of the axis
    // differ.
    let margin = (0.06 * (high - low)).max(1e-3 * high.abs().max(1.0));
    let last = bands().map(|(x, _)| x).chain(epochs.map(|epochs| epochs as f64)).fold(1.0, f64::max);
    let axis =
        |title, range, count, least| Axis::linear(title, range, count, least, |value| significant(*value, 5));
    [axis("epochs", 0.0..last * 1.03, 5, 1.0), axis(quantity, low - margin..high + margin, 6, 0.0)]
}

/// Makes a panel of `lines` with these axes.
fn panel(title: &str, [x, y]: &[Axis; 2], lines: Vec<Line>) -> Panel {
    // All lines are empty if, for example, the runs have fewer steps than `--log-every` and no `epochs.csv`.
    let remark = if lines.iter().all(|line| line.points.is_empty()) { ": no value logged" } else { "" };
    Panel { title: format!("{title}{remark}"), x: x.clone(), y: y.clone(), lines }
}

/// Makes the line of a curve, with a ring where the run begins to overfit.
fn line(style: &Line, points: &[MeanPoint], overfits_after: Option<usize>) -> Line {
    let means: Vec<(f64, f64)> = points.iter().map(|point| (point[0], point[1])).collect();
    let upper = points.iter().map(|point| (point[0], point[3]));
    let lower = points.iter().rev().map(|point| (point[0], point[2]));
    let turn = overfits_after.map_or(f64::NAN, |epoch| epoch as f64);
    Line {
        band: upper.chain(lower).collect(),
        // If there are only a few points, such as one for each epoch, they are also drawn as dots.
        dots: if points.len() <= 12 { means.clone() } else { Vec::new() },
        rings: means.iter().copied().filter(|(x, _)| (x - turn).abs() < 0.5).collect(),
        points: means,
        ..style.clone()
    }
}

#[cfg(test)]
#[path = "pictures_tests.rs"]
mod tests;
