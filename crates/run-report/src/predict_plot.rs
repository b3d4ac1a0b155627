//! Plots of predicted and measured epoch time and efficiency over the number of
//! ranks.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{FONT, Mark, Picture, colour, legend};
use super::link::Link;
use super::predict::{Algorithm, Work, rank_counts};

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

/// Both models as lines, and runs as dots.
pub struct PredictPlot<'a> {
    /// One rank's work.
    pub work: &'a Work,
    /// The link.
    pub link: &'a Link,
    /// Runs.
    pub measured: &'a [Measured],
}

/// A panel: a predicted value by algorithm and ranks, and the measured one of a run.
struct Panel<'a> {
    title: &'a str,
    axis: &'a str,
    value: &'a dyn Fn(Algorithm, usize) -> f64,
    measured: Vec<(usize, f64)>,
    /// Whether the values span powers of ten.
    logarithmic: bool,
}

impl Picture for PredictPlot<'_> {
    fn size(&self) -> (u32, u32) {
        (1080, 460)
    }

    fn paint<B>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>>
    where
        B: DrawingBackend,
        B::ErrorType: 'static,
    {
        let (plots, beside) = area.split_horizontally(self.size().0 - 210);
        let (work, link) = (self.work, self.link);
        let time = Panel {
            title: "time of an epoch",
            axis: "seconds",
            value: &|algorithm, ranks| work.epoch_s(link, algorithm, ranks),
            measured: self.measured.iter().map(|m| (m.ranks, m.epoch_s)).collect(),
            logarithmic: true,
        };
        let efficiency = Panel {
            title: "efficiency",
            axis: "speed-up / ranks [%]",
            value: &|algorithm, ranks| work.efficiency(link, algorithm, ranks),
            measured: self.measured.iter().map(|m| (m.ranks, m.efficiency)).collect(),
            logarithmic: false,
        };
        for (plot, panel) in plots.split_evenly((1, 2)).iter().zip([time, efficiency]) {
            panel.paint(plot)?;
        }
        let mut entries: Vec<_> = Algorithm::ALL
            .into_iter()
            .enumerate()
            .map(|(i, algorithm)| (algorithm.name().to_owned(), colour(i), Mark::Line))
            .collect();
        if !self.measured.is_empty() {
            entries.push(("measured".into(), BLACK, Mark::Dot));
        }
        legend(&beside, &entries)
    }
}

impl Panel<'_> {
    fn paint<B>(&self, plot: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>>
    where
        B: DrawingBackend,
        B::ErrorType: 'static,
    {
        // The axes are linear in the logarithms, so that all panels have one axis type.
        let at = |value: f64| if self.logarithmic { value.max(1e-9).log10() } else { value };
        let line =
            |algorithm| rank_counts().map(move |n| ((n as f64).log2(), at((self.value)(algorithm, n))));
        let dots: Vec<(f64, f64)> = self.measured.iter().map(|&(n, y)| ((n as f64).log2(), at(y))).collect();
        let all = Algorithm::ALL.into_iter().flat_map(line).chain(dots.iter().copied());
        let (low, high) =
            all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), (_, y)| (low.min(y), high.max(y)));
        let range = if self.logarithmic { low - 0.15..high + 0.15 } else { 0.0..high * 1.08 };
        let mut chart = ChartBuilder::on(plot)
            .caption(self.title, (FONT, 20))
            .margin(14)
            .x_label_area_size(50)
            .y_label_area_size(72)
            .build_cartesian_2d(-0.3..10.4, range)?;
        let written = |value: f64| match value {
            v if v >= 10.0 => format!("{v:.0}"),
            v if v >= 1.0 => format!("{v:.1}"),
            v => format!("{v:.2}"),
        };
        chart
            .configure_mesh()
            .x_desc("ranks, one link per rank")
            .y_desc(self.axis)
            .x_labels(11)
            .y_labels(8)
            .x_label_formatter(&|log: &f64| format!("{:.0}", log.exp2()))
            .y_label_formatter(&|y| written(if self.logarithmic { 10f64.powf(*y) } else { *y }))
            .axis_desc_style((FONT, 16))
            .label_style((FONT, 14))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (i, algorithm) in Algorithm::ALL.into_iter().enumerate() {
            chart.draw_series(LineSeries::new(line(algorithm), colour(i).stroke_width(2)))?;
        }
        chart.draw_series(dots.into_iter().map(|dot| Circle::new(dot, 5, BLACK.filled())))?;
        Ok(())
    }
}
