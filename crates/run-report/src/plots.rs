//! Common parts of all plots: formats, font, colours, and a legend beside the data
//! area.

use itertools::Itertools;
use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, register_font};
use run_record::files::{WholeFile, replace_file};

use super::ReportError;
use super::matrix::Matrix;
use super::rows::{Row, Spread};

/// A plot of a report.
pub struct Picture {
    /// Name of its files, without the extension.
    pub name: String,
    /// What it shows.
    pub caption: String,
    /// The plot.
    pub plot: Plot,
}

/// A plot.
pub enum Plot {
    /// Grouped bars.
    Bars(Bars),
    /// Lines in panels.
    Lines(LinePlot),
    /// A confusion matrix.
    Matrix(Matrix),
}

impl Plot {
    /// Whether `path` ends as a format of plots does.
    pub fn is_saved_as(path: &Path) -> bool {
        format_of(path).is_some_and(|format| ["svg", "png"].contains(&format.as_str()))
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        match self {
            Self::Bars(_) => BARS,
            Self::Lines(plot) => plot.size,
            Self::Matrix(matrix) => matrix.size(),
        }
    }

    /// The plot as SVG text.
    ///
    /// # Errors
    /// When it cannot be drawn.
    pub fn svg(&self) -> Result<String, Box<dyn Error>> {
        let mut text = String::new();
        self.draw(&SVGBackend::with_string(&mut text, self.size()).into_drawing_area())?;
        Ok(text)
    }

    /// Draws to the file `path`, replacing its content.
    ///
    /// # Errors
    /// When the file cannot be written or its extension is neither `.svg` nor `.png`.
    pub fn save(&self, path: &Path) -> Result<(), ReportError> {
        let draw = || -> Result<(), Box<dyn Error>> {
            match format_of(path).as_deref() {
                // Drawn in memory first: the library's file writer hides the reason of an I/O error.
                Some("svg") => Ok(replace_file(path, self.svg()?.as_bytes())?),
                Some("png") => {
                    let (width, height) = self.size();
                    let mut rgb = vec![0; 3 * width as usize * height as usize];
                    let bitmap = BitMapBackend::with_buffer(&mut rgb, (width, height));
                    self.draw(&bitmap.into_drawing_area())?;
                    Ok(write_png(path, [width, height], &rgb)?)
                }
                _ => Err("its name must end in .svg or .png".into()),
            }
        };
        draw().map_err(|error| ReportError::new(path, error))
    }

    fn draw<B: Surface>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        use_embedded_font();
        area.fill(&WHITE)?;
        match self {
            Self::Bars(bars) => bars.paint(area)?,
            Self::Lines(plot) => plot.paint(area)?,
            Self::Matrix(matrix) => matrix.paint(area)?,
        }
        Ok(area.present()?)
    }
}

fn format_of(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_lowercase())
}

/// Colours that differ in brightness as well, for print and colour-blind readers (Okabe
/// and Ito, without yellow, which has too little contrast on white).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(60, 60, 60),
];

/// The colour of the series with this number.
pub fn colour(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

/// Name of the embedded font.
pub(super) const FONT: &str = "sans-serif";

/// What the plotting library draws on.
pub(super) trait Surface: DrawingBackend<ErrorType: 'static> {}

impl<B: DrawingBackend<ErrorType: 'static>> Surface for B {}

/// Symbol of a series in the legend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A filled box.
    Box,
    /// A line.
    Line,
    /// A dashed line.
    Dashes,
    /// A dot.
    Dot,
}

/// Writes the names of the series below one another from the top of `area`.
fn legend<B: Surface>(
    area: &DrawingArea<B, Shift>,
    entries: &[(String, RGBColor, Mark)],
) -> Result<(), Box<dyn Error>> {
    for (i, (name, colour, mark)) in entries.iter().enumerate() {
        let y = 64 + 26 * i as i32;
        let line = |from, to| PathElement::new([(from, y + 8), (to, y + 8)], colour.stroke_width(3));
        match mark {
            Mark::Box => area.draw(&Rectangle::new([(4, y + 1), (22, y + 15)], colour.filled()))?,
            Mark::Line => area.draw(&line(2, 24))?,
            Mark::Dashes => {
                [(2, 8), (11, 16), (19, 24)].iter().try_for_each(|&(a, b)| area.draw(&line(a, b)))?
            }
            Mark::Dot => area.draw(&Circle::new((13, y + 8), 5, colour.filled()))?,
        }
        area.draw(&Text::new(shortened(name), (32, y), (FONT, 15)))?;
    }
    Ok(())
}

/// The name, cut to the legend's width.
fn shortened(name: &str) -> String {
    const FITS: usize = 30;
    match name.chars().count() > FITS {
        true => name.chars().take(FITS - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

/// Text is measured and drawn with an embedded font: a cluster's nodes may have no
/// fonts.
fn use_embedded_font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let known = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
        debug_assert!(known.is_ok(), "the embedded font is valid");
    });
}

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
pub struct Axis {
    /// What its values are.
    pub title: &'static str,
    /// Its ends.
    pub range: Range<f64>,
    /// About how many labels it has.
    pub labels: usize,
    /// A label.
    pub text: fn(&f64) -> String,
}

/// A panel.
pub struct Panel {
    /// Heading.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Its lines, in the order in which they are drawn.
    pub lines: Vec<Line>,
}

/// A line plot.
pub struct LinePlot {
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// Pixels of the legend.
    pub beside: u32,
    /// The panels, from the left.
    pub panels: Vec<Panel>,
    /// The names of the lines.
    pub legend: Vec<(String, RGBColor, Mark)>,
}

impl LinePlot {
    fn paint<B: Surface>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let (plots, beside) = area.split_horizontally(self.size.0 - self.beside);
        for (plot, panel) in plots.split_evenly((1, self.panels.len())).iter().zip(&self.panels) {
            panel.paint(plot)?;
        }
        legend(&beside, &self.legend)
    }
}

impl Panel {
    fn paint<B: Surface>(&self, plot: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let mut chart = ChartBuilder::on(plot)
            .caption(&self.title, (FONT, 20))
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

/// Width and height of bars in pixels.
const BARS: (u32, u32) = (760, 400);

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
            series: rows.iter().map(|row| row.label(varied)).sorted().dedup().collect(),
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

impl Bars {
    fn paint<B: Surface>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
        let (plot, beside) = area.split_horizontally(BARS.0 - 170);
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

/// Writes a picture of 8-bit `rgb`, row by row from the top, to `path`, replacing
/// it.
///
/// # Errors
/// When the file cannot be written.
///
/// # Panics
/// When `rgb` is not `width * height` pixels of 3 bytes.
pub fn write_png(path: &Path, [width, height]: [u32; 2], rgb: &[u8]) -> io::Result<()> {
    assert_eq!(rgb.len(), 3 * width as usize * height as usize, "{width} x {height} pixels");
    let mut file = WholeFile::at(path)?;
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(rgb)?;
    writer.finish()?;
    file.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_selects_the_format() {
        let found = ["a.SVG", "b.png", "a.pdf", "svg"].map(|name| Plot::is_saved_as(Path::new(name)));
        assert_eq!(found, [true, true, false, false]);
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shortened("mpi"), "mpi");
        assert_eq!(shortened(&"ä".repeat(40)).chars().count(), 30);
    }
}

#[cfg(test)]
mod png_tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn written_pixels_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.png");
        let rgb: Vec<u8> = (0..3 * 7 * 5).map(|i| (i * 11) as u8).collect();
        write_png(&path, [7, 5], &rgb).unwrap();
        let mut reader =
            png::Decoder::new(io::BufReader::new(File::open(&path).unwrap())).read_info().unwrap();
        let mut found = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut found).unwrap();
        assert_eq!(([info.width, info.height], found), ([7, 5], rgb));
        assert!(write_png(&folder.path().join("none/a.png"), [0, 0], &[]).is_err());
    }
}
