//! Loss and accuracy curves of a run: mean over ranks, in a band from the minimum to
//! the maximum over ranks.

use std::collections::BTreeMap;
use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{FONT, Mark, Picture, colour, legend};
use super::history::{epochs, overfitting_epoch};
use super::rows::Row;
use super::runs::Run;
use run_record::EpochRow;
use run_record::files::read_regular;

/// A point of a curve: epochs done, then mean, minimum and maximum over ranks.
type Point = (f64, f64, f64, f64);

/// Index of the panel of test curves.
const TEST: usize = 1;

/// Width of the legend beside the panels, sized for the longest names.
const LEGEND: u32 = 270;

/// A configuration's curve in each panel.
struct Series {
    name: String,
    colour: RGBColor,
    dashed: bool,
    panels: [Vec<Point>; 2],
    /// Whether it is the int8 model's of the configuration before it.
    int8: bool,
    /// Epoch after which the run overfits.
    overfits_after: Option<usize>,
}

/// A row's curves, before they have a style.
struct Found {
    /// Number of the row, and of its topology.
    row: usize,
    topology: usize,
    name: String,
    label: String,
    panels: [Vec<Point>; 2],
    overfits_after: Option<usize>,
    /// Test curve of the int8 models.
    int8: Vec<Point>,
}

/// Training and test curves side by side.
pub struct Curves {
    quantity: String,
    series: Vec<Series>,
}

impl Curves {
    /// Curves of each row's first run from the files `train.ENDING` and
    /// `test.ENDING` of its ranks, and of its int8 models from `test.int8.ENDING`. None if no run has any.
    pub fn of(quantity: &str, ending: &str, rows: &[Row<'_>], varied: &[String]) -> Option<Self> {
        let mut topologies: Vec<&str> = rows.iter().map(|row| row.setting("topology")).collect();
        topologies.dedup();
        let mut labels: Vec<String> = Vec::new();
        let mut found: Vec<Found> = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            let panels = ["train", "test"].map(|split| read(row.first(), &format!("{split}.{ending}")));
            if panels.iter().all(Vec::is_empty) {
                continue;
            }
            let label = row.label(varied);
            if !labels.contains(&label) {
                labels.push(label.clone());
            }
            let overfits_after = overfitting_epoch(row.first()).filter(|_| ending == "loss");
            let topology = row.setting("topology");
            let topology = topologies.iter().position(|name| *name == topology).unwrap_or_default();
            let int8 = match read(row.first(), &format!("test.int8.{ending}")) {
                none if none.is_empty() && ending == "acc" => int8_accuracy(row.first()),
                points => points,
            };
            let name = name(row, rows, varied);
            found.push(Found { row: i, topology, name, label, panels, overfits_after, int8 });
        }
        // With two series of each topology, the second has the same colour, dashed;
        // with more, or with int8 curves, each has its own colour.
        let has_int8 = found.iter().any(|found| !found.int8.is_empty());
        let in_pairs = labels.len() <= 2 && !has_int8;
        let styled = |Found { row, topology, name, label, panels, overfits_after, int8 }| {
            let colour = colour(if in_pairs { topology } else { row });
            let int8 = (!int8.is_empty()).then(|| Series {
                name: format!("{name}, int8"),
                colour,
                dashed: true,
                panels: [Vec::new(), int8],
                int8: true,
                overfits_after: None,
            });
            let dashed = if in_pairs { label != labels[0] } else { row >= 7 };
            [Some(Series { name, colour, dashed, panels, int8: false, overfits_after }), int8]
        };
        let series: Vec<Series> = found.into_iter().flat_map(styled).flatten().collect();
        (!series.is_empty()).then(|| Self { quantity: quantity.into(), series })
    }

    /// Whether there are curves of int8 models.
    pub fn has_int8(&self) -> bool {
        self.series.iter().any(|series| series.int8)
    }

    /// Whether a test curve has a mark of overfitting.
    pub fn has_overfitting(&self) -> bool {
        self.series.iter().any(|series| series.overfits_after.is_some())
    }
}

/// Test accuracy of a run's int8 model after each epoch, over all ranks: earlier versions did not write
/// it for each.
fn int8_accuracy(run: &Run) -> Vec<Point> {
    let point = |row: EpochRow| {
        let accuracy = row.int8_test_accuracy.filter(|accuracy| accuracy.is_finite())?;
        Some((row.epoch as f64, accuracy, accuracy, accuracy))
    };
    epochs(run).into_iter().filter_map(point).collect()
}

/// A row's name in the legend: the settings in which it differs from another row.
fn name(row: &Row<'_>, rows: &[Row<'_>], varied: &[String]) -> String {
    let differs = |setting: &&str| rows.iter().any(|other| other.setting(setting) != row.setting(setting));
    let transport: Vec<&str> =
        ["topology", "backend"].into_iter().filter(differs).map(|setting| row.setting(setting)).collect();
    let used = row.used(varied);
    match (transport.is_empty(), used.is_empty()) {
        (true, true) if rows.len() > 1 => "plain".into(),
        (true, true) => format!("{} {}", row.setting("topology"), row.setting("backend")),
        (true, false) => used.join(", "),
        (false, true) => transport.join(" "),
        (false, false) => format!("{}, {}", transport.join(" "), used.join(", ")),
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
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (step as f64 / steps_of_an_epoch.max(1.0), mean, min, max)
    };
    values.into_iter().map(point).collect()
}

impl Picture for Curves {
    fn size(&self) -> (u32, u32) {
        (1080, 440)
    }

    fn paint<B>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>>
    where
        B: DrawingBackend,
        B::ErrorType: 'static,
    {
        let (plots, beside) = area.split_horizontally(self.size().0 - LEGEND);
        for (panel, (plot, name)) in plots.split_evenly((1, 2)).iter().zip(["training", "test"]).enumerate() {
            self.panel(plot, &format!("{name} {}", self.quantity), panel)?;
        }
        let mark = |dashed| if dashed { Mark::Dashes } else { Mark::Line };
        let entries: Vec<_> =
            self.series.iter().map(|s| (s.name.clone(), s.colour, mark(s.dashed))).collect();
        legend(&beside, &entries)
    }
}

impl Curves {
    fn panel<B>(&self, plot: &DrawingArea<B, Shift>, title: &str, panel: usize) -> Result<(), Box<dyn Error>>
    where
        B: DrawingBackend,
        B::ErrorType: 'static,
    {
        let points = || self.series.iter().flat_map(|series| &series.panels[panel]);
        let min = points().map(|p| p.2).fold(f64::INFINITY, f64::min);
        let max = points().map(|p| p.3).fold(f64::NEG_INFINITY, f64::max);
        let last = points().map(|p| p.0).fold(1.0, f64::max);
        let title = match points().next() {
            Some(_) => title.to_owned(),
            // Of runs with fewer steps than --log-every.
            None => format!("{title}: no value logged"),
        };
        let (low, high) = if min <= max { (min, max) } else { (0.0, 1.0) };
        let margin = (0.06 * (high - low)).max(1e-3);
        let mut chart = ChartBuilder::on(plot)
            .caption(&title, (FONT, 20))
            .margin(14)
            .x_label_area_size(50)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..last * 1.03, low - margin..high + margin)?;
        chart
            .configure_mesh()
            .x_desc("epochs")
            .x_labels(7)
            .y_labels(8)
            .axis_desc_style((FONT, 16))
            .label_style((FONT, 14))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for series in &self.series {
            let points = &series.panels[panel];
            if points.is_empty() {
                continue;
            }
            let upper = points.iter().map(|p| (p.0, p.3));
            let outline: Vec<_> = upper.chain(points.iter().rev().map(|p| (p.0, p.2))).collect();
            chart.draw_series([Polygon::new(outline, series.colour.mix(0.18).filled())])?;
            let means = || points.iter().map(|p| (p.0, p.1));
            match series.dashed {
                true => {
                    chart.draw_series(DashedLineSeries::new(means(), 8, 6, series.colour.stroke_width(2)))?
                }
                false => chart.draw_series(LineSeries::new(means(), series.colour.stroke_width(2)))?,
            };
            // A few points, such as one per epoch, are drawn as dots as well, those of int8
            // models hollow.
            if points.len() <= 12 {
                let style = if series.int8 { series.colour.stroke_width(1) } else { series.colour.filled() };
                chart.draw_series(means().map(|point| Circle::new(point, 4, style)))?;
            }
            let at_turn = |x: f64| {
                panel == TEST && series.overfits_after.is_some_and(|epoch| (x - epoch as f64).abs() < 0.5)
            };
            let rings = means().filter(|point| at_turn(point.0));
            chart.draw_series(rings.map(|point| Circle::new(point, 7, series.colour.stroke_width(2))))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "curves_tests.rs"]
mod tests;
