//! `mpiburn report --scaling`: predicts times for 1 to 1024 ranks, from one run and the latency and bandwidth
//! of a link.

use anyhow::bail;
use plotters::style::BLACK;

use super::UsageError;
use super::command::ReportArgs;
use super::cost_model::{AllReduce, Work, rank_counts};
use super::link::{Link, MEASURE};
use super::page::PagePart;
use super::plots::{Axis, Line, LinePlot, Mark, Panel, Picture, Plot, colour, span};
use super::remarks::is_sound;
use super::rows::{Row, group};
use super::runs::{Run, Section};
use super::sheet::{Cell, Column, Sheet, significant};
use super::summary::STEP;
use terminal::digits::decimals;

/// Makes the prediction of each section. A section is the runs of one sweep, or all runs outside sweeps.
///
/// # Errors
/// If no link is given, or its file cannot be read or is damaged.
pub fn parts(args: &ReportArgs, sections: &[Section]) -> anyhow::Result<Vec<PagePart>> {
    let link = match (&args.link, args.latency_us, args.bandwidth_mbit) {
        (Some(file), ..) => Link::read(file)?,
        (None, Some(latency), Some(bandwidth)) => Link::new(latency, bandwidth),
        (None, Some(latency), None) => {
            bail!(UsageError::new("latency-us", latency, "also requires --bandwidth-mbit"))
        }
        (None, None, Some(bandwidth)) => {
            bail!(UsageError::new("bandwidth-mbit", bandwidth, "also requires --latency-us"))
        }
        (None, None, None) => {
            let problem = format!("requires --latency-us and --bandwidth-mbit, or --link FILE: {MEASURE}");
            bail!(UsageError::new("scaling", "", problem))
        }
    };
    Ok(sections.iter().map(|section| part(section, &link)).collect())
}

fn part(section: &Section, link: &Link) -> PagePart {
    let (title, name) = (section.title.clone(), section.name.clone());
    let mut part = PagePart { title, name, notes: section.notes.clone(), ..PagePart::default() };
    let rows = group(&section.runs);
    // The cost models have one all-reduce of gradients in each step, which local updates do not.
    let averages_gradients = |row: &&Row<'_>| row.first().option("sync_every").is_null();
    // Take the row (one run or its repeats) with the fewest ranks. Rows in which ranks share cores
    // (oversubscribed) come last.
    let candidates = rows.iter().filter(averages_gradients);
    let base = candidates.min_by_key(|row| (row.first().record.oversubscribed, row.ranks()));
    let Some(base) = base else {
        let what =
            "cannot predict from runs with --sync-every: name a run that averages gradients in each step";
        part.notes.extend(rows.first().map(|_| what.to_owned()));
        return part;
    };
    // The work is taken from a single run, because the phases of one run are consistent. It is the run with
    // the median step time.
    let mut repeats = base.runs.clone();
    repeats.sort_by(|a, b| a.results.ms_per_step.total_cmp(&b.results.ms_per_step));
    let source = repeats[(repeats.len() - 1) / 2];
    let work = Work::from_run(source);
    if work.compute_ms == 0.0 || work.samples == 0 {
        let what =
            "cannot predict from this run: it spent all of its time waiting for gradients, or has no samples";
        part.notes.push(format!("{}: {what}", source.path.display()));
        return part;
    }
    // Rows that do the same computation as `base`, on any topology.
    let is_excepted = |name: &str| {
        base.is_of_backend(name) || ["topology", "oversubscribed", "launcher", "mpi"].contains(&name)
    };
    let measured: Vec<&Row<'_>> = rows.iter().filter(|row| row.equals_except(base, is_excepted)).collect();
    let mut sheet = table(section, &work, link, source, &measured);
    if !is_sound(base) {
        sheet.remarks.push("The times of that run are unreliable: too short, disturbed or unsteady.".into());
    }
    let caption =
        "Epoch time and efficiency by the ring and recursive-doubling cost models; dots are measured runs.";
    let measured: Vec<&Row<'_>> =
        measured.into_iter().filter(|row| !row.first().record.oversubscribed).collect();
    let plot = predict_plot(&work, link, &measured);
    part.pictures.push(Picture { name: sheet.name.clone(), caption: caption.into(), plot });
    part.sheets.push(sheet);
    part
}

/// Returns the measured time of an epoch in seconds.
fn epoch_s(row: &Row<'_>) -> f64 {
    row.train_seconds().median / row.first().epochs_trained()
}

/// A row of the table: a number of ranks, and a measured configuration with this number of ranks; `None` if
/// no such configuration was measured.
struct PredictionRow<'r, 'a> {
    ranks: usize,
    measured: Option<&'r Row<'a>>,
}

/// Makes the table: a row for each number of ranks and each measured configuration, with the predictions of
/// both models.
fn table(section: &Section, work: &Work, link: &Link, source: &Run, measured: &[&Row<'_>]) -> Sheet {
    let count = |number: usize| Cell::number(number as f64, 0, vec![]);
    let mut columns = vec![
        Column::number("ranks", "ranks").shows(|line: &PredictionRow<'_, '_>| count(line.ranks)),
        Column::number("steps", "steps_per_epoch")
            .shows(|line: &PredictionRow<'_, '_>| count(work.steps(line.ranks))),
    ];
    let values: [(_, _, _, &dyn Fn(AllReduce, usize) -> f64); 3] = [
        ("ms/step", "ms_per_step", 3, &|model, ranks| work.step_ms(link, model, ranks)),
        ("epoch s", "epoch_seconds", 2, &|model, ranks| work.epoch_s(link, model, ranks)),
        ("effic. %", "efficiency_percent", 0, &|model, ranks| work.efficiency(link, model, ranks)),
    ];
    for (title, key, digits, value) in values {
        let names = [("ring", "ring"), ("rec. doubling", "recursive_doubling")];
        for (model, (name, short)) in AllReduce::ALL.into_iter().zip(names) {
            let column = Column::number(&format!("{title} {name}"), &format!("{key}_{short}"));
            columns.push(column.shows(move |line: &PredictionRow<'_, '_>| {
                let found = value(model, line.ranks);
                let places = if key.ends_with("percent") { digits } else { decimals(found, digits) };
                Cell::number(found, places, vec![])
            }));
        }
    }
    let label = |row: &Row<'_>| {
        let oversubscribed = if row.first().record.oversubscribed { ", oversubscribed" } else { "" };
        Cell::text(format!("{} {}{oversubscribed}", row.setting("topology"), row.setting("backend")))
    };
    columns.push(
        Column::words("run", "measured_on")
            .shows(|line: &PredictionRow<'_, '_>| Cell::maybe(line.measured.map(label))),
    );
    columns.push(
        Column::spread("ms/step of run", "ms_per_step_measured")
            .shows(|line: &PredictionRow<'_, '_>| Cell::maybe(line.measured.map(|row| STEP.cell(row)))),
    );
    let title = format!(
        "{}: predicted for a link of {} µs and {} Mbit/s",
        section.title,
        significant(link.latency_us, 5),
        significant(link.bandwidth_mbit, 5)
    );
    let lines = prediction_rows(measured);
    let alone = "Assumes one rank and one link on each machine, and a rank's batch size as measured. Waiting for slower \
                 ranks is not included.";
    Sheet::from_rows(format!("{}-prediction", section.name), title, columns, &lines)
        .with_remarks([origin(work, source), alone.into()])
}

/// Returns a row for each number of ranks. If several configurations with this number of ranks were measured,
/// each has its row.
fn prediction_rows<'r, 'a>(measured: &[&'r Row<'a>]) -> Vec<PredictionRow<'r, 'a>> {
    let mut rows = Vec::new();
    for ranks in rank_counts() {
        let here = measured.iter().filter(|row| row.ranks() == ranks);
        rows.extend(here.map(|row| PredictionRow { ranks, measured: Some(row) }));
        if rows.last().is_none_or(|row| row.ranks != ranks) {
            rows.push(PredictionRow { ranks, measured: None });
        }
    }
    rows
}

/// Makes the remark about the run that `work` was measured in.
fn origin(work: &Work, source: &Run) -> String {
    format!(
        "From {} ({}, {}): {:.3} ms of computation per step, {:.3} ms of it in backward; {:.0} bytes of \
         gradients in {} bucket{}{}.",
        source.path.display(),
        source.record.topology,
        source.text("backend"),
        work.compute_ms,
        work.backward_ms,
        work.buckets.iter().sum::<f64>(),
        work.buckets.len(),
        if work.buckets.len() == 1 { ", whose communication backward cannot hide" } else { "s" },
        if work.overlap { "" } else { ", without overlap" },
    )
}

/// Plots the predictions of both models as lines, and the `measured` rows as dots.
fn predict_plot(work: &Work, link: &Link, measured: &[&Row<'_>]) -> Plot {
    let lines = |predicted: &dyn Fn(AllReduce, usize) -> f64, of_row: &dyn Fn(&Row<'_>) -> f64| {
        let model = |(i, algorithm)| {
            let points = rank_counts().map(|ranks| ((ranks as f64).log2(), predicted(algorithm, ranks)));
            Line { colour: colour(i), points: points.collect(), ..Line::default() }
        };
        let dots = measured.iter().map(|row| ((row.ranks() as f64).log2(), of_row(row))).collect();
        let runs = Line { colour: BLACK, dots, ..Line::default() };
        AllReduce::ALL.into_iter().enumerate().map(model).chain([runs]).collect::<Vec<_>>()
    };
    // The values are logarithms on linear axes, so that all panels have the same axis type.
    let log = |seconds: f64| seconds.max(1e-9).log10();
    let times = lines(&|model, ranks| log(work.epoch_s(link, model, ranks)), &|row| log(epoch_s(row)));
    let shares = lines(&|model, ranks| work.efficiency(link, model, ranks), &|row| {
        work.efficiency_of(row.ranks(), epoch_s(row))
    });
    let ends = |lines: &[Line]| {
        span(lines.iter().flat_map(|line| line.points.iter().chain(&line.dots)).map(|point| point.1))
    };
    let ((fast, slow), (_, most)) = (ends(&times), ends(&shares));
    let ranks =
        || Axis::linear("ranks, one link per rank", -0.3..10.4, 6, 1.0, |log| format!("{:.0}", log.exp2()));
    let models = AllReduce::ALL.into_iter().enumerate();
    let models = models.map(|(i, algorithm)| (algorithm.name().to_owned(), colour(i), Mark::Line));
    let runs = (!measured.is_empty()).then(|| ("measured".to_owned(), BLACK, Mark::Dot));
    Plot::Lines(LinePlot {
        heading: String::new(),
        legend: models.chain(runs).collect(),
        panels: vec![
            Panel {
                title: "time of an epoch".into(),
                x: ranks(),
                y: Axis::logarithmic("seconds", fast - 0.15..slow + 0.15, |log| {
                    significant(10f64.powf(*log), 2)
                }),
                lines: times,
            },
            Panel {
                title: "efficiency".into(),
                x: ranks(),
                y: Axis::linear("speed-up / ranks [%]", 0.0..most * 1.08, 6, 0.0, |percent| {
                    significant(*percent, 3)
                }),
                lines: shares,
            },
        ],
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::testing::{ranks, tells};

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        report: ReportArgs,
    }

    #[test]
    fn the_missing_part_of_the_link_is_named() {
        for (options, facts) in [
            (&[][..], &["--scaling", "--link", "mpirun -n 2 "][..]),
            (&["--latency-us", "50"], &["--latency-us 50", "--bandwidth-mbit"]),
            (&["--bandwidth-mbit", "100"], &["--bandwidth-mbit 100", "--latency-us"]),
        ] {
            let typed = Typed::try_parse_from([&["report", "--scaling"], options].concat()).unwrap();
            let error = parts(&typed.report, &[]).err().unwrap().to_string();
            assert!(tells(&error, facts), "{error}");
        }
        let both = Typed::try_parse_from(["report", "--scaling", "--baseline", "1x1"]);
        assert!(both.is_err(), "--baseline would have no effect");
    }

    #[test]
    fn runs_with_local_updates_are_not_predicted_from() {
        let run = |options: &[&str]| {
            let mut run = crate::testing::run((1, 2), options, 1.0);
            run.results.per_rank = ranks(&[30_000, 30_000]);
            run
        };
        let mut local = run(&["--epochs=1"]);
        local.record.config.insert("sync_every".into(), 4.into());
        let parts = [vec![local.clone()], vec![local, run(&["--epochs=1"])]].map(|runs| {
            part(&Section { name: "s".into(), runs, ..Section::default() }, &Link::new(50.0, 1000.0))
        });
        assert!(
            parts[0].sheets.is_empty() && parts[0].notes[0].contains("--sync-every"),
            "{:?}",
            parts[0].notes
        );
        assert!(parts[1].sheets.len() == 1 && parts[1].notes.is_empty());
    }

    #[test]
    fn a_large_prediction_keeps_its_titles_whole() {
        // Epochs whose seconds have six digits, and repeats whose step times have a range.
        let runs = [0.00734, 0.0075, 0.0082].map(|seconds| {
            let mut run = crate::testing::run((1, 1), &["--epochs=1"], seconds);
            run.results.per_rank = ranks(&[60_000]);
            run
        });
        let section = Section { name: "s".into(), runs: runs.into(), ..Section::default() };
        let part = part(&section, &Link::new(50.0, 1000.0));
        let text = part.sheets[0].terminal(None, false);
        let words = |text: &str| text.split([' ', '│', '┆']).map(ToOwned::to_owned).collect::<Vec<_>>();
        let found = words(&text);
        for column in &part.sheets[0].columns {
            for word in column.title.split(' ') {
                assert!(found.iter().any(|found| found == word), "{word} in {text}");
            }
        }
    }
}
