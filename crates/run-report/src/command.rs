//! `mpiburn report` and `run-report`: options, and the steps from inputs to tables, plots and predictions.

use itertools::Itertools;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use indexmap::IndexMap;
use run_record::count;
use run_record::files::naming_file_above;

use super::benchmarks;
use super::by_rank::by_rank;
use super::findings::findings;
use super::inputs::Inputs;
use super::naming::names;
use super::page::{PAGES, PagePart, check_folder, print_sheet, publish};
use super::pairs::{joint, ratios};
use super::pictures::pictures;
use super::plots::Palette;
use super::profiles::Profiles;
use super::published::{self, published};
use super::quantized::quantized;
use super::rows::{Row, group};
use super::runs::Section;
use super::sheet::escaped;
use super::summary::summary;
use super::{UsageError, prediction, rows};

const ROOT: &str = "results";

/// Prints the report that `args` select, and writes its files.
///
/// # Errors
/// If there is nothing to report, an option or a path cannot be used, or a file cannot be read or written.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let written = args.out.clone().unwrap_or_else(|| Path::new(ROOT).join("report"));
    let Inputs { mut sections, profiles, tables: files, rejected, again } =
        Inputs::find(&args.paths, Path::new(ROOT), &written)?;
    let baseline = baseline(args, &sections)?;
    if args.format == Format::Csv {
        sections = vec![as_one(sections)];
    }
    let no_run = sections.iter().all(|section| section.runs.is_empty());
    // Predictions are made from runs only.
    let others = if args.scaling { Vec::new() } else { other_parts(&profiles, &files, again) };
    let tables: usize = others.iter().map(|part| part.sheets.len()).sum();
    if no_run && (tables == 0 || args.format == Format::Csv) {
        return Err(nothing_to_report(args.format, &sections, &others, &rejected));
    }
    let out = (args.out.is_some() || args.format == Format::Html).then_some(written);
    if let Some(out) = &out {
        check_folder(out)?;
        fs::create_dir_all(out)
            .map_err(|error| naming_file_above(out, error))
            .with_context(|| format!("cannot write {}", out.display()))?;
    }
    let palette = Palette::for_sections(
        &sections.iter().map(|section| names(&group(&section.runs))).collect::<Vec<_>>(),
    );
    let mut parts = if args.scaling {
        prediction::parts(args, &sections)?
    } else {
        sections.iter().map(|section| part(section, args, &baseline, &palette)).collect::<Result<_, _>>()?
    };
    parts.extend(others);
    let parts = with_rest(parts, skipped(&sections));
    print(&parts, args)?;
    if args.format == Format::Csv && tables > 0 {
        let count = count(tables, "table");
        match &out {
            Some(out) => eprintln!(
                "the table leaves out {count} of profiles and benchmarks, which are files in {}",
                out.display()
            ),
            None => eprintln!(
                "the table leaves out {count} of profiles and benchmarks: --out DIR writes them as files"
            ),
        }
    }
    if let Some(out) = &out {
        let figures = sections.iter().filter_map(|section| reference(args, section));
        let read: Vec<PathBuf> = figures.chain(files).chain(args.link.clone()).collect();
        let [report, prediction] = PAGES;
        publish(&parts, out, if args.scaling { prediction } else { report }, &read)?;
    }
    if rejected.is_empty() { Ok(()) } else { Err(rejection(&rejected)) }
}

/// Prints why nothing can be shown, and returns the error.
fn nothing_to_report(
    format: Format,
    sections: &[Section],
    others: &[PagePart],
    rejected: &[String],
) -> anyhow::Error {
    let of_runs = sections.iter().flat_map(|section| &section.notes);
    let notes = of_runs.chain(others.iter().flat_map(|part| &part.notes));
    skipped(sections).iter().chain(notes).for_each(|note| eprintln!("{note}"));
    if format == Format::Csv && others.iter().any(|part| !part.sheets.is_empty()) {
        anyhow!(
            "no finished run found, and --format csv shows only runs: choose another --format for profiles and benchmarks"
        )
    } else if !rejected.is_empty() {
        rejection(rejected)
    } else if others.iter().any(|part| !part.notes.is_empty()) {
        anyhow!("nothing to report: all inputs are damaged, as listed above")
    } else if sections.iter().any(|section| !section.skipped.is_empty()) {
        anyhow!("no finished run found: runs were skipped, for the reasons above")
    } else if sections.iter().any(|section| !section.notes.is_empty()) {
        anyhow!("no finished run found: the lines above have the reasons")
    } else {
        anyhow!("no finished run found: train one, or name a run directory (mpiburn report RUN)")
    }
}

/// Returns a line for each reason why runs were skipped.
fn skipped(sections: &[Section]) -> Vec<String> {
    let mut by_reason: IndexMap<&String, Vec<&String>> = IndexMap::new();
    for (reason, runs) in sections.iter().flat_map(|section| &section.skipped) {
        by_reason.entry(reason).or_default().push(runs);
    }
    by_reason.iter().map(|(reason, runs)| format!("skipped: {}: {reason}", runs.iter().join("; "))).collect()
}

/// Returns the parts that have a table or a plot, followed by the part `Not shown`. This last part contains
/// the notes of all parts, the lines of `skipped`, and the findings of parts that have no table and no plot.
/// It is left out if there are no notes and no lines.
fn with_rest(parts: Vec<PagePart>, skipped: Vec<String>) -> Vec<PagePart> {
    let mut rest = PagePart { title: "Not shown".into(), name: "not-shown".into(), ..PagePart::default() };
    let mut shown = Vec::new();
    for mut part in parts {
        rest.notes.append(&mut part.notes);
        if part.sheets.is_empty() && part.pictures.is_empty() {
            let title = &part.title;
            rest.findings.extend(part.listed().map(|line| format!("{title}: {line}").into()));
        } else {
            shown.push(part)
        }
    }
    rest.notes.extend(skipped);
    shown.extend((!rest.notes.is_empty()).then_some(rest));
    shown
}

/// Returns the topology that speed-ups are relative to.
///
/// # Errors
/// If no run has the topology of `--baseline`.
fn baseline(args: &ReportArgs, sections: &[Section]) -> Result<String, UsageError> {
    let Some(typed) = &args.baseline else { return Ok("1x1".into()) };
    let runs = sections.iter().flat_map(|section| &section.runs);
    let found: BTreeSet<&str> = runs.map(|run| run.record.topology.as_str()).collect();
    if found.contains(typed.as_str()) {
        Ok(typed.clone())
    } else if found.is_empty() {
        Err(UsageError::new("baseline", typed, "there is no finished run"))
    } else {
        let choices = found.iter().join(", ");
        let problem = format!("no finished run has this topology: choose {choices}");
        Err(UsageError::new("baseline", typed, problem))
    }
}

/// Makes the error for paths that cannot be reported. The command reports the other paths before it returns
/// this error.
fn rejection(rejected: &[String]) -> anyhow::Error {
    anyhow!("{}", rejected.join("; "))
}

/// Makes the parts of profiles and of the benchmarks in `files`. `again` has a line for each further path to
/// an input that is already reported.
fn other_parts(profiles: &[Profiles], files: &[PathBuf], again: Vec<String>) -> Vec<PagePart> {
    let numbered = profiles.iter().enumerate();
    let parts = numbered.filter_map(|(i, found)| found.part(&format!("operators-{}", i + 1)));
    let mut parts: Vec<PagePart> = parts.chain(benchmarks::parts(files)).collect();
    if !again.is_empty() {
        parts.push(PagePart {
            title: "Other paths to a run or table".into(),
            name: "again".into(),
            notes: again,
            ..PagePart::default()
        });
    }
    parts
}

/// Combines all runs into one section. Its table has the column `sweep`, so the rows of different sweeps stay
/// apart.
fn as_one(sections: Vec<Section>) -> Section {
    let mut all = Section { name: "runs".into(), title: "Runs".into(), ..Section::default() };
    for section in sections {
        all.runs.extend(section.runs);
        all.skipped.extend(section.skipped);
        all.notes.extend(section.notes);
    }
    all
}

/// Returns the file of a section's published figures: the file that `--reference` names; without
/// `--reference`, the file that the section's sweep names.
fn reference(args: &ReportArgs, section: &Section) -> Option<PathBuf> {
    let named = args.reference.as_ref().map(|name| Path::new(ROOT).join(format!("reference/{name}.csv")));
    named.or_else(|| section.reference.clone())
}

/// Makes the tables and plots of one section.
fn part(section: &Section, args: &ReportArgs, baseline: &str, palette: &Palette) -> anyhow::Result<PagePart> {
    let rows: Vec<Row<'_>> = group(&section.runs);
    let mut notes = section.notes.clone();
    let (mut sheets, mut plots) = (Vec::new(), Vec::new());
    if !rows.is_empty() {
        let reference = match reference(args, section).map(|file| published::read(&file)) {
            Some(Ok(reference)) => Some(reference),
            // The file that --reference names must exist. The file that a sweep names may be missing.
            Some(Err(error)) if args.reference.is_some() => return Err(error.into()),
            Some(Err(error)) => {
                notes.push(format!("{error}; published figures are omitted"));
                None
            }
            None => None,
        };
        sheets.push(summary(section, &rows, baseline));
        sheets.extend(quantized(section, &rows));
        sheets.extend(joint(section, &rows));
        sheets.extend(by_rank(section, &rows, reference.as_ref()));
        sheets.extend(ratios(section, &rows));
        sheets.extend(reference.map(|reference| published(section, &rows, &reference)));
        plots = pictures(section, &rows, baseline, palette, &mut notes);
    }
    let findings = findings(&rows, baseline);
    let (title, name) = (section.title.clone(), section.name.clone());
    let is_single = rows.len() == 1;
    Ok(PagePart { title, name, findings, is_single, sheets, pictures: plots, notes })
}

fn print(parts: &[PagePart], args: &ReportArgs) -> anyhow::Result<()> {
    let format = args.format;
    if format == Format::Terminal && !args.scaling {
        for part in parts.iter().filter(|part| part.listed().next().is_some()) {
            println!("{}", part.title);
            part.listed().for_each(|line| println!("  {line}"));
        }
        let compares = parts.iter().any(PagePart::compares_runs);
        println!("{}", if compares { rows::rule() + "\n" } else { String::new() });
    }
    for part in parts {
        for sheet in &part.sheets {
            // CSV output is a single table for programs. --out writes the other tables as files.
            if format != Format::Csv || sheet.name == "runs" || args.scaling {
                print_sheet(sheet, format, args.wide)?;
            }
        }
        for note in &part.notes {
            match format {
                Format::Terminal => println!("not shown: {note}"),
                Format::Markdown => println!("- not shown: {}", escaped(note)),
                Format::Csv | Format::Html => eprintln!("not shown: {note}"),
            }
        }
    }
    Ok(())
}

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn report                                   all runs below results/
  mpiburn report results/topologies --format html  page in results/report/
  mpiburn report results/topologies results/try --format markdown
  mpiburn report results/profiles results/fused.csv
  mpiburn report --scaling results/topologies --link results/link.csv
  mpiburn report --scaling results/try --latency-us 50 --bandwidth-mbit 1000

Repeats are shown as their median, and times also with minimum and maximum. Several seeds of a sweep form one row."
)]
pub struct ReportArgs {
    /// Runs (a folder, its run.json, or a checkpoint), sweeps, folders of profiles (`profile --json`), tables
    /// of benchmarks (`bench fused|collectives|allreduce --csv`), or folders that contain these, up to five
    /// levels deep [default: results/].
    #[arg(value_name = "RUN|SWEEP|FOLDER|FILE")]
    pub paths: Vec<PathBuf>,
    /// Output format. html writes files instead of printing.
    #[arg(long, value_enum, default_value_t = Format::Terminal)]
    pub format: Format,
    /// Print all columns, even if they do not fit the terminal.
    #[arg(long)]
    pub wide: bool,
    /// Write report.html, tables (.md, .csv) and plots (.svg) to DIR
    /// [default: nothing; with --format html: results/report].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Topology that speed-up and efficiency are relative to [default: 1x1].
    #[arg(long, value_name = "NxC", conflicts_with = "scaling")]
    pub baseline: Option<String>,
    /// Show the published figures of results/reference/NAME.csv beside the runs [default: the figures that a
    /// sweep names].
    #[arg(long, value_name = "NAME")]
    pub reference: Option<String>,

    /// Predict time, efficiency and sent bytes for 1 to 4096 ranks from the given runs.
    #[arg(long, help_heading = "Prediction")]
    pub scaling: bool,
    /// Link between the machines, measured by `mpiburn bench link --csv FILE`.
    #[arg(
        long,
        value_name = "FILE.csv",
        requires = "scaling",
        conflicts_with_all = ["latency_us", "bandwidth_mbit"],
        hide_short_help = true,
        help_heading = "Prediction"
    )]
    pub link: Option<PathBuf>,
    /// Latency of the link in µs.
    #[arg(
        long,
        value_name = "µs",
        value_parser = |text: &str| bounded(text, 0.0),
        allow_negative_numbers = true,
        requires = "scaling",
        hide_short_help = true,
        help_heading = "Prediction"
    )]
    pub latency_us: Option<f64>,
    /// Bandwidth of the link in Mbit/s.
    #[arg(
        long,
        value_name = "Mbit/s",
        value_parser = |text: &str| bounded(text, 1e-3),
        allow_negative_numbers = true,
        requires = "scaling",
        hide_short_help = true,
        help_heading = "Prediction"
    )]
    pub bandwidth_mbit: Option<f64>,
}

/// Parses a number from `least` to 1e9.
fn bounded(text: &str, least: f64) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (least..=1e9).contains(number));
    number.ok_or_else(|| format!("must be a number from {least} to 1000000000"))
}

/// Output format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for the terminal.
    Terminal,
    /// GitHub Markdown tables.
    Markdown,
    /// One table of runs for other programs, with median, minimum and maximum as separate columns.
    Csv,
    /// One self-contained page, and its tables and plots as files.
    Html,
}
