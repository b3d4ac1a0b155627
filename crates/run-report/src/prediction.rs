//! `mpiburn report --scaling`: predicts times and sent bytes for 1 to 4096 ranks, from one run of each
//! algorithm and the latency and bandwidth of a link.

use anyhow::bail;
use itertools::Itertools;
use plotters::style::BLACK;

use super::UsageError;
use super::command::{Format, ReportArgs};
use super::cost_model::{Algorithm, AllReduce, MOST_RANKS, Work};
use super::link::{Link, MEASURE};
use super::page::PagePart;
use super::plots::{Axis, Line, LinePlot, Mark, Panel, Picture, Plot, colour, span};
use super::remarks::{is_sound, shown};
use super::rows::{Row, group, word};
use super::runs::{Run, Section, file_name};
use super::sheet::{Cell, Column, Sheet, significant};
use super::summary::STEP;
use run_record::{Part, count};
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
    Ok(sections.iter().map(|section| part(section, &link, args.format)).collect())
}

/// The settings in which algorithms differ. Each combination of their values has its own prediction.
const ALGORITHM: [&str; 9] = [
    "sync_every",
    "outer",
    "fragments",
    "sync_delay",
    "local_after",
    "compress",
    "compress_rank",
    "shard_optimizer",
    "grad_dtype",
];

/// Name of the algorithm if all of these settings have their default values.
const PLAIN: &str = "all-reduce";

/// Returns the options of a row's algorithm that do not have their default values, as text.
fn words_of(row: &Row<'_>) -> Vec<String> {
    let default = |name| row.first().record.schema.row(name).map(|option| shown(&option.default));
    let names = ALGORITHM.into_iter().filter(|name| default(name).as_deref() != Some(row.setting(name)));
    names.filter_map(|name| word(name, row.setting(name))).collect()
}

/// Whether rows that differ in this setting compute different steps, so that their predictions cannot be
/// compared.
fn is_of_step(row: &Row<'_>, name: &str) -> bool {
    const OTHERS: [&str; 7] =
        ["accumulate", "data", "device", "precision", "processor", "simd_level", "train_batch_size"];
    let is_computed = matches!(row.part(name), Some(Part::Network | Part::Quantization));
    row.is_of_samples(name) || is_computed || OTHERS.contains(&name)
}

/// A prediction for one algorithm.
struct Prediction<'r, 'a> {
    /// The options of the algorithm.
    name: String,
    work: Work,
    /// The run that `work` was measured in.
    source: &'a Run,
    /// Whether the times of `source` are reliable.
    is_sound: bool,
    /// Rows that do the same computation on any topology.
    measured: Vec<&'r Row<'a>>,
}

fn part(section: &Section, link: &Link, format: Format) -> PagePart {
    let (title, name) = (section.title.clone(), section.name.clone());
    let mut part = PagePart { title, name, notes: section.notes.clone(), ..PagePart::default() };
    let rows = group(&section.runs);
    // Of each algorithm, take the row (one run or its repeats) with the fewest ranks. Rows in which ranks
    // share cores (oversubscribed) come later, and rows from which nothing can be predicted come last.
    let mut candidates: Vec<&Row<'_>> = rows.iter().collect();
    candidates.sort_by_key(|row| {
        let Run { record, .. } = row.first();
        (unusable(row.first()).is_some(), record.oversubscribed, row.ranks())
    });
    let (mut bases, mut others): (Vec<&Row<'_>>, _) = (Vec::new(), 0);
    for row in candidates {
        let is_same = |base: &&Row<'_>| ALGORITHM.iter().all(|name| base.setting(name) == row.setting(name));
        let is_comparable = |first: &&Row<'_>| row.equals_except(first, |name| !is_of_step(row, name));
        if !bases.first().is_none_or(is_comparable) {
            others += 1;
        } else if !bases.iter().any(is_same) {
            bases.push(row);
        }
    }
    if others > 0 {
        let what = "with other networks, samples, batch sizes, precision or processors than";
        let first = bases[0].first().path.display();
        part.notes.push(format!("{} {what} {first}", count(others, "configuration")));
    }
    bases.sort_by_cached_key(|base| words_of(base));
    let mut predictions = Vec::new();
    for base in bases {
        // The work is taken from a single run, because the phases of one run are consistent. It is the run
        // with the median step time.
        let mut repeats = base.runs.clone();
        repeats.sort_by(|a, b| a.results.ms_per_step.total_cmp(&b.results.ms_per_step));
        let source = repeats[(repeats.len() - 1) / 2];
        if let Some(what) = unusable(source) {
            part.notes.push(format!("{}: cannot predict from this run: {what}", source.path.display()));
            continue;
        }
        let is_excepted = |name: &str| {
            base.is_of_backend(name) || ["topology", "oversubscribed", "launcher", "mpi"].contains(&name)
        };
        let work = Work::from_run(source);
        let kind = (work.algorithm == Algorithm::AllReduce).then(|| PLAIN.to_owned());
        predictions.push(Prediction {
            name: kind.into_iter().chain(words_of(base)).join(", "),
            work,
            source,
            is_sound: is_sound(base),
            measured: rows.iter().filter(|row| row.equals_except(base, is_excepted)).collect(),
        });
    }
    for prediction in &predictions {
        let sheet = table(section, prediction, link);
        let what = "by the ring and recursive-doubling cost models; dots are measured runs.";
        let caption = format!("Epoch time and efficiency of {} {what}", prediction.name);
        let plot = predict_plot(prediction, link);
        part.pictures.push(Picture { name: sheet.name.clone(), caption, plot });
        part.sheets.push(sheet);
    }
    if format == Format::Csv {
        // CSV output is a single table for programs.
        let rest: Vec<_> =
            part.sheets.drain(1.min(part.sheets.len())..).flat_map(|sheet| sheet.rows).collect();
        part.sheets.iter_mut().for_each(|sheet| sheet.rows.extend(rest.iter().cloned()));
    } else if predictions.len() > 1 {
        part.sheets.insert(0, comparison(section, &predictions, link));
    }
    part
}

/// Returns why nothing can be predicted from `run`; `None` if it has all measurements.
fn unusable(run: &Run) -> Option<&'static str> {
    let work = Work::from_run(run);
    match work.algorithm {
        _ if !run.option("local_after").is_null() => {
            Some("its steps differ; name a run without --local-after")
        }
        Algorithm::PowerSgd { bytes: 0.0 } => {
            Some("one rank compresses nothing; name a run of --compress with at least two ranks")
        }
        _ if run.rank_counts().len() > 1 => {
            Some("a resume changed its number of ranks; name a run on one number of ranks")
        }
        _ if !has_valid_options(run) => Some("its options in run.json are damaged"),
        _ if work.compute_ms == 0.0 => Some("it spent all of its time waiting for other ranks"),
        _ if work.samples == 0 => Some("it has no samples"),
        _ => None,
    }
}

/// Whether the options that predictions use have values that `mpiburn train` accepts.
fn has_valid_options(run: &Run) -> bool {
    let is_count = |name: &str, least: u64| {
        let value = run.option(name);
        value.is_null() || value.as_u64().is_some_and(|count| (least..1 << 32).contains(&count))
    };
    is_count("sync_every", 1)
        && is_count("fragments", 1)
        && is_count("sync_delay", 0)
        && run.option("bucket_mb").as_f64().is_none_or(|size| size > 0.0)
        && ["f32", "bf16", "f16", ""].contains(&run.text("grad_dtype"))
}

/// Makes the table that compares algorithms: a row for each algorithm, with its epoch time by the faster cost
/// model and what this model sends, for some numbers of ranks.
fn comparison(section: &Section, predictions: &[Prediction<'_, '_>], link: &Link) -> Sheet {
    type Row<'r, 'a> = Prediction<'r, 'a>;
    let faster = |work: &Work, ranks| {
        let time = |model: &AllReduce| work.step_ms(link, *model, ranks);
        let by_time = AllReduce::ALL.into_iter().min_by(|a, b| time(a).total_cmp(&time(b)));
        by_time.unwrap_or(AllReduce::Ring)
    };
    let mut columns =
        vec![Column::words("algorithm", "algorithm").shows(|row: &Row<'_, '_>| Cell::text(&row.name))];
    for (title, key, digits) in [("epoch s", "epoch_seconds", 2), ("KB sent", "kb_sent", 1)] {
        for (ranks, hide_order) in [(2, 1), (8, 0), (64, 0), (512, 2), (4096, 0)] {
            let column = Column::number(&format!("{title} {ranks}"), &format!("{key}_{ranks}"));
            columns.push(column.hide_order(hide_order).shows(move |row: &Row<'_, '_>| {
                let model = faster(&row.work, ranks);
                let found = match key {
                    "kb_sent" => row.work.sent_bytes(model, ranks) / 1024.0,
                    _ => row.work.epoch_s(link, model, ranks),
                };
                let cell = || Cell::number(found, decimals(found, digits), vec![]);
                Cell::maybe((ranks <= row.work.most_ranks).then(cell))
            }));
        }
    }
    let title = format!("{}: algorithms compared, {}", section.title, of_link(link));
    let what = "For these numbers of ranks: time of an epoch, and KB that a rank sends in a step, by the faster of ring \
                and recursive doubling.";
    Sheet::from_rows(format!("{}-algorithms", section.name), title, columns, predictions)
        .with_remarks([what.into()])
}

fn of_link(link: &Link) -> String {
    let [latency, bandwidth] = [link.latency_us, link.bandwidth_mbit].map(|number| significant(number, 5));
    format!("predicted for a link of {latency} µs and {bandwidth} Mbit/s")
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
fn table(section: &Section, prediction: &Prediction<'_, '_>, link: &Link) -> Sheet {
    let Prediction { name: algorithm, work, source, measured, .. } = prediction;
    let whole = |number: usize| Cell::number(number as f64, 0, vec![]);
    let mut columns = vec![
        Column::number("ranks", "ranks").shows(|line: &PredictionRow<'_, '_>| whole(line.ranks)),
        Column::number("steps", "steps_per_epoch")
            .shows(|line: &PredictionRow<'_, '_>| whole(work.steps(line.ranks))),
    ];
    // The last element of each entry is the order in which a narrow table leaves out columns.
    let values: [(_, _, _, &dyn Fn(AllReduce, usize) -> f64, _); 4] = [
        ("ms/step", "ms_per_step", 3, &|model, ranks| work.step_ms(link, model, ranks), [0, 0]),
        ("epoch s", "epoch_seconds", 2, &|model, ranks| work.epoch_s(link, model, ranks), [0, 0]),
        ("effic. %", "efficiency_percent", 0, &|model, ranks| work.efficiency(link, model, ranks), [1, 2]),
        ("KB sent", "kb_sent", 1, &|model, ranks| work.sent_bytes(model, ranks) / 1024.0, [0, 3]),
    ];
    for (title, key, digits, value, hide_order) in values {
        let names = [("ring", "ring"), ("rec. doubling", "recursive_doubling")];
        for ((model, (name, short)), hide_order) in AllReduce::ALL.into_iter().zip(names).zip(hide_order) {
            let column = Column::number(&format!("{title} {name}"), &format!("{key}_{short}"));
            columns.push(column.hide_order(hide_order).shows(move |line: &PredictionRow<'_, '_>| {
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
    columns.push(
        Column::words("algorithm", "algorithm")
            .for_programs()
            .shows(|_: &PredictionRow<'_, '_>| Cell::text(algorithm)),
    );
    let title = format!("{}, {algorithm}: {}", section.title, of_link(link));
    let lines = prediction_rows(work, measured);
    let alone = "Assumes one rank and one link on each machine, and a rank's batch size as measured. Waiting for slower \
                 ranks is not included.";
    let doubts = [
        (!prediction.is_sound, "The times of that run are unreliable: too short, disturbed or unsteady."),
        (
            source.record.oversubscribed,
            "Threads of that run shared cores and took turns: its times are not representative.",
        ),
    ];
    let doubts = doubts.into_iter().filter(|doubt| doubt.0).map(|doubt| doubt.1.to_owned());
    let ends = (work.most_ranks < MOST_RANKS)
        .then(|| format!("With more than {}, some have no sample.", count(work.most_ranks, "rank")));
    let slug = match algorithm.as_str() {
        PLAIN => String::new(),
        name => format!("-{}", file_name(&name.replace(", ", "-"))),
    };
    Sheet::from_rows(format!("{}-prediction{slug}", section.name), title, columns, &lines)
        .with_remarks([origin(work, source), alone.into()].into_iter().chain(ends).chain(doubts))
}

/// Returns a row for each number of ranks. If several configurations with this number of ranks were measured,
/// each has its row.
fn prediction_rows<'r, 'a>(work: &Work, measured: &[&'r Row<'a>]) -> Vec<PredictionRow<'r, 'a>> {
    let mut rows = Vec::new();
    for ranks in work.rank_counts() {
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
    let bytes = work.buckets.iter().sum::<usize>() * work.width;
    let sent = match work.algorithm {
        Algorithm::Local { every, fragments, delay } => format!(
            "{bytes} bytes of parameters in {} every {}, each in flight during {}",
            count(fragments, "part"),
            count(every, "step"),
            count(delay, "step")
        ),
        _ => format!(
            "{bytes} bytes of gradients in {}{}{}",
            count(work.buckets.len(), "bucket"),
            if work.buckets.len() == 1 { ", whose communication backward cannot hide" } else { "" },
            if work.overlap { "" } else { ", without overlap" },
        ),
    };
    let more = match work.algorithm {
        Algorithm::PowerSgd { bytes } => format!(", compressed to {bytes:.0} bytes"),
        Algorithm::Sharded { update_ms } => {
            format!("; {update_ms:.3} ms to update all parameters on one rank")
        }
        _ => String::new(),
    };
    format!(
        "From {} ({}, {}): {:.3} ms of computation per step, {:.3} ms of it in backward; {sent}{more}.",
        source.path.display(),
        source.record.topology,
        source.text("backend"),
        work.compute_ms_on(source.record.world_size),
        work.backward_ms,
    )
}

/// Plots the predictions of both models as lines, and the measured rows as dots, except rows in which ranks
/// share cores (oversubscribed).
fn predict_plot(Prediction { work, measured, .. }: &Prediction<'_, '_>, link: &Link) -> Plot {
    let measured: Vec<_> = measured.iter().filter(|row| !row.first().record.oversubscribed).collect();
    let lines = |predicted: &dyn Fn(AllReduce, usize) -> f64, of_row: &dyn Fn(&Row<'_>) -> f64| {
        let model = |(i, algorithm)| {
            let points = work.rank_counts().map(|ranks| ((ranks as f64).log2(), predicted(algorithm, ranks)));
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
        || Axis::linear("ranks, one link per rank", -0.3..12.4, 7, 1.0, |log| format!("{:.0}", log.exp2()));
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
    use crate::testing::{ranks as ranks_of, tells};

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
    fn each_algorithm_has_its_prediction_and_all_are_compared() {
        let run = |ranks: usize, name: &str, changes: &[(&str, serde_json::Value)]| {
            let mut run = crate::testing::run((ranks, 1), &["--epochs=1"], 8.0);
            run.path = name.into();
            run.results.per_rank = ranks_of(&vec![60_000 / ranks; ranks]);
            run.record.config.extend(changes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
            run
        };
        let powersgd = [("compress", "powersgd".into()), ("compress_rank", 2.into())];
        let mut alone = run(1, "alone", &powersgd);
        alone.results.bytes_per_step = Some(0.0);
        let local = |every: u64| [("sync_every", every.into())];
        let after = [("sync_every", 4.into()), ("local_after", 1.into())];
        let all = [
            alone.clone(),
            run(2, "compressed", &powersgd),
            run(1, "sharded", &[("shard_optimizer", true.into())]),
            run(2, "local", &local(4)),
            run(2, "rare", &[("sync_every", 8.into()), ("lr", 0.1.into())]),
            run(1, "other", &[("sync_every", 16.into()), ("train_batch_size", 8.into())]),
            run(2, "late", &after),
            run(1, "plain", &[]),
        ];
        let part = |runs: &[Run], format| {
            let section = Section { name: "s".into(), runs: runs.into(), ..Section::default() };
            super::part(&section, &Link::new(50.0, 1000.0), format)
        };
        let found = part(&all, Format::Terminal);
        let names: Vec<&str> = found.sheets.iter().map(|sheet| sheet.name.as_str()).collect();
        let expected = [
            "s-algorithms",
            "s-prediction",
            "s-prediction-compress-powersgd-compress-rank-2",
            "s-prediction-shard-optimizer",
            "s-prediction-sync-every-4",
            "s-prediction-sync-every-8",
        ];
        assert_eq!(names, expected);
        let notes = found.notes.join("\n");
        assert!(tells(&notes, &["1 configuration with other", "batch sizes", "sharded"]), "{notes}");
        assert!(tells(&notes, &["late: ", "--local-after"]), "{notes}");
        let origin = |n: usize| found.sheets[n].remarks[0].as_str();
        assert!(tells(origin(2), &["From compressed (2x1", "compressed to 17064 bytes"]), "{}", origin(2));
        assert!(tells(origin(4), &["From local (2x1", "in 1 part every 4 steps"]), "{}", origin(4));
        let compared = &found.sheets[0];
        assert_eq!((compared.columns.len(), compared.rows.len()), (1 + 2 * 5, 5));
        let csv = part(&all, Format::Csv).sheets;
        assert_eq!((csv.len(), csv[0].rows.len()), (1, 5 * 13));

        let resharded = Run { path: "resharded".into(), ..crate::testing::resumed_on(2, run(1, "", &[])) };
        let found = part(&[resharded.clone(), run(2, "plain", &[])], Format::Terminal);
        assert!(found.sheets[0].remarks[0].contains("From plain (2x1"), "{}", found.sheets[0].remarks[0]);
        for damaged in [("sync_every", 1.5.into()), ("bucket_mb", (-1).into()), ("grad_dtype", "x".into())] {
            let found = part(&[run(1, "damaged", &[damaged])], Format::Terminal);
            assert!(tells(&found.notes[0], &["damaged: ", "options in run.json"]), "{:?}", found.notes);
        }
        let found = part(&[resharded], Format::Terminal);
        assert!(tells(&found.notes[0], &["resharded: ", "number of ranks"]), "{:?}", found.notes);

        let mut few = run(2, "few", &[]);
        (few.record.data.test_samples, few.record.oversubscribed) = (40, true);
        let found = part(&[few], Format::Terminal);
        let remarks = found.sheets[0].remarks.join(" ");
        assert!(tells(&remarks, &["With more than 40 ranks", "shared cores"]), "{remarks}");
        assert_eq!(found.sheets[0].rows.len(), 6, "1 to 32 ranks");

        let alone = part(&[alone], Format::Terminal);
        assert!(alone.sheets.is_empty() && tells(&alone.notes[0], &["alone: ", "at least two ranks"]));
    }

    #[test]
    fn a_large_prediction_keeps_its_titles_whole() {
        // Epochs whose seconds have six digits, and repeats whose step times have a range.
        let runs = [0.00734, 0.0075, 0.0082].map(|seconds| {
            let mut run = crate::testing::run((1, 1), &["--epochs=1"], seconds);
            run.results.per_rank = ranks_of(&[60_000]);
            run
        });
        let section = Section { name: "s".into(), runs: runs.into(), ..Section::default() };
        let part = part(&section, &Link::new(50.0, 1000.0), Format::Terminal);
        let text = part.sheets[0].terminal(None, false);
        let words = |text: &str| text.split([' ', '│', '┆']).map(ToOwned::to_owned).collect::<Vec<_>>();
        let found = words(&text);
        let is_kept = |column: &&Column| !column.for_programs && column.hide_order == 0;
        for column in part.sheets[0].columns.iter().filter(is_kept) {
            for word in column.title.split(' ') {
                assert!(found.iter().any(|found| found == word), "{word} in {text}");
            }
        }
    }
}
