//! Line plot: panels below one another, and a legend below the panels.

use std::error::Error;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::{FONT, LINE, MARGIN, Point, Surface, TEXT, TITLE, WIDTH, log_ticks, ticks, width_of, wrapped};

/// Height of a panel in pixels.
const PANEL: i32 = 230;
/// Width of a symbol in the legend, and space between the legend's columns, in pixels.
const MARKS: i32 = 32;
const GAP: i32 = 12;
/// Length in pixels of the dashes of lines that coincide.
const DASH: u32 = 14;

/// Symbol of a line in the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A line.
    Line,
    /// A dashed line.
    Dashes,
    /// A dot.
    Dot,
}

/// One line of a panel.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// Colour of the line, its band, dots and rings.
    pub colour: RGBColor,
    /// The points that the line joins.
    pub points: Vec<Point>,
    /// Whether the line is dashed.
    pub dashed: bool,
    /// Outline of a band around the line.
    pub band: Vec<Point>,
    /// Points to draw as dots.
    pub dots: Vec<Point>,
    /// Whether dots are hollow.
    pub hollow: bool,
    /// Points to draw a ring around.
    pub rings: Vec<Point>,
}

/// An axis, linear in its values. On a logarithmic axis, the values are logarithms, and the labels show the
/// numbers.
#[derive(Clone)]
pub struct Axis {
    /// What the axis shows, with its unit.
    pub title: &'static str,
    /// Lowest and highest value.
    pub range: Range<f64>,
    /// The values that have labels.
    pub ticks: Vec<f64>,
    /// Formats the label of a value.
    pub text: Label,
}

/// Formats the label of a value.
type Label = fn(&f64) -> String;

impl Axis {
    /// Makes an axis with about `count` labels at round values, at least `least` apart.
    pub fn linear(title: &'static str, range: Range<f64>, count: usize, least: f64, text: Label) -> Self {
        Self { title, ticks: ticks(&range, count, least), range, text }
    }

    /// Makes an axis of logarithms, with labels at round numbers.
    pub fn logarithmic(title: &'static str, range: Range<f64>, text: Label) -> Self {
        Self { title, ticks: log_ticks(&range), range, text }
    }
}

/// Makes the plotting library use the labels of the axis instead of its own choice.
impl Ranged for &Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range.clone()).map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// A panel: lines with axes and a heading.
pub struct Panel {
    /// Heading of the panel.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// The lines, in the order in which they are drawn.
    pub lines: Vec<Line>,
}

/// A line plot.
pub struct LinePlot {
    /// The panels, from top to bottom.
    pub panels: Vec<Panel>,
    /// Names of the settings whose values are the names in the legend; empty if the legend also names the
    /// settings.
    pub heading: String,
    /// Name, colour and symbol of each line.
    pub legend: Vec<(String, RGBColor, Mark)>,
}

impl LinePlot {
    /// Returns the legend in rows. Each row has as many names as fit, and each name is broken into lines.
    fn rows(&self) -> Vec<Vec<(Vec<String>, RGBColor, Mark)>> {
        let room = WIDTH - 2 * MARGIN;
        let widest =
            self.legend.iter().map(|(name, ..)| MARKS + width_of(name, TEXT) + GAP).max().unwrap_or(room);
        let columns = ((room + GAP) / widest).max(1);
        let lines =
            |(name, colour, mark): &(String, _, _)| (wrapped(name, room / columns - MARKS), *colour, *mark);
        self.legend.chunks(columns as usize).map(|row| row.iter().map(lines).collect()).collect()
    }

    /// Returns the lines of the legend's heading.
    fn heading(&self) -> Vec<String> {
        if self.heading.is_empty() { Vec::new() } else { wrapped(&self.heading, WIDTH - 2 * MARGIN) }
    }

    /// Returns the height in pixels.
    pub(super) fn height(&self) -> u32 {
        let of_row =
            |row: &Vec<(Vec<String>, _, _)>| row.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
        let lines = (self.heading().len() + self.rows().iter().map(of_row).sum::<usize>()) as i32;
        let below = if lines > 0 { LINE * lines + MARGIN } else { 0 };
        (PANEL * self.panels.len() as i32 + below) as u32
    }

    pub(super) fn paint<B: Surface>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let (plots, legend) = area.split_vertically(PANEL * self.panels.len() as i32);
        for (plot, panel) in plots.split_evenly((self.panels.len(), 1)).iter().zip(&self.panels) {
            panel.paint(plot)?;
        }
        let mut y = 0;
        for text in self.heading() {
            legend.draw(&Text::new(text, (MARGIN, y), (FONT, TEXT)))?;
            y += LINE;
        }
        for row in self.rows() {
            let width = (WIDTH - 2 * MARGIN) / row.len().max(1) as i32;
            let lines = row.iter().map(|(name, ..)| name.len()).max().unwrap_or(0) as i32;
            for (column, (name, colour, mark)) in row.into_iter().enumerate() {
                let (x, middle) = (MARGIN + column as i32 * width, y + 8);
                let line = |from, to| {
                    PathElement::new([(x + from, middle), (x + to, middle)], colour.stroke_width(4))
                };
                match mark {
                    Mark::Line => legend.draw(&line(0, 24))?,
                    Mark::Dashes => {
                        [(0, 6), (9, 15), (18, 24)]
                            .iter()
                            .try_for_each(|&(a, b)| legend.draw(&line(a, b)))?;
                    }
                    Mark::Dot => legend.draw(&Circle::new((x + 12, middle), 5, colour.filled()))?,
                }
                for (number, text) in name.into_iter().enumerate() {
                    let at = (x + MARKS, y + LINE * number as i32);
                    legend.draw(&Text::new(text, at, (FONT, TEXT)))?;
                }
            }
            y += LINE * lines;
        }
        Ok(())
    }
}

impl Panel {
    fn paint<B: Surface>(&self, plot: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let labels = self.y.ticks.iter().map(|tick| width_of(&(self.y.text)(tick), TEXT)).max().unwrap_or(0);
        let mut chart = ChartBuilder::on(plot)
            .caption(&self.title, (FONT, TITLE))
            .margin(MARGIN)
            .margin_right(MARGIN + 6)
            .x_label_area_size(2 * LINE)
            .y_label_area_size(labels + LINE + 14)
            .build_cartesian_2d(&self.x, &self.y)?;
        chart
            .configure_mesh()
            .x_desc(self.x.title)
            .y_desc(self.y.title)
            .x_label_formatter(&self.x.text)
            .y_label_formatter(&self.y.text)
            .axis_desc_style((FONT, TEXT))
            .label_style((FONT, TEXT))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (i, line) in self.lines.iter().enumerate() {
            let points = || line.points.iter().copied();
            let stroke = line.colour.stroke_width(2);
            chart.draw_series([Polygon::new(line.band.clone(), line.colour.mix(0.18).filled())])?;
            // If several lines coincide, the later ones have gaps through which each earlier line is visible.
            let like =
                |lines: &[Line]| lines.iter().filter(|other| other.points == line.points).count() as u32;
            let (before, all) = (like(&self.lines[..i]), like(&self.lines));
            match (line.dashed, before) {
                (true, _) => chart.draw_series(DashedLineSeries::new(points(), 8, 6, stroke))?,
                (_, 0) => chart.draw_series(LineSeries::new(points(), stroke))?,
                _ => {
                    let (dash, gap) = ((all - before) * DASH, before * DASH);
                    chart.draw_series(DashedLineSeries::new(points(), dash, gap, stroke))?
                }
            };
            let dot = if line.hollow { line.colour.stroke_width(1) } else { line.colour.filled() };
            chart.draw_series(line.dots.iter().map(|point| Circle::new(*point, 4, dot)))?;
            chart.draw_series(line.rings.iter().map(|point| Circle::new(*point, 7, stroke)))?;
        }
        Ok(())
    }
}
