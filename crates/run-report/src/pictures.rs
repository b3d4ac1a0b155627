//! The plots of a report, and their files.

use std::path::{Path, PathBuf};

use super::allreduce::{LatencyRow, latency_plot};
use super::csv_table::Table;
use super::curves::Curves;
use super::measures::exposed_percent;
use super::plots::{self, Bars, Picture};
use super::rows::{Row, Spread, varied};
use super::runs::Section;
use super::summary::speed_up;
use super::{ReportError, write_file};

/// A drawn plot of a report.
pub struct Drawn {
    /// Name of its files, without the extension.
    pub name: String,
    /// What it shows.
    pub caption: String,
    /// Whether it takes the full width of the page.
    pub wide: bool,
    /// SVG text.
    pub svg: String,
}

/// Draws a section's plots, and writes each to `folder` as SVG and PNG.
///
/// # Errors
/// When a file cannot be written.
pub fn of_section(
    section: &Section,
    rows: &[Row<'_>],
    baseline: &str,
    folder: &Path,
) -> Result<Vec<Drawn>, ReportError> {
    let varied = varied(rows);
    let grouped = (rows, varied.as_slice());
    let mut drawn = Vec::new();
    let mut keep = |name: &str, caption: &str, picture: Option<Bars>| -> Result<(), ReportError> {
        if let Some(picture) = picture {
            drawn.push(draw(folder, format!("{}-{name}", section.name), caption.into(), &picture)?);
        }
        Ok(())
    };
    let of_several = "medians; error bars from minimum to maximum if there are repeats";
    keep(
        "time",
        &format!("Training time by topology: {of_several}."),
        Bars::of("training time", "train s", 2, grouped, |row| Some(row.train_seconds())),
    )?;
    // One topology alone has no efficiency.
    let several = rows.iter().any(|row| row.setting("topology") != baseline);
    let efficiency = |row: &Row<'_>| {
        let base = row.baseline(rows, baseline).filter(|_| several)?;
        Some(Spread::of(vec![speed_up(row, base)?.1]))
    };
    keep(
        "efficiency",
        &format!(
            "Parallel efficiency: speed-up over {baseline} divided by the number of ranks, from medians."
        ),
        Bars::of(format!("efficiency, {baseline} = 100%"), "efficiency [%]", 0, grouped, efficiency),
    )?;
    let share = |row: &Row<'_>| (row.ranks() > 1).then(|| row.spread(exposed_percent));
    keep(
        "communication",
        &format!("Share of the training time in which ranks only waited for gradients: {of_several}."),
        Bars::of("exposed communication", "share of train s [%]", 1, grouped, share),
    )?;
    for (quantity, ending, name) in [("loss", "loss", "loss"), ("accuracy [%]", "acc", "accuracy")] {
        if let Some(curves) = Curves::of(quantity, ending, rows, &varied) {
            let int8 = " Dashed: the int8 models, after each epoch.";
            let rings = " A ring marks overfitting: from there, test loss rises while training loss falls.";
            let caption = format!(
                "{} of each configuration's first run: the mean over ranks; the band is from the minimum \
                 to the maximum over ranks. Equal curves overlap.{}{}",
                if name == "loss" { "Loss" } else { "Accuracy" },
                if curves.has_int8() { int8 } else { "" },
                if curves.has_overfitting() { rings } else { "" }
            );
            drawn.push(draw(folder, format!("{}-{name}", section.name), caption, &curves.picture())?);
        }
    }
    Ok(drawn)
}

/// Draws the latencies of every file of `mpiburn bench allreduce --csv` among `files`.
///
/// # Errors
/// When a file cannot be written.
pub fn of_latencies(files: &[PathBuf], folder: &Path) -> Result<Vec<Drawn>, ReportError> {
    let mut drawn: Vec<Drawn> = Vec::new();
    for (path, rows) in files.iter().filter_map(|path| Some((path, latencies(path)?))) {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("latency");
        let name = format!("allreduce-{}-{stem}", drawn.len() + 1);
        let title = format!("all-reduce, {}", path.display());
        let caption = format!("Latency of the all-reduce by message size, from {}.", path.display());
        drawn.push(draw(folder, name, caption, &latency_plot(&title, &rows))?);
    }
    Ok(drawn)
}

/// The rows of a table of `bench allreduce`; none if it is another or damaged.
fn latencies(path: &Path) -> Option<Vec<LatencyRow>> {
    Table::read(path).rows()
}

/// Draws one plot, and writes its files.
///
/// # Errors
/// When a file cannot be written.
pub fn draw(
    folder: &Path,
    name: String,
    caption: String,
    picture: &impl Picture,
) -> Result<Drawn, ReportError> {
    let file = folder.join(format!("{name}.svg"));
    let svg = plots::svg(picture).map_err(|error| ReportError::new(&file, error))?;
    write_file(&file, svg.as_bytes())?;
    plots::save(&folder.join(format!("{name}.png")), picture)?;
    Ok(Drawn { name, caption, wide: picture.size().0 > 1000, svg })
}
