//! Log-log plot of latency over message size, with a line for each backend.

use super::LatencyRow;
use super::canvas::{Mark, Picture, colour};
use super::collectives::distinct;
use super::latency::human_size;
use super::lines::{Axis, Line, LinePlot, Panel, span};
use super::sheet::significant;

/// The medians of `rows` under the heading `title`.
pub fn latency_plot<'a>(title: &'a str, rows: &[LatencyRow]) -> impl Picture + 'a {
    // A clock may read 0, which has no logarithm.
    let point = |row: &LatencyRow| ((row.bytes as f64).log2(), row.median_us.max(1e-3).log10());
    let (smallest, largest) = span(rows.iter().map(|row| point(row).0));
    let (fastest, slowest) = span(rows.iter().map(|row| point(row).1));
    let line = |(i, backend): (usize, &str)| {
        let own = rows.iter().filter(|row| row.backend == backend);
        let points: Vec<_> = own.map(point).collect();
        Line { colour: colour(i), dots: points.clone(), points, ..Line::default() }
    };
    let names = distinct(rows, |row| &row.backend);
    LinePlot {
        size: (960, 600),
        beside: 210,
        legend: names.iter().enumerate().map(|(i, name)| (name.to_string(), colour(i), Mark::Line)).collect(),
        panels: vec![Panel {
            title,
            x: Axis {
                title: "message size",
                range: smallest - 0.6..largest + 0.6,
                labels: ((largest - smallest) as usize + 1).min(10),
                text: &|log| human_size(log.exp2().round() as usize),
            },
            y: Axis {
                title: "median latency [µs]",
                range: fastest - 0.15..slowest + 0.15,
                labels: 10,
                text: &|log| significant(10f64.powf(*log), 3),
            },
            lines: names.into_iter().enumerate().map(line).collect(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::canvas::save;

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
        save(&svg, &latency_plot("two ranks", &rows())).unwrap();
        let text = std::fs::read_to_string(&svg).unwrap();
        for word in ["<svg", "two ranks", "mpi", "ordered", "message size", "KiB", "µs"] {
            assert!(text.contains(word), "{word} is missing");
        }
        let png = folder.path().join("a.PNG");
        save(&png, &latency_plot("two ranks", &rows())).unwrap();
        assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    }

    #[test]
    fn one_measurement_can_be_plotted() {
        let folder = tempfile::tempdir().unwrap();
        let rows = [LatencyRow::of_all_reduce("mpi", 4, 1, vec![0.0])];
        save(&folder.path().join("a.svg"), &latency_plot("", &rows)).unwrap();
    }

    #[test]
    fn an_unwritable_file_is_reported_with_the_reason() {
        let error = save(Path::new("/nowhere/a.svg"), &latency_plot("", &rows())).unwrap_err().to_string();
        assert!(error.starts_with("cannot write /nowhere/a.svg: there is no folder"), "{error}");
    }
}
