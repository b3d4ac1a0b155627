//! The report as one HTML page without scripts or external resources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use itertools::Itertools;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use run_record::files::{if_there, read_regular, read_text, same_file, sha256};
use run_record::{count, is_own_file};

use super::command::Format;
use super::findings::{Finding, answers};
use super::plots::Picture;
use super::sheet::{CONFIGURATION, Cell, Sheet, split};
use super::{ReportError, UsageError, rows, write_file};
use terminal::console::without_controls;
use terminal::table::shortened;

/// A section of the page: one set of runs.
#[derive(Default)]
pub struct PagePart {
    /// Its heading.
    pub title: String,
    /// Anchor of the heading.
    pub name: String,
    /// What its table says.
    pub findings: Vec<Finding>,
    /// Whether it is of one configuration: nothing is compared, and pictures say more than tables.
    pub is_single: bool,
    /// Its tables.
    pub sheets: Vec<Sheet>,
    /// Its pictures.
    pub pictures: Vec<Picture>,
    /// Runs and files that are not in a table, one line each.
    pub notes: Vec<String>,
}

impl PagePart {
    /// The findings of the list.
    pub fn listed(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.is_listed)
    }

    /// Whether its findings compare runs.
    pub fn compares_runs(&self) -> bool {
        !self.is_single && self.has_answers() && self.listed().next().is_some()
    }

    /// Whether the card has its answers: those of runs.
    fn has_answers(&self) -> bool {
        self.findings.iter().any(|finding| finding.answer.is_some())
    }
}

/// On paper nothing scrolls and nothing is folded, so tables are smaller and pages wide. Plots are drawn on white; in
/// dark mode they are inverted with their hues preserved. What scrolls has a shadow at the end that is hidden, and where the
/// browser knows that it scrolls, a line that says so: the animation has a value only then.
const STYLE: &str = include_str!("page.css");

/// The page, to be written into `folder`.
fn page(parts: &[PagePart], svgs: &BTreeMap<&str, String>, folder: &Path, made: &str) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                title { @if let [part] = parts { (part.title) " – " } "mpiburn report" }
                // Browsers request an icon from the server if the page has none.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body class=[(parts.len() < 2).then_some("alone")] {
                @if parts.len() > 1 {
                    nav aria-label="Contents" {
                        @for part in parts { a href=(anchor(part)) { (shortened(&part.title, 40)) } }
                    }
                }
                main {
                    h1 { "mpiburn report" }
                    p.soft { (made) " Every number links to its run directory or file." }
                    (card(parts))
                    (findings(parts))
                    @for part in parts { (section(part, svgs, folder)) }
                }
            }
        }
    };
    markup.into_string()
}

fn anchor(part: &PagePart) -> String {
    format!("#{}-part", part.name)
}

/// The answers of the parts, each with a link to its part.
fn card(parts: &[PagePart]) -> Markup {
    let several = parts.iter().filter(|part| part.has_answers()).count() > 1;
    let all = parts.iter().flat_map(|part| part.findings.iter().map(move |finding| (part, finding)));
    let answers = answers(all, several);
    html! {
        @if !answers.is_empty() {
            dl.card {
                @for (part, finding, answer) in answers {
                    div {
                        dt { (answer.label) }
                        dd {
                            strong { (answer.value) }
                            @if several { a href=(anchor(part)) { (part.title) } ": " }
                            (finding.behind(&answer.label))
                        }
                    }
                }
            }
        }
    }
}

/// The findings of each part.
fn findings(parts: &[PagePart]) -> Markup {
    let with_any = || parts.iter().filter(|part| part.listed().next().is_some());
    html! {
        @if with_any().next().is_some() {
            h2 { "Findings" }
            @match parts {
                [part] => (lines(part)),
                _ => ol.findings {
                    @for part in with_any() {
                        li {
                            a href=(anchor(part)) { (part.title) }
                            div.soft { (lines(part)) }
                        }
                    }
                },
            }
            @if with_any().any(PagePart::compares_runs) { (folded(&[rows::rule()])) }
        }
    }
}

/// The findings of a part, of which those behind the first ones are folded.
fn lines(part: &PagePart) -> Markup {
    const FIRST: usize = 6;
    let lines: Vec<String> = part.listed().map(Finding::to_string).collect();
    // One line takes as much room as what would unfold it.
    let (first, rest) = if lines.len() > FIRST + 1 { lines.split_at(FIRST) } else { (&lines[..], &[][..]) };
    html! {
        ul { @for line in first { li { (line) } } }
        @if !rest.is_empty() {
            details.read {
                summary { (count(rest.len(), "finding")) " more" }
                ul { @for line in rest { li { (line) } } }
            }
        }
    }
}

fn section(part: &PagePart, svgs: &BTreeMap<&str, String>, folder: &Path) -> Markup {
    html! {
        section id=(format!("{}-part", part.name)) {
            h2 { (part.title) }
            @if part.is_single { (pictures(part, svgs)) }
            @for sheet in &part.sheets { (table(part, sheet, folder)) }
            @if !part.notes.is_empty() { ul.notes { @for note in &part.notes { li { (note) } } } }
            @if !part.is_single { (pictures(part, svgs)) }
        }
    }
}

fn pictures(part: &PagePart, svgs: &BTreeMap<&str, String>) -> Markup {
    html! {
        @if !part.pictures.is_empty() {
            div.pictures {
                @for picture in &part.pictures {
                    figure id=(picture.name) class=[columns(picture)] {
                        div.scroll {
                            (PreEscaped(accessible(&svgs[picture.name.as_str()], picture)))
                        }
                        figcaption { (picture.caption) }
                    }
                }
            }
        }
    }
}

/// Class of a picture whose text would be too small in one column.
fn columns(picture: &Picture) -> Option<&'static str> {
    match picture.plot.least_width() {
        0..=COLUMN => None,
        width if width <= 2 * COLUMN => Some("wide"),
        _ => Some("widest"),
    }
}

/// Rules and footnotes, which only some readers need.
fn folded(lines: &[String]) -> Markup {
    html! {
        @if !lines.is_empty() {
            details.read {
                summary { "How to read this" }
                ul.soft { @for line in lines { li { (line) } } }
            }
        }
    }
}

fn table(part: &PagePart, sheet: &Sheet, folder: &Path) -> Markup {
    let title = sheet.title.strip_prefix(&format!("{}: ", part.title)).unwrap_or(&sheet.title);
    // The first cell with runs has those of its row; that of a ratio has its baseline's as well.
    let of_row = |row: &'_ Vec<Cell>| row.iter().map(|cell| cell.runs.clone()).find(|runs| !runs.is_empty());
    let repeated: Vec<Vec<PathBuf>> =
        sheet.rows.iter().filter_map(of_row).filter(|runs| runs.len() > 1).collect();
    let (narrow, rest) = sheet.narrow(WIDTH, LABELS);
    html! {
        h3 { (title) }
        (grid(&narrow, &sheet.name, folder))
        @if let Some(common) = &narrow.common { p.soft { (common) } }
        @if let Some(rest) = &rest {
            details.more {
                summary { "More columns" }
                @for (i, part) in rest.parted(WIDTH).iter().enumerate() {
                    (grid(part, &format!("{}-more{}", sheet.name, if i == 0 { String::new() } else { format!("-{}", i + 1) }), folder))
                }
            }
        }
        (folded(&narrow.remarks))
        @if !repeated.is_empty() {
            details {
                summary { "All runs of the rows with repeats" }
                ul { @for runs in &repeated {
                    li { @for (i, run) in runs.iter().enumerate() {
                        @if i > 0 { " · " }
                        a href=(link(folder, run)) { (run.display()) }
                    } }
                } }
            }
        }
    }
}

/// Characters of a table's line that fit into a window of 1,200 pixels.
const WIDTH: usize = 120;
/// Characters of the columns that tell rows apart: on a phone, the first measurement is beside them.
const LABELS: usize = 34;
/// Pixels of a column of pictures, with three of them in a window of 1,400 pixels.
const COLUMN: u32 = 348;

fn grid(sheet: &Sheet, name: &str, folder: &Path) -> Markup {
    // Characters behind the integral part, where a number has decimals, a range or a mark.
    let behind: Vec<usize> = (0..sheet.columns.len())
        .map(|n| sheet.rows.iter().map(|row| split(&row[n].shown()).1.chars().count()).max().unwrap_or(0))
        .collect();
    html! {
        div.scroll tabindex="0" role="region" aria-label=(sheet.title) {
            table id=(name) {
                thead {
                    tr {
                        @for column in &sheet.columns {
                            th scope="col" class=[column.numeric.then_some("n")]
                                title=[Some(&column.definition).filter(|text| !text.is_empty())] { (column.title) }
                        }
                    }
                }
                tbody {
                    @for row in &sheet.rows {
                        tr {
                            @for ((cell, column), behind) in row.iter().zip(&sheet.columns).zip(&behind) {
                                @if column.numeric {
                                    td.n { (content(cell, folder, *behind)) }
                                } @else {
                                    td class=[(column.key == CONFIGURATION).then_some("c")] { (content(cell, folder, 0)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A cell's content: a number links to the first of its runs and lists all of them. What follows
/// its integral part has room for `behind` characters, so that decimal points are aligned.
fn content(cell: &Cell, folder: &Path, behind: usize) -> Markup {
    let shown = cell.shown();
    let text = match (behind, split(&shown)) {
        (0, _) => html! { (shown) },
        (_, (integral, rest)) => html! { (integral) span.d style=(format!("width:{behind}ch")) { (rest) } },
    };
    let names: Vec<String> = cell.runs.iter().map(|run| run.display().to_string()).collect();
    html! {
        @match cell.runs.first() {
            Some(run) => a href=(link(folder, run)) title=(names.join("\n")) { (text) },
            None => (text),
        }
    }
}

/// Relative link from the page's folder to a run's, or to a file.
fn link(folder: &Path, run: &Path) -> String {
    /// Characters that are reserved in a URL.
    const KEPT: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'~');
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| absolute(path));
    let way = pathdiff::diff_paths(real(run), real(folder)).unwrap_or_else(|| real(run));
    let end = if run.is_file() { "" } else { "/" };
    format!("{}{end}", utf8_percent_encode(&way.to_string_lossy(), &KEPT))
}

/// A picture's SVG with a label for screen readers, at its own size, at which its text has that of the page's, and the
/// width below which it scrolls: its text stays legible.
fn accessible(svg: &str, picture: &Picture) -> String {
    let label = html! { (picture.caption) }.into_string().replace('"', "&quot;");
    let (width, least) = (picture.plot.size().0, picture.plot.least_width());
    let with =
        format!("<svg role=\"img\" aria-label=\"{label}\" style=\"width:{width}px;min-width:{least}px\" ");
    svg.replacen("<svg ", &with, 1)
}

/// Prints one table in the given format, in a terminal with all columns if `wide`; nothing for a
/// page.
pub fn print_sheet(sheet: &Sheet, format: Format, wide: bool) -> anyhow::Result<()> {
    let width = terminal_width();
    match format {
        Format::Terminal => println!("{}", sheet.terminal(width, wide)),
        Format::Markdown => println!("{}", sheet.markdown()),
        Format::Csv => print!("{}", sheet.csv()?),
        Format::Html => {}
    }
    Ok(())
}

/// Width of stdout's terminal, if it is one.
fn terminal_width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(size.ws_col).filter(|&columns| columns > 0)
}

/// The pages of a report and of a prediction.
pub const PAGES: [&str; 2] = ["report.html", "prediction.html"];

/// What each page says of its program.
const GENERATED_BY: &str = "Generated by mpiburn";

/// The list of the files of the report with this page.
fn list_of(page: &str) -> String {
    format!(".{page}.sha256")
}

/// Writes the tables of `parts` as Markdown and CSV, their plots as SVG, and the page `name` into `folder`, and
/// prints the page's path; `read` are the files that they are made of. Files of an earlier report that this one does not
/// have are removed.
///
/// # Errors
/// If a file cannot be written, or would replace one that is read.
pub fn publish(parts: &[PagePart], folder: &Path, name: &str, read: &[PathBuf]) -> anyhow::Result<()> {
    let sheets = || parts.iter().flat_map(|part| &part.sheets);
    let files = |sheet: &Sheet| ["md", "csv"].map(|end| folder.join(format!("{}.{end}", sheet.name)));
    sheets().flat_map(files).try_for_each(|file| check_kept("out", &file, read))?;
    let list = folder.join(list_of(name));
    if !list.exists() {
        // A report that is interrupted has one as well.
        write_file(&list, b"")?;
    }
    let mut written = Vec::new();
    for sheet in sheets() {
        let [markdown, csv] = files(sheet);
        write(&markdown, &sheet.markdown())?;
        write(&csv, &sheet.csv()?)?;
        written.extend([markdown, csv]);
    }
    let mut svgs = BTreeMap::new();
    for picture in parts.iter().flat_map(|part| &part.pictures) {
        let file = folder.join(format!("{}.svg", picture.name));
        let svg = picture.plot.svg().map_err(|error| ReportError::new(&file, error))?;
        write_file(&file, svg.as_bytes())?;
        svgs.insert(picture.name.as_str(), svg);
        written.push(file);
    }
    let now: chrono::DateTime<chrono::Utc> = std::time::SystemTime::now().into();
    let made =
        format!("{GENERATED_BY} {} on {} UTC.", env!("CARGO_PKG_VERSION"), now.format("%Y-%m-%d %H:%M"));
    let file = folder.join(name);
    write(&file, &page(parts, &svgs, folder, &made))?;
    remove_earlier(&list, folder, &written)?;
    eprintln!("{}", file.display());
    Ok(())
}

/// Removes the files of `folder` that `list` names and that are not `written` again, unless somebody has changed them
/// since, and lists those that are written, as `sha256sum` does.
fn remove_earlier(list: &Path, folder: &Path, written: &[PathBuf]) -> Result<(), ReportError> {
    let digest = |file: &Path| read_regular(file).map(|bytes| sha256(&bytes)).unwrap_or_default();
    let earlier = read_text(list).unwrap_or_default();
    for (known, name) in earlier.lines().filter_map(|line| line.split_once("  ")) {
        let file = folder.join(name);
        let is_here = Path::new(name).file_name() == Some(name.as_ref()) && !written.contains(&file);
        // What cannot be read has no digest.
        if is_here && !known.is_empty() && digest(&file) == known {
            if_there(std::fs::remove_file(&file)).map_err(|error| ReportError::new(&file, error))?;
        }
    }
    let line = |file: &PathBuf| Some(format!("{}  {}\n", digest(file), file.file_name()?.to_str()?));
    write_file(list, written.iter().filter_map(line).collect::<String>().as_bytes())
}

/// Writes a text, which names and messages in files of others must not make more than a text.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    Ok(write_file(path, without_controls(text).as_bytes())?)
}

/// Whether a page is one of this program. Older versions wrote no list beside it, and other programs have a report.html
/// too: pytest-html, Allure, Lighthouse.
fn is_own_page(page: &Path) -> bool {
    read_regular(page).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(GENERATED_BY))
}

/// Checks that the folder of `--out` is new or empty, or has a report. In the folder of a data set nobody would find the
/// report, and its files would be taken for samples.
///
/// # Errors
/// If it has other files alone, with some of their names.
pub fn check_folder(folder: &Path) -> Result<(), UsageError> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).sorted().collect();
    let has = |file: &str| names.iter().any(|name| name == file);
    let has_report =
        PAGES.iter().any(|page| has(&list_of(page)) || has(page) && is_own_page(&folder.join(page)));
    let others: Vec<&String> = names.iter().filter(|name| !name.starts_with('.')).collect();
    if has_report || others.is_empty() {
        return Ok(());
    }
    let more = if others.len() > 3 { format!(" and {} more", others.len() - 3) } else { String::new() };
    let named = others.iter().take(3).join(", ");
    let problem =
        format!("the folder has files that no report wrote ({named}{more}); choose a new or an empty folder");
    Err(UsageError::new("out", folder.display(), problem))
}

/// Checks that the file that `option` names is none that stays as it is: of a run or a sweep, or among those
/// that are `read`.
///
/// # Errors
/// If it is one, with the reason.
pub fn check_kept<'a>(
    option: &'static str,
    path: &Path,
    read: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), UsageError> {
    let what = if is_own_file(path) {
        "a file of a run or a sweep"
    } else if read.into_iter().any(|read| same_file(read, path).unwrap_or(false)) {
        "a file that this command reads"
    } else {
        return Ok(());
    };
    let problem = format!("it is {what}, which is not replaced; choose another name");
    Err(UsageError::new(option, path.display(), problem))
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
