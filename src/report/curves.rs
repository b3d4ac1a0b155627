//! Loss and accuracy over a run: the mean over ranks, in the band from the
//! least rank to the greatest.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{FONT, Mark, Picture, colour, legend};
use super::history::turn;
use super::rows::Row;
use super::runs::Run;

/// A point of a curve: epochs done, then mean, least and greatest over ranks.
type Point = (f64, f64, f64, f64);

/// Number of the panel of test curves.
const TEST: usize = 1;

/// Width of the legend beside the panels, which holds its longest names.
const LEGEND: u32 = 270;

/// A configuration's curve in each panel.
struct Series {
    name: String,
    colour: RGBColor,
    dashed: bool,
    panels: [Vec<Point>; 2],
    /// Epoch after which the run overfits.
    turn: Option<usize>,
}

/// Training and test curves side by side.
pub struct Curves {
    quantity: String,
    series: Vec<Series>,
}

impl Curves {
    /// Curves of each row's first run from the files `train.ENDING` and
    /// `test.ENDING` of its ranks. None where no run has any.
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
            let turn = turn(row.first()).filter(|_| ending == "loss");
            let topology = row.setting("topology");
            let of_topology = topologies.iter().position(|name| *name == topology).unwrap_or_default();
            series.push((i, of_topology, name(row, rows, varied), label, panels, turn));
        }
        // With two kinds of each topology, the second is the same colour in
        // dashes; of more, each has a colour of its own.
        let in_pairs = labels.len() <= 2;
        let series: Vec<Series> = series
            .into_iter()
            .map(|(i, of_topology, name, label, panels, turn)| Series {
                name,
                colour: colour(if in_pairs { of_topology } else { i }),
                dashed: if in_pairs { label != labels[0] } else { i >= 7 },
                panels,
                turn,
            })
            .collect();
        (!series.is_empty()).then(|| Self { quantity: quantity.into(), series })
    }

    /// Whether some test curve has a mark where it turns up for good.
    pub fn has_turns(&self) -> bool {
        self.series.iter().any(|series| series.turn.is_some())
    }
}

/// A row in the legend: what it does not have in common with all others.
fn name(row: &Row<'_>, rows: &[Row<'_>], varied: &[String]) -> String {
    let differs = |setting: &&str| rows.iter().any(|other| other.setting(setting) != row.setting(setting));
    let place: Vec<&str> =
        ["topology", "backend"].into_iter().filter(differs).map(|setting| row.setting(setting)).collect();
    let used = row.used(varied);
    match (place.is_empty(), used.is_empty()) {
        (true, true) if rows.len() > 1 => "plain".into(),
        (true, true) => format!("{} {}", row.setting("topology"), row.setting("backend")),
        (true, false) => used.join(", "),
        (false, true) => place.join(" "),
        (false, false) => format!("{}, {}", place.join(" "), used.join(", ")),
    }
}

/// All ranks' lines of one file, put together by step. A line that is damaged
/// is left out.
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
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let greatest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        (step as f64 / steps_of_an_epoch.max(1.0), mean, least, greatest)
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
        let least = points().map(|p| p.2).fold(f64::INFINITY, f64::min);
        let greatest = points().map(|p| p.3).fold(f64::NEG_INFINITY, f64::max);
        let last = points().map(|p| p.0).fold(1.0, f64::max);
        let (low, high) = if least <= greatest { (least, greatest) } else { (0.0, 1.0) };
        let room = (0.06 * (high - low)).max(1e-3);
        let mut chart = ChartBuilder::on(plot)
            .caption(title, (FONT, 20))
            .margin(14)
            .x_label_area_size(50)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..last * 1.03, low - room..high + room)?;
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
            // Few points, as one an epoch, are shown as what they are.
            if points.len() <= 12 {
                chart.draw_series(means().map(|point| Circle::new(point, 3, series.colour.filled())))?;
            }
            let at_turn =
                |x: f64| panel == TEST && series.turn.is_some_and(|turn| (x - turn as f64).abs() < 0.5);
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

    /// The pictures of a run's loss and of its accuracy, and whether each says
    /// that the run overfits.
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
            (svg(&curves).unwrap(), curves.has_turns())
        })
    }

    #[test]
    fn the_legend_says_what_differs() {
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
    fn a_ring_is_where_test_loss_turns_up_and_nowhere_else() {
        let rings = |svg: &str| svg.matches("r=\"7\"").count();
        let [loss, accuracy] = drawn(&[2.0, 1.5, 1.6, 1.7]);
        assert_eq!((rings(&loss.0), loss.1), (1, true));
        assert_eq!((rings(&accuracy.0), accuracy.1), (0, false), "accuracy has no turn");
        assert!(loss.0.contains("1x1 mpi"), "one run has nothing to differ in");
        let [loss, _] = drawn(&[2.0, 1.5, 1.4, 1.3]);
        assert_eq!((rings(&loss.0), loss.1), (0, false));
    }
}
