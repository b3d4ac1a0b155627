//! Horizontal bar chart, with the name of each configuration above its bar. Above a bar, long names fit
//! without being shortened. The values stand right of the error bars.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::super::rows::Spread;
use super::super::sheet::significant;
use super::{FONT, LINE, MARGIN, Surface, TEXT, TITLE, WIDTH, ticks, width_of, wrapped};
use terminal::digits::decimals;

const BAR: i32 = 16;
const GAP: i32 = 8;
/// Height of the axis in pixels, with labels and title.
const AXIS: i32 = 52;

/// A bar of the chart.
pub struct Bar {
    /// Name of the configuration.
    pub name: String,
    /// Colour of the bar.
    pub colour: RGBColor,
    /// Length of the bar: the median, with the range over repeats.
    pub spread: Spread,
}

/// A bar chart of one measurement.
pub struct Bars {
    /// Heading of the chart.
    pub title: String,
    /// Title of the axis: what the lengths are.
    pub axis: String,
    /// Minimum number of decimal places of the values. Values below 1 have three significant digits.
    pub digits: usize,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

impl Bars {
    /// Returns the lines of each name, with the bar below them.
    fn rows(&self) -> impl Iterator<Item = (Vec<String>, &Bar)> {
        self.bars.iter().map(|bar| (wrapped(&bar.name, WIDTH - 2 * MARGIN), bar))
    }

    /// Returns the height in pixels.
    pub(super) fn height(&self) -> u32 {
        let rows = self.rows().map(|(name, _)| LINE * name.len() as i32 + BAR + GAP).sum::<i32>();
        (3 * MARGIN + LINE + rows + AXIS) as u32
    }

    pub(super) fn paint<B: Surface>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let value = |spread: &Spread| format!("{:.*}", decimals(spread.median, self.digits), spread.median);
        let room = self.bars.iter().map(|bar| width_of(&value(&bar.spread), TEXT)).max().unwrap_or(0) + 10;
        let longest = self.bars.iter().map(|bar| bar.spread.max).fold(0.0, f64::max);
        let end = if longest > 0.0 { longest } else { 1.0 };
        let x = |length: f64| MARGIN + (length / end * f64::from(WIDTH - 2 * MARGIN - room)).round() as i32;
        let style = |size: u32, horizontal, vertical| {
            (FONT, size).into_font().into_text_style(area).pos(Pos::new(horizontal, vertical))
        };
        area.draw_text(&self.title, &style(TITLE, HPos::Center, VPos::Top), (WIDTH / 2, MARGIN))?;
        let (top, bottom) = (2 * MARGIN + LINE, self.height() as i32 - AXIS);
        for tick in ticks(&(0.0..end), 4, 0.0) {
            let at = x(tick);
            area.draw(&PathElement::new([(at, top), (at, bottom)], BLACK.mix(0.12)))?;
            let label = significant(tick, 4);
            area.draw_text(&label, &style(TEXT, HPos::Center, VPos::Top), (at.max(MARGIN + 6), bottom + 4))?;
        }
        area.draw_text(&self.axis, &style(TEXT, HPos::Center, VPos::Top), (WIDTH / 2, bottom + 4 + LINE))?;
        let mut y = top;
        for (name, Bar { colour, spread, .. }) in self.rows() {
            for line in name {
                area.draw_text(&line, &style(TEXT, HPos::Left, VPos::Top), (MARGIN + 5, y))?;
                y += LINE;
            }
            area.draw(&Rectangle::new([(x(0.0), y), (x(spread.median), y + BAR)], colour.filled()))?;
            let middle = y + BAR / 2;
            if spread.count > 1 {
                let (min, max) = (x(spread.min), x(spread.max));
                let across = |at: i32| [(at, middle - 5), (at, middle + 5)];
                for line in [[(min, middle), (max, middle)], across(min), across(max)] {
                    area.draw(&PathElement::new(line, BLACK.stroke_width(2)))?;
                }
            }
            let at = (x(spread.max) + 8, middle);
            area.draw_text(&value(spread), &style(TEXT, HPos::Left, VPos::Center), at)?;
            y += BAR + GAP;
        }
        area.draw(&PathElement::new([(x(0.0), top), (x(0.0), bottom)], BLACK))?;
        Ok(())
    }
}
