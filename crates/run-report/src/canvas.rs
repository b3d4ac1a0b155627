//! Common parts of all plots: formats, font, colours, and a legend beside the data
//! area.

use std::error::Error;
use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::ReportError;
use super::png::write_png;
use run_record::files::replace_file;

/// File formats, by file extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlotFormat {
    /// `.svg`
    Svg,
    /// `.png`
    Png,
}

impl PlotFormat {
    /// The format of the extension of `path`, if it is supported.
    pub fn of(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?;
        [(Self::Svg, "svg"), (Self::Png, "png")]
            .into_iter()
            .find_map(|(format, name)| ending.eq_ignore_ascii_case(name).then_some(format))
    }
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
pub const FONT: &str = "sans-serif";

/// What the plotting library draws on.
pub trait Surface: DrawingBackend<ErrorType: 'static> {}

impl<B: DrawingBackend<ErrorType: 'static>> Surface for B {}

/// A plot that can be drawn on any backend of the plotting library.
pub trait Picture {
    /// Width and height in pixels.
    fn size(&self) -> (u32, u32) {
        (960, 600)
    }

    /// Draws onto an empty white area.
    ///
    /// # Errors
    /// Errors of the plotting backend.
    fn paint<B>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>>
    where
        B: DrawingBackend,
        B::ErrorType: 'static;
}

/// The picture as SVG text.
///
/// # Errors
/// When the picture cannot be drawn.
pub fn svg(picture: &impl Picture) -> Result<String, Box<dyn Error>> {
    use_embedded_font();
    let mut text = String::new();
    finish(picture, &SVGBackend::with_string(&mut text, picture.size()).into_drawing_area())?;
    Ok(text)
}

/// Draws to the file `path`, replacing its content.
///
/// # Errors
/// When the file cannot be written or its extension is neither `.svg` nor `.png`.
pub fn save(path: &Path, picture: &impl Picture) -> Result<(), ReportError> {
    let draw = || -> Result<(), Box<dyn Error>> {
        match PlotFormat::of(path) {
            // Drawn in memory first: the library's file writer hides the reason of an I/O error.
            Some(PlotFormat::Svg) => Ok(replace_file(path, svg(picture)?.as_bytes())?),
            Some(PlotFormat::Png) => {
                use_embedded_font();
                let (width, height) = picture.size();
                let mut rgb = vec![0; 3 * width as usize * height as usize];
                let bitmap = BitMapBackend::with_buffer(&mut rgb, (width, height));
                finish(picture, &bitmap.into_drawing_area())?;
                Ok(write_png(path, [width, height], &rgb)?)
            }
            None => Err("its name must end in .svg or .png".into()),
        }
    };
    draw().map_err(|error| ReportError::new(path, error))
}

fn finish<B: Surface>(picture: &impl Picture, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>> {
    area.fill(&WHITE)?;
    picture.paint(area)?;
    area.present()?;
    Ok(())
}

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
///
/// # Errors
/// Errors of the plotting backend.
pub fn legend<B: Surface>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extension_selects_the_format() {
        assert_eq!(PlotFormat::of(Path::new("a.SVG")), Some(PlotFormat::Svg));
        assert_eq!((PlotFormat::of(Path::new("a.pdf")), PlotFormat::of(Path::new("svg"))), (None, None));
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(shortened("mpi"), "mpi");
        assert_eq!(shortened(&"ä".repeat(40)).chars().count(), 30);
    }
}
