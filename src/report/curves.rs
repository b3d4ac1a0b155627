//! Loss and accuracy curves of a run: mean over ranks, in a band from the minimum to
//! the maximum over ranks.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{FONT, Mark, Picture, colour, legend};
use super::history::overfitting_epoch;
use super::rows::Row;
use super::runs::Run;

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
    /// Epoch after which the run overfits.
    overfits_after: Option<usize>,
}

/// Training and test curves side by side.
pub struct Curves {
    quantity: String,
    series: Vec<Series>,
}

impl Curves {
    /// Curves of each row's first run from the files `train.ENDING` and
    /// `test.ENDING` of its ranks. None if no run has any.
    pub fn of(quantity: &str, ending: &str, rows: &[Row<'_>], varied: &[String]) -> Option<Self> {
        let mut topologies: Vec<&str> = rows.iter().map(|row| row.setting("topology")).collect();
        topologies.dedup();
        let mut labels: Vec<String> = Vec::new();
        let mut series = Vec::new();
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
            let of_topology = topologies.iter().position(|name| *name == topology).unwrap_or_default();
            series.push((i, of_topology, name(row, rows, varied), label, panels, overfits_after));
        }
        // With two series of each topology, the second has the same colour, dashed;
        // with more, each has its own colour.
        let in_pairs = labels.len() <= 2;
        let series: Vec<Series> = series
            .into_iter()
            .map(|(i, of_topology, name, label, panels, overfits_after)| Series {
                name,
                colour: colour(if in_pairs { of_topology } else { i }),
                dashed: if in_pairs { label != labels[0] } else { i >= 7 },
                panels,
                overfits_after,
            })
            .collect();
        (!series.is_empty()).then(|| Self { quantity: quantity.into(), series })
    }

    /// Whether a test curve has a mark of overfitting.
    pub fn has_overfitting(&self) -> bool {
        self.series.iter().any(|series| series.overfits_after.is_some())
    }
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
        let text = fs::read_to_string(run.path.join(format!("rank{rank}")).join(file)).unwrap_or_default();
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
        let (low, high) = if min <= max { (min, max) } else { (0.0, 1.0) };
        let margin = (0.06 * (high - low)).max(1e-3);
        let mut chart = ChartBuilder::on(plot)
            .caption(title, (FONT, 20))
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
            // A few points, such as one per epoch, are drawn as dots as well.
            if points.len() <= 12 {
                chart.draw_series(means().map(|point| Circle::new(point, 3, series.colour.filled())))?;
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
mod tests {
    use super::*;
    use crate::report::canvas::svg;
    use crate::report::rows::group;
    use crate::report::testing::{run, with_test_losses};

    /// The pictures of a run's loss and of its accuracy, and whether each marks
    /// overfitting.
    fn drawn(losses: &[f64]) -> [(String, bool); 2] {
        let folder = tempfile::tempdir().unwrap();
        let runs = [with_test_losses(run((1, 1), &["--epochs", "4"], 4.0), folder.path(), losses)];
        let steps = runs[0].results.steps / losses.len();
        let line = |(i, loss): (usize, &f64)| format!("{} {loss}\n", (i + 1) * steps);
        let text: String = losses.iter().enumerate().map(line).collect();
        std::fs::create_dir(folder.path().join("rank0")).unwrap();
        for file in ["test.loss", "test.acc"] {
            std::fs::write(folder.path().join("rank0").join(file), &text).unwrap();
        }
        ["loss", "acc"].map(|ending| {
            let curves = Curves::of(ending, ending, &group(&runs), &[]).expect("there are curves");
            (svg(&curves).unwrap(), curves.has_overfitting())
        })
    }

    #[test]
    fn legend_names_are_the_settings_that_differ() {
        let names = |runs: &[Run]| {
            let rows = group(runs);
            let varied = crate::report::rows::varied(&rows);
            rows.iter().map(|row| name(row, &rows, &varied)).collect::<Vec<_>>()
        };
        let gloo = ["--backend", "gloo"];
        assert_eq!(names(&[run((1, 1), &[], 4.0), run((1, 2), &[], 4.0)]), ["1x1", "1x2"]);
        assert_eq!(names(&[run((1, 2), &gloo, 4.0), run((1, 2), &[], 4.0)]), ["gloo", "mpi"]);
        assert_eq!(names(&[run((1, 2), &[], 4.0), run((1, 2), &["--shuffle"], 4.0)]), ["plain", "shuffle"]);
        let both = [run((1, 1), &[], 4.0), run((1, 2), &["--shuffle"], 4.0)];
        assert_eq!(names(&both), ["1x1", "1x2, shuffle"]);
    }

    #[test]
    fn a_ring_marks_overfitting_in_the_loss_plot_only() {
        let rings = |svg: &str| svg.matches("r=\"7\"").count();
        let [loss, accuracy] = drawn(&[2.0, 1.5, 1.6, 1.7]);
        assert_eq!((rings(&loss.0), loss.1), (1, true));
        assert_eq!((rings(&accuracy.0), accuracy.1), (0, false), "accuracy has no mark");
        assert!(loss.0.contains("1x1 mpi"), "a single run is named by topology and backend");
        let [loss, _] = drawn(&[2.0, 1.5, 1.4, 1.3]);
        assert_eq!((rings(&loss.0), loss.1), (0, false));
    }
}
