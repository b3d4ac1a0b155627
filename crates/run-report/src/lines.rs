//! Line plots: panels side by side, with a legend beside them.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{FONT, Mark, Picture, Surface, legend};

/// A point: its place on both axes.
pub type Point = (f64, f64);

/// One line of a panel.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// Its colour.
    pub colour: RGBColor,
    /// The points that are joined.
    pub points: Vec<Point>,
    /// Whether it is dashed.
    pub dashed: bool,
    /// The outline of a band around it.
    pub band: Vec<Point>,
    /// Points that are drawn as dots.
    pub dots: Vec<Point>,
    /// Whether dots are hollow.
    pub hollow: bool,
    /// Points with a ring around them.
    pub rings: Vec<Point>,
}

/// An axis, linear in its values; of logarithms, its labels are the values.
pub struct Axis<'a> {
    /// What its values are.
    pub title: &'a str,
    /// Its ends.
    pub range: Range<f64>,
    /// About how many labels it has.
    pub labels: usize,
    /// A label.
    pub text: &'a dyn Fn(&f64) -> String,
}

/// A panel.
pub struct Panel<'a> {
    /// Heading.
    pub title: &'a str,
    /// Horizontal axis.
    pub x: Axis<'a>,
    /// Vertical axis.
    pub y: Axis<'a>,
    /// Its lines, in the order in which they are drawn.
    pub lines: Vec<Line>,
}

/// A line plot.
pub struct LinePlot<'a> {
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// Pixels of the legend.
    pub beside: u32,
    /// The panels, from the left.
    pub panels: Vec<Panel<'a>>,
    /// The names of the lines.
    pub legend: Vec<(String, RGBColor, Mark)>,
}

impl Picture for LinePlot<'_> {
    fn size(&self) -> (u32, u32) {
        self.size
    }

    fn paint<B: Surface>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let (plots, beside) = area.split_horizontally(self.size.0 - self.beside);
        for (plot, panel) in plots.split_evenly((1, self.panels.len())).iter().zip(&self.panels) {
            panel.paint(plot)?;
        }
        legend(&beside, &self.legend)
    }
}

impl Panel<'_> {
    fn paint<B: Surface>(&self, plot: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let mut chart = ChartBuilder::on(plot)
            .caption(self.title, (FONT, 20))
            .margin(14)
            .x_label_area_size(50)
            .y_label_area_size(72)
            .build_cartesian_2d(self.x.range.clone(), self.y.range.clone())?;
        chart
            .configure_mesh()
            .x_desc(self.x.title)
            .y_desc(self.y.title)
            .x_labels(self.x.labels)
            .y_labels(self.y.labels)
            .x_label_formatter(&self.x.text)
            .y_label_formatter(&self.y.text)
            .axis_desc_style((FONT, 16))
            .label_style((FONT, 14))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for line in &self.lines {
            let points = || line.points.iter().copied();
            let stroke = line.colour.stroke_width(2);
            chart.draw_series([Polygon::new(line.band.clone(), line.colour.mix(0.18).filled())])?;
            match line.dashed {
                true => chart.draw_series(DashedLineSeries::new(points(), 8, 6, stroke))?,
                false => chart.draw_series(LineSeries::new(points(), stroke))?,
            };
            let dot = if line.hollow { line.colour.stroke_width(1) } else { line.colour.filled() };
            chart.draw_series(line.dots.iter().map(|point| Circle::new(*point, 4, dot)))?;
            chart.draw_series(line.rings.iter().map(|point| Circle::new(*point, 7, stroke)))?;
        }
        Ok(())
    }
}

/// The least and the greatest of `values`; 0 and 1 if there are none.
pub fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let ends = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    if ends.0 <= ends.1 { ends } else { (0.0, 1.0) }
}
