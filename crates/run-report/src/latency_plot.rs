//! Log-log plot of latency over message size, with a line for each backend.

use std::error::Error;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use super::canvas::{self, FONT, Picture, colour};
use super::latency::human_size;
use super::{LatencyRow, ReportError};

/// The medians of `rows` as a picture.
pub struct LatencyPlot<'a> {
    /// Heading.
    pub title: &'a str,
    /// Measurements.
    pub rows: &'a [LatencyRow],
}

/// Draws the medians of `rows` to the file `path`, replacing its content.
///
/// # Errors
/// When the file cannot be written or its extension is neither `.svg` nor `.png`.
pub fn draw(path: &Path, title: &str, rows: &[LatencyRow]) -> Result<(), ReportError> {
    canvas::save(path, &LatencyPlot { title, rows })
}

impl Picture for LatencyPlot<'_> {
    fn paint<B>(&self, area: &DrawingArea<B, Shift>) -> Result<(), Box<dyn Error>>
    where
        B: DrawingBackend,
        B::ErrorType: 'static,
    {
        paint(area, self.title, self.rows)
    }
}

fn paint<B>(area: &DrawingArea<B, Shift>, title: &str, rows: &[LatencyRow]) -> Result<(), Box<dyn Error>>
where
    B: DrawingBackend,
    B::ErrorType: 'static,
{
    let sizes = rows.iter().map(|row| row.bytes as f64);
    let latencies = rows.iter().map(latency);
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 24))
        .margin(16)
        .x_label_area_size(56)
        .y_label_area_size(80)
        .build_cartesian_2d(
            span(sizes, |low| low / 1.5, |high| high * 1.5).log_scale().base(2.0),
            span(latencies, whole_power_below, whole_power_above).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc("message size")
        .y_desc("median latency [µs]")
        .x_labels(13)
        .y_labels(10)
        .x_label_formatter(&|bytes| human_size(bytes.round() as usize))
        .y_label_formatter(&|us| format!("{}", (us * 1e3).round() / 1e3))
        .axis_desc_style((FONT, 18))
        .label_style((FONT, 15))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (i, backend) in backends(rows).into_iter().enumerate() {
        let colour = colour(i);
        let points: Vec<(f64, f64)> = rows
            .iter()
            .filter(|row| row.backend == backend)
            .map(|row| (row.bytes as f64, latency(row)))
            .collect();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(backend)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(3)));
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 4, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.4))
        .legend_area_size(32)
        .margin(12)
        .label_font((FONT, 16))
        .draw()?;
    Ok(())
}

/// The median latency, at least 1 ns: a clock may read 0, which has no logarithm.
fn latency(row: &LatencyRow) -> f64 {
    row.median_us.max(1e-3)
}

/// The backends in the order in which they first appear.
fn backends(rows: &[LatencyRow]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.backend.as_str()) {
            names.push(&row.backend);
        }
    }
    names
}

/// Minimum and maximum of `values`, each rounded outwards.
fn span(
    values: impl Iterator<Item = f64>,
    below: impl Fn(f64) -> f64,
    above: impl Fn(f64) -> f64,
) -> std::ops::Range<f64> {
    let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), x| (low.min(x), high.max(x)));
    below(low.min(high))..above(high)
}

fn whole_power_below(value: f64) -> f64 {
    10f64.powf((value / 1.1).log10().floor())
}

fn whole_power_above(value: f64) -> f64 {
    10f64.powf((value * 1.1).log10().ceil())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<LatencyRow> {
        let sizes = [4usize, 1 << 10, 1 << 20];
        let row = |backend, bytes: usize| {
            LatencyRow::of_all_reduce(backend, bytes, 2, vec![0.5 + bytes as f64 / 2000.0])
        };
        sizes.iter().flat_map(|&bytes| [row("mpi", bytes), row("ordered", bytes)]).collect()
    }

    #[test]
    fn both_formats_are_written_with_their_labels() {
        let folder = tempfile::tempdir().unwrap();
        let svg = folder.path().join("a.svg");
        draw(&svg, "two ranks", &rows()).unwrap();
        let text = std::fs::read_to_string(&svg).unwrap();
        for word in ["<svg", "two ranks", "mpi", "ordered", "message size", "KiB", "µs"] {
            assert!(text.contains(word), "{word} is missing");
        }
        let png = folder.path().join("a.PNG");
        draw(&png, "two ranks", &rows()).unwrap();
        assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    }

    #[test]
    fn one_measurement_can_be_plotted() {
        let folder = tempfile::tempdir().unwrap();
        draw(&folder.path().join("a.svg"), "", &[LatencyRow::of_all_reduce("mpi", 4, 1, vec![0.0])]).unwrap();
    }

    #[test]
    fn an_unwritable_file_is_reported_with_the_reason() {
        let error = draw(Path::new("/nowhere/a.svg"), "", &rows()).unwrap_err().to_string();
        assert!(error.starts_with("cannot write /nowhere/a.svg: there is no folder"), "{error}");
    }
}
