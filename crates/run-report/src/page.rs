//! Writes a report as one HTML page without scripts or external resources, and its tables and plots as files.
//! The page begins with a card of short answers and a list of findings.

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

/// A part of the page: the tables and plots of one section, of profiles, or of a benchmark.
#[derive(Default)]
pub struct PagePart {
    /// Heading of the part.
    pub title: String,
    /// Anchor of the heading.
    pub name: String,
    /// Findings about the tables of the part.
    pub findings: Vec<Finding>,
    /// Whether the part shows a single configuration. Nothing is compared then, and pictures come before
    /// tables.
    pub is_single: bool,
    /// Tables of the part.
    pub sheets: Vec<Sheet>,
    /// Plots of the part.
    pub pictures: Vec<Picture>,
    /// Runs and files that are not in a table, one line each.
    pub notes: Vec<String>,
}

impl PagePart {
    /// Returns the findings that are in the list.
    pub fn listed(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.is_listed)
    }

    /// Whether the findings compare runs.
    pub fn compares_runs(&self) -> bool {
        !self.is_single && self.has_answers() && self.listed().next().is_some()
    }

    /// Whether the card shows answers of this part. Only parts with runs have answers.
    fn has_answers(&self) -> bool {
        self.findings.iter().any(|finding| finding.answer.is_some())
    }
}

/// The style sheet.
///
/// - In print, nothing scrolls or is folded, so tables are smaller and pages are in landscape.
/// - Plots have a white background. Dark mode inverts them and keeps their hues.
/// - An element that scrolls sideways has a shadow at the end that is hidden. In browsers with scroll-driven
///   animations, a line of text also says that the element scrolls. The animation `hint` shows this line, and
///   has no effect if the element does not scroll.
const STYLE: &str = include_str!("page.css");

/// Makes the page. Links are relative to `folder`, where the page will be written.
fn page(parts: &[PagePart], svgs: &BTreeMap<&str, String>, folder: &Path, made: &str) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                title { @if let [part] = parts { (part.title) " – " } "mpiburn report" }
                // Without an icon in the page, browsers request one from the server.
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

/// Makes the card: the answers of all parts, each with a link to its part.
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

/// Makes the list of the findings of each part.
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

/// Makes the list of a part's findings. Only the first ones are visible; the others are folded.
fn lines(part: &PagePart) -> Markup {
    const FIRST: usize = 6;
    let lines: Vec<String> = part.listed().map(Finding::to_string).collect();
    // Do not fold a single line: the line that unfolds it would take as much space.
    let (first, rest) = if lines.len() > FIRST + 1 { lines.split_at(FIRST) } else { (&lines[..], &[][..]) };
    html! {
        ul { @for line in first { li { (line) } } }
        @if !rest.is_empty() {
            details.read {
                summary { (count(rest.len(), "more finding")) " in this list" }
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

/// Returns the CSS class of a picture that needs more than one column for its text to be legible. `None` if
/// one column is enough.
fn columns(picture: &Picture) -> Option<&'static str> {
    match picture.plot.least_width() {
        0..=COLUMN => None,
        width if width <= 2 * COLUMN => Some("wide"),
        _ => Some("widest"),
    }
}

/// Makes a folded list of rules and footnotes, which only some readers need.
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
    // The runs of a row are those that its first cell with runs links to. A later cell with a ratio also
    // links to the runs of the baseline, which are not repeats.
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
                summary { "All runs of rows with repeats" }
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

/// Number of characters of a table's line that fit into a window of 1,200 pixels.
const WIDTH: usize = 120;
/// Number of characters for the columns that name rows. On a phone, the first column of measurements then
/// fits beside them.
const LABELS: usize = 34;
/// Width in pixels of a column of pictures. Three columns fit into a window of 1,400 pixels.
const COLUMN: u32 = 348;

fn grid(sheet: &Sheet, name: &str, folder: &Path) -> Markup {
    // For each column, the number of characters after the integral part: decimals, a range or a mark.
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

/// Makes a cell's content. A number links to the first of its runs and lists all of them in its tooltip.
/// `behind` is the number of characters that are reserved after the integral part, so that decimal points are
/// aligned.
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

/// Returns the relative link from the page's folder to a run's folder or a file.
fn link(folder: &Path, run: &Path) -> String {
    /// Characters to escape in a URL: everything except alphanumeric characters and `/ . - _ ~`.
    const KEPT: AsciiSet = NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_').remove(b'~');
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| absolute(path));
    let way = pathdiff::diff_paths(real(run), real(folder)).unwrap_or_else(|| real(run));
    let end = if run.is_file() { "" } else { "/" };
    format!("{}{end}", utf8_percent_encode(&way.to_string_lossy(), &KEPT))
}

/// Prepares a picture's SVG for the page: adds a label for screen readers, and sets the width at which the
/// picture's text is as large as the page's text. In a window narrower than the minimum width, the picture
/// scrolls, so that its text stays legible.
fn accessible(svg: &str, picture: &Picture) -> String {
    let label = html! { (picture.caption) }.into_string().replace('"', "&quot;");
    let (width, least) = (picture.plot.size().0, picture.plot.least_width());
    let with =
        format!("<svg role=\"img\" aria-label=\"{label}\" style=\"width:{width}px;min-width:{least}px\" ");
    svg.replacen("<svg ", &with, 1)
}

/// Prints one table in the given format. For a terminal, `wide` prints all columns. HTML prints nothing here.
///
/// # Errors
/// If the table cannot be written as CSV.
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

/// Returns the width of the terminal in characters; `None` if stdout is not a terminal.
fn terminal_width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(size.ws_col).filter(|&columns| columns > 0)
}

/// File names of the pages of a report and of a prediction.
pub const PAGES: [&str; 2] = ["report.html", "prediction.html"];

/// Text in each page. The program recognises its own pages by this text.
const GENERATED_BY: &str = "Generated by mpiburn";

/// Returns the name of the file that lists the tables and plots of `page`.
fn list_of(page: &str) -> String {
    format!(".{page}.sha256")
}

/// Writes the report `parts` into `folder`: tables as Markdown and CSV, plots as SVG, and the page `name`.
/// Prints the path of the page. Files of an earlier report that are not written again are removed. `read` are
/// the input files, which must not be overwritten.
///
/// # Errors
/// If a file cannot be written, or would replace an input.
pub fn publish(parts: &[PagePart], folder: &Path, name: &str, read: &[PathBuf]) -> anyhow::Result<()> {
    let sheets = || parts.iter().flat_map(|part| &part.sheets);
    let files = |sheet: &Sheet| ["md", "csv"].map(|end| folder.join(format!("{}.{end}", sheet.name)));
    sheets().flat_map(files).try_for_each(|file| check_kept("out", &file, read))?;
    let list = folder.join(list_of(name));
    if !list.exists() {
        // Write the list before the first file, so that an interrupted report has a list too.
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

/// Removes the files of an earlier report, which `list` names with their digests. Files that are `written`
/// again, or that somebody has changed since, stay. Then writes the new list, in the format of `sha256sum`.
fn remove_earlier(list: &Path, folder: &Path, written: &[PathBuf]) -> Result<(), ReportError> {
    let digest = |file: &Path| read_regular(file).map(|bytes| sha256(&bytes)).unwrap_or_default();
    let earlier = read_text(list).unwrap_or_default();
    for (known, name) in earlier.lines().filter_map(|line| line.split_once("  ")) {
        let file = folder.join(name);
        let is_here = Path::new(name).file_name() == Some(name.as_ref()) && !written.contains(&file);
        // A file that could not be read has an empty digest in the list.
        if is_here && !known.is_empty() && digest(&file) == known {
            if_there(std::fs::remove_file(&file)).map_err(|error| ReportError::new(&file, error))?;
        }
    }
    let line = |file: &PathBuf| Some(format!("{}  {}\n", digest(file), file.file_name()?.to_str()?));
    write_file(list, written.iter().filter_map(line).collect::<String>().as_bytes())
}

/// Writes a text without control characters. Names and messages in it may be from files that somebody else
/// wrote.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    Ok(write_file(path, without_controls(text).as_bytes())?)
}

/// Whether this program wrote the page. An older version wrote no list of its files, so its report is
/// recognised by the text of the page. The page's name is not enough: pytest-html, Allure and Lighthouse also
/// write a `report.html`.
fn is_own_page(page: &Path) -> bool {
    read_regular(page).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(GENERATED_BY))
}

/// Checks that the folder of `--out` is new, empty, or contains a report. In the folder of a data set, for
/// example, nobody would find the report, and its files would be taken for samples.
///
/// # Errors
/// If `folder` is a file, or contains other files and no report. The message then names some of them.
pub fn check_folder(folder: &Path) -> Result<(), UsageError> {
    if folder.exists() && !folder.is_dir() {
        return Err(UsageError::new("out", folder.display(), "is not a folder: choose another"));
    }
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
        format!("contains files that are not from a report ({named}{more}): choose a new or an empty folder");
    Err(UsageError::new("out", folder.display(), problem))
}

/// Rejects `path`, given by `option`, if writing it would overwrite a file of a run or a sweep, or a file in
/// `read`.
///
/// # Errors
/// If writing it would overwrite such a file. The message names the kind of file.
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
    let problem = format!("is {what} and must not be overwritten: choose another name");
    Err(UsageError::new(option, path.display(), problem))
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
