//! Bar charts: a measurement by topology, with a bar for each backend or other setting.

use std::collections::BTreeSet;
use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::canvas::{FONT, Mark, Picture, Surface, colour, legend};
use super::rows::{Row, Spread};

/// Grouped bars.
pub struct Bars {
    title: String,
    axis: String,
    groups: Vec<String>,
    series: Vec<String>,
    /// Group, series, height.
    bars: Vec<(usize, usize, Spread)>,
    digits: usize,
}

impl Bars {
    /// Bars of `read` for `rows`, grouped by topology; a row without a value has no
    /// bar. None of fewer than two bars, which compare nothing.
    pub fn of(
        title: impl Into<String>,
        axis: &str,
        digits: usize,
        (rows, varied): (&[Row<'_>], &[String]),
        read: impl Fn(&Row<'_>) -> Option<Spread>,
    ) -> Option<Self> {
        let mut bars = Self {
            title: title.into(),
            axis: axis.into(),
            groups: vec![],
            // Sorted, so that a series has the same colour in every plot.
            series: rows.iter().map(|row| row.label(varied)).collect::<BTreeSet<_>>().into_iter().collect(),
            bars: vec![],
            digits,
        };
        for row in rows {
            let Some(spread) = read(row) else { continue };
            let crowded = if row.first().record.oversubscribed { "*" } else { "" };
            let group = index_of(&mut bars.groups, format!("{}{crowded}", row.setting("topology")));
            let series = index_of(&mut bars.series, row.label(varied));
            bars.bars.push((group, series, spread));
        }
        (bars.bars.len() > 1).then_some(bars)
    }
}

/// The index of `name` in `names`; appends it if it is new.
fn index_of(names: &mut Vec<String>, name: String) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

impl Picture for Bars {
    fn size(&self) -> (u32, u32) {
        (760, 400)
    }

    fn paint<B: Surface>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let (plot, beside) = area.split_horizontally(self.size().0 - 170);
        let highest = self.bars.iter().map(|(.., spread)| spread.max).fold(0.0, f64::max);
        let top = if highest > 0.0 { highest * 1.15 } else { 1.0 };
        let mut chart = ChartBuilder::on(&plot)
            .caption(&self.title, (FONT, 20))
            .margin(14)
            .x_label_area_size(56)
            .y_label_area_size(76)
            .build_cartesian_2d(0.0..self.groups.len() as f64, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .x_desc("topology (machines x processes), * oversubscribed")
            .y_desc(&self.axis)
            .y_labels(7)
            .y_label_formatter(&|y| if top >= 10.0 { format!("{y:.0}") } else { format!("{y:.2}") })
            .axis_desc_style((FONT, 16))
            .label_style((FONT, 15))
            .light_line_style(TRANSPARENT)
            .draw()?;
        let centred = |size: u32| (FONT, size).into_font().into_text_style(&plot);
        for (i, group) in self.groups.iter().enumerate() {
            let (x, y) = chart.plotting_area().map_coordinate(&(i as f64 + 0.5, 0.0));
            let (left, above) = plot.get_base_pixel();
            let style = centred(16).pos(Pos::new(HPos::Center, VPos::Top));
            plot.draw_text(group, &style, (x - left, y - above + 6))?;
        }
        let width = 0.8 / self.series.len() as f64;
        for (group, series, spread) in &self.bars {
            let left = *group as f64 + 0.1 + width * *series as f64;
            let bar = [(left + 0.04 * width, 0.0), (left + 0.96 * width, spread.median)];
            chart.draw_series([Rectangle::new(bar, colour(*series).filled())])?;
            let middle = left + width / 2.0;
            if spread.count > 1 {
                let range = [(middle, spread.min), (middle, spread.max)];
                chart.draw_series([PathElement::new(range, BLACK.stroke_width(2))])?;
            }
            let style = centred(15).pos(Pos::new(HPos::Center, VPos::Bottom));
            let text = format!("{:.*}", self.digits, spread.median);
            let at = (middle, spread.max + 0.01 * top);
            chart.draw_series([Text::new(text, at, style)])?;
        }
        let entries: Vec<_> =
            self.series.iter().enumerate().map(|(i, name)| (name.clone(), colour(i), Mark::Box)).collect();
        legend(&beside, &entries)
    }
}
