//! Plots of predicted and measured epoch time and efficiency over the number of
//! ranks.

use plotters::style::BLACK;

use super::canvas::{Mark, Picture, colour};
use super::lines::{Axis, Line, LinePlot, Panel, span};
use super::link::Link;
use super::predict::{Algorithm, Work, rank_counts};
use super::sheet::significant;

/// A finished run on the plot.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Number of ranks.
    pub ranks: usize,
    /// Seconds of an epoch.
    pub epoch_s: f64,
    /// Parallel efficiency in percent, relative to the run that the prediction is from.
    pub efficiency: f64,
}

/// Both models of one rank's `work` over `link` as lines, and runs as dots.
pub fn predict_plot(work: &Work, link: &Link, measured: &[Measured]) -> impl Picture {
    let lines = |predicted: &dyn Fn(Algorithm, usize) -> f64, of_run: &dyn Fn(&Measured) -> f64| {
        let model = |(i, algorithm)| {
            let points = rank_counts().map(|ranks| ((ranks as f64).log2(), predicted(algorithm, ranks)));
            Line { colour: colour(i), points: points.collect(), ..Line::default() }
        };
        let dots = measured.iter().map(|run| ((run.ranks as f64).log2(), of_run(run))).collect();
        let runs = Line { colour: BLACK, dots, ..Line::default() };
        Algorithm::ALL.into_iter().enumerate().map(model).chain([runs]).collect::<Vec<_>>()
    };
    // The axes are linear in the logarithms, so that all panels have one axis type.
    let log = |seconds: f64| seconds.max(1e-9).log10();
    let times = lines(&|model, ranks| log(work.epoch_s(link, model, ranks)), &|run| log(run.epoch_s));
    let shares = lines(&|model, ranks| work.efficiency(link, model, ranks), &|run| run.efficiency);
    let ends = |lines: &[Line]| {
        span(lines.iter().flat_map(|line| line.points.iter().chain(&line.dots)).map(|point| point.1))
    };
    let ((fast, slow), (_, most)) = (ends(&times), ends(&shares));
    let ranks = || Axis {
        title: "ranks, one link per rank",
        range: -0.3..10.4,
        labels: 11,
        text: &|log| format!("{:.0}", log.exp2()),
    };
    let models = Algorithm::ALL.into_iter().enumerate();
    let models = models.map(|(i, algorithm)| (algorithm.name().to_owned(), colour(i), Mark::Line));
    let runs = (!measured.is_empty()).then(|| ("measured".to_owned(), BLACK, Mark::Dot));
    LinePlot {
        size: (1080, 460),
        beside: 210,
        legend: models.chain(runs).collect(),
        panels: vec![
            Panel {
                title: "time of an epoch",
                x: ranks(),
                y: Axis {
                    title: "seconds",
                    range: fast - 0.15..slow + 0.15,
                    labels: 8,
                    text: &|log| significant(10f64.powf(*log), 2),
                },
                lines: times,
            },
            Panel {
                title: "efficiency",
                x: ranks(),
                y: Axis {
                    title: "speed-up / ranks [%]",
                    range: 0.0..most * 1.08,
                    labels: 8,
                    text: &|percent| significant(*percent, 3),
                },
                lines: shares,
            },
        ],
    }
}
