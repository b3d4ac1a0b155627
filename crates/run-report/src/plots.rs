//! What all plots share: file formats, font, colours, and round numbers on axes.

mod bars;
mod doubled;
mod lines;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use run_record::files::{WholeFile, replace_file};

use super::ReportError;
use super::matrix::Matrix;
pub use bars::{Bar, Bars};
use doubled::Doubled;
pub use lines::{Axis, Line, LinePlot, Mark, Panel};
use terminal::table::shortened;

/// A plot of a report.
pub struct Picture {
    /// Name of its files, without the extension.
    pub name: String,
    /// What the plot shows, as a sentence.
    pub caption: String,
    /// The plot.
    pub plot: Plot,
}

/// A plot.
pub enum Plot {
    /// Horizontal bars, one for each configuration.
    Bars(Bars),
    /// Lines in panels below one another.
    Lines(LinePlot),
    /// A confusion matrix.
    Matrix(Matrix),
}

impl Plot {
    /// Whether the extension of `path` is a format of plots.
    pub fn is_saved_as(path: &Path) -> bool {
        format_of(path).is_some_and(|format| ["svg", "png"].contains(&format.as_str()))
    }

    /// Returns width and height in pixels.
    pub fn size(&self) -> (u32, u32) {
        match self {
            Self::Bars(bars) => (WIDTH as u32, bars.height()),
            Self::Lines(plot) => (WIDTH as u32, plot.height()),
            Self::Matrix(matrix) => matrix.size(),
        }
    }

    /// Returns the smallest width in pixels at which all text is at least 11 pixels high.
    pub fn least_width(&self) -> u32 {
        (f64::from(self.size().0) * 11.0 * SIZE_PER_PIXEL / f64::from(TEXT)).ceil() as u32
    }

    /// Returns the plot as SVG text.
    ///
    /// # Errors
    /// If it cannot be drawn.
    pub fn svg(&self) -> Result<String, Box<dyn Error>> {
        let mut text = String::new();
        self.draw(&SVGBackend::with_string(&mut text, self.size()).into_drawing_area())?;
        Ok(text)
    }

    /// Draws to the file `path` and replaces its content.
    ///
    /// # Errors
    /// If the file cannot be written, or its extension is not `.svg` or `.png`.
    pub fn save(&self, path: &Path) -> Result<(), ReportError> {
        let draw = || -> Result<(), Box<dyn Error>> {
            match format_of(path).as_deref() {
                // Draw in memory first: the plotting library's file writer hides the reason of an I/O error.
                Some("svg") => Ok(replace_file(path, self.svg()?.as_bytes())?),
                Some("png") => {
                    let (width, height) = (2 * self.size().0, 2 * self.size().1);
                    let mut rgb = vec![0; 3 * width as usize * height as usize];
                    let bitmap = BitMapBackend::with_buffer(&mut rgb, (width, height));
                    self.draw(&Doubled(bitmap).into_drawing_area())?;
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

/// Colours that also differ in brightness, for print and colour-blind readers. Six are from Okabe and Ito,
/// whose yellow has too little contrast on white; a dark grey replaces their black. Three are from Tol's
/// muted scheme.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(60, 60, 60),
    RGBColor(136, 34, 85),
    RGBColor(153, 153, 51),
    RGBColor(51, 34, 136),
];

/// Returns the colour with this number. Numbers beyond the last of `COLOURS` get the same colours in a darker
/// shade.
pub fn colour(number: usize) -> RGBColor {
    let RGBColor(r, g, b) = COLOURS[number % COLOURS.len()];
    let darker = |part: u8| (f64::from(part) * 0.6f64.powi((number / COLOURS.len()) as i32)) as u8;
    RGBColor(darker(r), darker(g), darker(b))
}

/// Colours of names. A name has the same colour in all plots of a report, and the other names of its section
/// have other colours.
#[derive(Debug, Default)]
pub struct Palette(BTreeMap<String, usize>);

impl Palette {
    /// Assigns colours to the names of each section. The names of transports have the first colours in every
    /// report.
    pub fn for_sections(sections: &[Vec<String>]) -> Self {
        let transports = ["mpi", "gloo", "nccl"].map(str::to_owned).to_vec();
        let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
        for name in transports.iter().chain(sections.iter().flatten()) {
            if numbers.contains_key(name) {
                continue;
            }
            let with_it = sections.iter().chain([&transports]).filter(|names| names.contains(name));
            let taken: BTreeSet<usize> =
                with_it.flatten().filter_map(|other| numbers.get(other).copied()).collect();
            let free = (0..).find(|number| !taken.contains(number)).unwrap_or_default();
            numbers.insert(name.clone(), free);
        }
        Self(numbers)
    }

    /// Returns the colour of a name; black if the palette does not contain it.
    pub fn colour(&self, name: &str) -> RGBColor {
        self.0.get(name).map_or(BLACK, |number| colour(*number))
    }
}

/// Name of the embedded font.
pub(super) const FONT: &str = "sans-serif";
/// Width of bar and line plots in pixels: the width of a page on a phone, or a third of a page in a window of
/// 1,400 pixels. At this width, the text in a plot is as large as the page's text.
pub(super) const WIDTH: i32 = 348;
/// Font sizes of text and headings, in the plotting library's unit. In an SVG, [`SIZE_PER_PIXEL`] of these
/// units are one pixel of height, so the two sizes are 14 and 15 pixels.
pub(super) const TEXT: u32 = 17;
const TITLE: u32 = 19;
const SIZE_PER_PIXEL: f64 = 1.24;
/// Height of a line of text in pixels. `MARGIN` is the margin in pixels.
const LINE: i32 = 21;
const MARGIN: i32 = 10;

/// A drawing backend of the plotting library, with an error type that `Box<dyn Error>` accepts.
pub(super) trait Surface: DrawingBackend<ErrorType: 'static> {}

impl<B: DrawingBackend<ErrorType: 'static>> Surface for B {}

/// Returns the width of a text in pixels.
pub(super) fn width_of(text: &str, size: u32) -> i32 {
    use_embedded_font();
    (FONT, size).into_font().box_size(text).map_or(0, |(width, _)| width as i32)
}

/// Shortens a text to at most `room` pixels, and keeps its beginning and its end.
pub(super) fn fitting(text: &str, room: i32) -> String {
    let letters = (1..=text.chars().count()).rev();
    let mut shorter = letters.map(|letters| shortened(text, letters));
    shorter.find(|text| width_of(text, TEXT) <= room).unwrap_or_default()
}

/// Breaks a name at spaces into lines of at most `room` pixels.
fn wrapped(name: &str, room: i32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ').map(|word| fitting(word, room)) {
        let longer = lines.last().map(|line| format!("{line} {word}"));
        match longer.filter(|longer| width_of(longer, TEXT) <= room) {
            Some(longer) => *lines.last_mut().expect("there is one") = longer,
            None => lines.push(word),
        }
    }
    lines
}

/// Returns round numbers in `range`: about `count` of them, at least `least` apart.
fn ticks(range: &Range<f64>, count: usize, least: f64) -> Vec<f64> {
    let rough = ((range.end - range.start) / count as f64).max(least).max(1e-9);
    let unit = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].map(|factor| factor * unit).into_iter().find(|step| *step >= 0.999 * rough);
    let step = step.unwrap_or(10.0 * unit);
    let numbers = (0..100).map(|i| ((range.start / step).ceil() + f64::from(i)) * step);
    numbers.take_while(|number| *number <= range.end).collect()
}

/// Returns the logarithms of round numbers in a `range` of logarithms.
fn log_ticks(range: &Range<f64>) -> Vec<f64> {
    let ticks_of = |mantissas: &'static [f64]| -> Vec<f64> {
        let powers = range.start.floor() as i32..=range.end.ceil() as i32;
        let all = powers.flat_map(|power| mantissas.iter().map(move |m| f64::from(power) + m.log10()));
        all.filter(|tick| range.contains(tick)).collect()
    };
    Some(ticks_of(&[1.0, 2.0, 5.0])).filter(|ticks| ticks.len() <= 9).unwrap_or_else(|| ticks_of(&[1.0]))
}

/// Makes the plotting library measure and draw text with an embedded font: the nodes of a cluster may have no
/// fonts.
fn use_embedded_font() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let known = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
        debug_assert!(known.is_ok(), "the embedded font is valid");
    });
}

/// Coordinates of a point on both axes.
pub type Point = (f64, f64);

/// Returns minimum and maximum of `values`; 0 and 1 if there are no values.
pub fn span(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let ends = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    if ends.0 <= ends.1 { ends } else { (0.0, 1.0) }
}

/// Writes a picture to the file `path` and replaces its content. `rgb` has 8 bits for each colour, row by row
/// from the top.
///
/// # Errors
/// If the file cannot be written.
///
/// # Panics
/// If `rgb` is not `width * height` pixels of 3 bytes.
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
    fn a_name_has_one_colour_and_those_beside_it_have_others() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let many: Vec<String> = (0..25).map(|i| format!("name {i}")).collect();
        let sections = [names(&["a", "b"]), names(&["c", "b", "mpi"]), names(&["c", "a"]), many.clone()];
        let palette = Palette::for_sections(&sections);
        for section in &sections {
            let colours: BTreeSet<_> =
                section.iter().map(|name| palette.colour(name)).map(|c| (c.0, c.1, c.2)).collect();
            assert_eq!(colours.len(), section.len(), "{section:?}");
        }
        assert_eq!(
            palette.colour("mpi"),
            Palette::for_sections(&[]).colour("mpi"),
            "the same in every report"
        );
    }

    #[test]
    fn names_are_whole_in_lines_that_fit() {
        assert_eq!(wrapped("mpi", 200), ["mpi"]);
        let name = "1x2 (mpi, batch norm, dropout 0.5, early stopping 2, learning rate 0.001)";
        let lines = wrapped(name, 300);
        assert!(lines.len() > 1 && lines.iter().all(|line| width_of(line, TEXT) <= 300), "{lines:?}");
        assert_eq!(lines.join(" "), name);
        let long = |end: char| format!("1x2 (mpi, data root {}{end})", "long/".repeat(30));
        let [a, b] = ['a', 'b'].map(|end| wrapped(&long(end), 300));
        assert!(a != b && a.iter().all(|line| width_of(line, TEXT) <= 300), "{a:?}");
        assert!(a.last().is_some_and(|line| line.starts_with("long/") && line.contains('…')), "{a:?}");
    }

    #[test]
    fn ticks_are_round_and_of_epochs_whole() {
        assert_eq!(ticks(&(0.0..3.1), 6, 1.0), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(ticks(&(0.0..1.0), 6, 1.0), [0.0, 1.0]);
        assert_eq!(ticks(&(0.0..103.0), 6, 1.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(&(0.93..1.02), 3, 0.0).len(), 2);
        assert_eq!(ticks(&(1.0..1.0), 3, 0.0), [1.0]);
        let powers = log_ticks(&(0.5..2.5));
        assert_eq!(
            powers.iter().map(|tick| 10f64.powf(*tick).round()).collect::<Vec<_>>(),
            [5.0, 10.0, 20.0, 50.0, 100.0, 200.0]
        );
        assert_eq!(log_ticks(&(-0.1..5.1)), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
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
