//! `mpiburn report`: tables, plots and predictions from run directories, profiles and benchmarks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::UsageError;
use crate::args::{Format, ReportArgs};
use crate::benchmarks::{self, ALLREDUCE};
use crate::by_rank::by_rank;
use crate::inputs::Inputs;
use crate::noise;
use crate::overview::findings;
use crate::page::Part;
use crate::pictures;
use crate::profiles::Profiles;
use crate::publish::{print_sheet, publish_page, write_sheets};
use crate::published::{self, published};
use crate::quantized::{joint, quantized};
use crate::ratios::ratios;
use crate::rows::{Row, group};
use crate::runs::Section;
use crate::sheet::{Sheet, escaped};
use crate::summary::summary;
use run_record::count;

const ROOT: &str = "results";

/// Prints the report that `args` ask for, and writes its files.
///
/// # Errors
/// If there is nothing to report, or a file cannot be read or written.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let written = args.out.clone().unwrap_or_else(|| Path::new(ROOT).join("report"));
    let Inputs { mut sections, profiles, tables: files, rejected, again } =
        Inputs::find(&args.paths, Path::new(ROOT), &written)?;
    let baseline = baseline(args, &sections)?;
    if args.format == Format::Csv {
        sections = vec![as_one(sections)];
    }
    let no_run = sections.iter().all(|section| section.runs.is_empty());
    // A prediction is from runs.
    let others = match args.predict {
        true => Vec::new(),
        false => other_parts(&profiles, &files, again),
    };
    let tables: usize = others.iter().map(|part| part.sheets.len()).sum();
    if no_run && (tables == 0 || args.format == Format::Csv) {
        let of_runs = sections.iter().flat_map(|section| section.skipped.iter().chain(&section.notes));
        of_runs.chain(others.iter().flat_map(|part| &part.notes)).for_each(|note| eprintln!("{note}"));
        match args.format {
            Format::Csv if tables > 0 => {
                bail!(
                    "no finished run found, and csv is one table of runs; choose another --format for profiles \
                     and benchmarks"
                )
            }
            _ if !rejected.is_empty() => return nothing_rejected(&rejected),
            _ if others.iter().any(|part| !part.notes.is_empty()) => {
                bail!("nothing to report but what is damaged")
            }
            _ if sections.iter().any(|section| !section.skipped.is_empty()) => {
                bail!("no finished run found: all that was planned is skipped, for the reasons above")
            }
            _ => bail!("no finished run found; train one, or name a run directory: mpiburn report RUN"),
        }
    }
    let out = (args.out.is_some() || args.format == Format::Html).then_some(written);
    if let Some(out) = &out {
        fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    }
    if args.predict {
        crate::prediction::run(args, &sections, out.as_deref())?;
        return nothing_rejected(&rejected);
    }
    let mut parts: Vec<Part> = Vec::new();
    for section in &sections {
        parts.push(part(section, args, &baseline, out.as_deref())?);
    }
    parts.extend(others);
    print(&parts, args)?;
    if args.format == Format::Csv && tables > 0 {
        let count = count(tables, "table");
        match &out {
            Some(out) => eprintln!(
                "not in this table: {count} of profiles and benchmarks, as files in {}",
                out.display()
            ),
            None => eprintln!(
                "not in this table: {count} of profiles and benchmarks; --out DIR writes them as files"
            ),
        }
    }
    if let Some(out) = &out {
        let figures = sections.iter().filter_map(|section| reference(args, section));
        let read: Vec<PathBuf> = figures.chain(files.iter().cloned()).collect();
        publish(parts, &files, &read, out)?;
    }
    nothing_rejected(&rejected)
}

/// The topology that speed-up is relative to.
///
/// # Errors
/// If one is typed that no run has.
fn baseline(args: &ReportArgs, sections: &[Section]) -> Result<String, UsageError> {
    let Some(typed) = &args.baseline else { return Ok("1x1".into()) };
    let runs = sections.iter().flat_map(|section| &section.runs);
    let found: BTreeSet<&str> = runs.map(|run| run.record.topology.as_str()).collect();
    match found.contains(typed.as_str()) {
        true => Ok(typed.clone()),
        false if found.is_empty() => Err(UsageError::new("baseline", typed, "there is no finished run")),
        false => {
            let choices = found.into_iter().collect::<Vec<_>>().join(", ");
            let problem = format!("no finished run has this topology; there are runs on {choices}");
            Err(UsageError::new("baseline", typed, problem))
        }
    }
}

/// The error of paths that are nothing to report, after the report of the others.
fn nothing_rejected(rejected: &[String]) -> anyhow::Result<()> {
    if !rejected.is_empty() {
        bail!("{}", rejected.join("; "));
    }
    Ok(())
}

/// The tables of profiles and of the benchmarks in `files`, and the other paths to what is reported.
fn other_parts(profiles: &[Profiles], files: &[PathBuf], again: Vec<String>) -> Vec<Part> {
    let numbered = profiles.iter().enumerate();
    let parts = numbered.filter_map(|(i, found)| found.part(&format!("operators-{}", i + 1)));
    let mut parts: Vec<Part> = parts.chain(benchmarks::parts(files)).collect();
    if !again.is_empty() {
        parts.push(Part {
            title: "Other paths to a run or table".into(),
            name: "again".into(),
            findings: vec![format!("{} left out, which would count it twice", count(again.len(), "path"))],
            notes: again,
            ..Part::default()
        });
    }
    parts
}

/// All runs as one section, with the sweep as a column if there are several.
fn as_one(sections: Vec<Section>) -> Section {
    let mut all = Section { name: "runs".into(), title: "Runs".into(), ..Section::default() };
    for section in sections {
        all.runs.extend(section.runs);
        all.skipped.extend(section.skipped);
        all.notes.extend(section.notes);
    }
    all
}

/// The file of published figures for a section: that of `--reference`, or else its sweep's.
fn reference(args: &ReportArgs, section: &Section) -> Option<PathBuf> {
    let named = args.reference.as_ref().map(|name| Path::new(ROOT).join(format!("reference/{name}.csv")));
    named.or_else(|| section.reference.clone())
}

/// The tables and plots of one section.
fn part(section: &Section, args: &ReportArgs, baseline: &str, out: Option<&Path>) -> anyhow::Result<Part> {
    let rows: Vec<Row<'_>> = group(&section.runs);
    let mut notes = [section.skipped.clone(), section.notes.clone()].concat();
    let (mut sheets, mut drawn) = (Vec::new(), Vec::new());
    if !rows.is_empty() {
        let reference = match reference(args, section).map(|file| published::read(&file)) {
            Some(Ok(reference)) => Some(reference),
            // A file named by --reference must exist; that of a sweep may be missing.
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
        if let Some(out) = out {
            drawn = pictures::of_section(section, &rows, baseline, out)?;
        }
    }
    let mut lines = findings(&rows, baseline);
    lines.extend(section.skipped.iter().cloned());
    let (title, name) = (section.title.clone(), section.name.clone());
    Ok(Part { title, name, findings: lines, sheets, pictures: drawn, notes })
}

fn print(parts: &[Part], args: &ReportArgs) -> anyhow::Result<()> {
    let format = args.format;
    if format == Format::Terminal {
        for part in parts {
            println!("{}", part.title);
            part.findings.iter().for_each(|line| println!("  {line}"));
        }
        println!("{}\n", noise::rule());
    }
    for part in parts {
        for sheet in &part.sheets {
            // CSV output is one table for programs; the others are files of --out.
            if format != Format::Csv || sheet.name == "runs" {
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

/// Writes tables, the plots of the benchmarks in `files`, and the page to `out`; the plots of runs
/// have been written. `read` are the files that the tables are made of.
fn publish(mut parts: Vec<Part>, files: &[PathBuf], read: &[PathBuf], out: &Path) -> anyhow::Result<()> {
    let sheets: Vec<&Sheet> = parts.iter().flat_map(|part| &part.sheets).collect();
    write_sheets(&sheets, out, read)?;
    // In the order of their tables.
    let latencies = pictures::of_latencies(files, out)?;
    let tables = parts.iter_mut().filter(|part| part.name.starts_with(ALLREDUCE));
    for (part, drawn) in tables.zip(latencies) {
        part.pictures.push(drawn);
    }
    publish_page(&parts, &out.join("report.html"), out)
}
