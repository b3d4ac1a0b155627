//! Loss and accuracy curves of a run: mean over ranks, in a band from the minimum to
//! the maximum over ranks.

use std::collections::BTreeMap;

use super::plots::{Axis, Line, LinePlot, Mark, Panel, Picture, colour, span};
use super::rows::Row;
use super::runs::{Run, overfitting_epoch};
use super::sheet::significant;
use run_record::files::read_regular;

/// Width of the legend beside the panels, sized for the longest names.
const LEGEND: u32 = 270;

/// A point of a curve: epochs done, then mean, minimum and maximum over ranks.
type Point = [f64; 4];

/// A configuration's curve in the panels of training and test.
struct Series {
    name: String,
    line: Line,
    panels: [Vec<Point>; 2],
    /// Epoch after which the run overfits.
    overfits_after: Option<usize>,
}

/// Training and test curves side by side.
pub struct Curves {
    titles: [String; 2],
    series: Vec<Series>,
}

impl Curves {
    /// Curves of each row's first run from the files `train.ENDING` and
    /// `test.ENDING` of its ranks, and of its int8 models from `test.int8.ENDING`. None if no run has any.
    pub fn of(quantity: &str, ending: &str, rows: &[Row<'_>], varied: &[String]) -> Option<Self> {
        let mut topologies: Vec<&str> = rows.iter().map(|row| row.setting("topology")).collect();
        topologies.dedup();
        let of = |row: &Row<'_>, name: &str| read(row.first(), &format!("{name}.{ending}"));
        let found: Vec<(usize, &Row<'_>, [Vec<Point>; 3])> = rows
            .iter()
            .enumerate()
            .map(|(i, row)| (i, row, ["train", "test", "test.int8"].map(|name| of(row, name))))
            .filter(|(_, _, [train, test, _])| !(train.is_empty() && test.is_empty()))
            .collect();
        let mut labels: Vec<String> = Vec::new();
        for (_, row, _) in &found {
            let label = row.label(varied);
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        // With two series of each topology, the second has the same colour, dashed;
        // with more, or with int8 curves, each has its own colour.
        let has_int8 = found.iter().any(|(_, _, [.., int8])| !int8.is_empty());
        let in_pairs = labels.len() <= 2 && !has_int8;
        let mut series = Vec::new();
        for (i, row, [train, test, int8]) in found {
            let topology = topologies.iter().position(|name| *name == row.setting("topology"));
            let colour = colour(if in_pairs { topology.unwrap_or_default() } else { i });
            let dashed = if in_pairs { row.label(varied) != labels[0] } else { i >= 7 };
            let line = |dashed, hollow| Line { colour, dashed, hollow, ..Line::default() };
            let name = row.name(rows);
            let of_int8 = (!int8.is_empty()).then(|| Series {
                name: format!("{name}, int8"),
                line: line(true, true),
                panels: [Vec::new(), int8],
                overfits_after: None,
            });
            let overfits_after = overfitting_epoch(row.first()).filter(|_| ending == "loss");
            series.push(Series { name, line: line(dashed, false), panels: [train, test], overfits_after });
            series.extend(of_int8);
        }
        // Of runs with fewer steps than --log-every.
        let unlogged = |panel: usize| series.iter().all(|series: &Series| series.panels[panel].is_empty());
        let title = |(panel, name): (usize, &str)| {
            let remark = if unlogged(panel) { ": no value logged" } else { "" };
            format!("{name} {quantity}{remark}")
        };
        let titles = [(0, "training"), (1, "test")].map(title);
        (!series.is_empty()).then_some(Self { titles, series })
    }

    /// Whether there are curves of int8 models.
    pub fn has_int8(&self) -> bool {
        self.series.iter().any(|series| series.line.hollow)
    }

    /// Whether a test curve has a mark of overfitting.
    pub fn has_overfitting(&self) -> bool {
        self.series.iter().any(|series| series.overfits_after.is_some())
    }

    /// The plot.
    pub fn picture(&self) -> impl Picture {
        let mark = |dashed| if dashed { Mark::Dashes } else { Mark::Line };
        let entry = |series: &Series| (series.name.clone(), series.line.colour, mark(series.line.dashed));
        LinePlot {
            size: (1080, 440),
            beside: LEGEND,
            panels: (0..2).map(|panel| self.panel(panel)).collect(),
            legend: self.series.iter().map(entry).collect(),
        }
    }

    fn panel(&self, panel: usize) -> Panel<'_> {
        let points = || self.series.iter().flat_map(|series| &series.panels[panel]);
        let (low, high) = span(points().flat_map(|&[_, _, min, max]| [min, max]));
        let margin = (0.06 * (high - low)).max(1e-3);
        let last = points().map(|point| point[0]).fold(1.0, f64::max);
        Panel {
            title: &self.titles[panel],
            x: Axis {
                title: "epochs",
                range: 0.0..last * 1.03,
                labels: 7,
                text: &|epochs| significant(*epochs, 5),
            },
            y: Axis {
                title: "",
                range: low - margin..high + margin,
                labels: 8,
                text: &|y| significant(*y, 5),
            },
            lines: self.series.iter().map(|series| series.line(panel)).collect(),
        }
    }
}

impl Series {
    /// Its line in a panel.
    fn line(&self, panel: usize) -> Line {
        let points = &self.panels[panel];
        let means: Vec<(f64, f64)> = points.iter().map(|point| (point[0], point[1])).collect();
        let upper = points.iter().map(|point| (point[0], point[3]));
        let lower = points.iter().rev().map(|point| (point[0], point[2]));
        let turn = self.overfits_after.filter(|_| panel == 1).map_or(f64::NAN, |epoch| epoch as f64);
        Line {
            band: upper.chain(lower).collect(),
            // A few points, such as one per epoch, are drawn as dots as well.
            dots: if points.len() <= 12 { means.clone() } else { Vec::new() },
            rings: means.iter().copied().filter(|(x, _)| (x - turn).abs() < 0.5).collect(),
            points: means,
            ..self.line.clone()
        }
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
#[path = "curves_tests.rs"]
mod tests;
