//! The report as one HTML page without scripts or external resources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use itertools::Itertools;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use run_record::files::{if_there, read_regular, read_text, same_file, sha256};
use run_record::{count, is_own_file};

use super::card::{Fact, Question};
use super::command::Format;
use super::console::without_controls;
use super::plots::Picture;
use super::sheet::{CONFIGURATION, Cell, Sheet, split};
use super::table::shortened;
use super::{ReportError, UsageError, rows, write_file};

/// A section of the page: one set of runs.
#[derive(Default)]
pub struct Part {
    /// Its heading.
    pub title: String,
    /// Anchor of the heading.
    pub name: String,
    /// What its table says, in a line each.
    pub findings: Vec<String>,
    /// What it says to the questions of the page's card.
    pub facts: Vec<Fact>,
    /// Whether it is of one configuration: nothing is compared, and pictures say more than tables.
    pub is_single: bool,
    /// Its tables.
    pub sheets: Vec<Sheet>,
    /// Its pictures.
    pub pictures: Vec<Picture>,
    /// Runs and files that are not in a table, one line each.
    pub notes: Vec<String>,
}

/// On paper nothing scrolls and nothing is folded, so tables are smaller and pages wide. Plots are drawn on white; in
/// dark mode they are inverted with their hues preserved. What scrolls has a shadow at the end that is hidden, and where the
/// browser knows that it scrolls, a line that says so: the animation has a value only then.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--paper:#fff;--tint:#f6f8fa;--link:#0860b8;--shade:#0003}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9ba3ad;--line:#3a4048;--paper:#16191d;--tint:#1f2328;--link:#79b8ff;\
--shade:#000a}figure svg{filter:invert(.91) hue-rotate(180deg)}}\
*{box-sizing:border-box}\
body{overflow-wrap:break-word;margin:0 auto;padding:1.5rem;max-width:100rem;background:var(--paper);color:var(--ink);\
font:16px/1.5 system-ui,sans-serif}\
main{min-width:0;padding-top:.5rem}\
h1{font-size:1.6rem;margin:0 0 .25rem}h2{font-size:1.3rem;margin:2.5rem 0 .5rem;border-bottom:1px solid var(--line)}\
h3{font-size:1rem;margin:1.5rem 0 .5rem}\
section{scroll-margin-top:3rem}\
p{margin:.4rem 0;max-width:60rem}.soft,figcaption{color:var(--soft);font-size:.875rem}\
.card{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr));margin:1rem 0;\
border:1px solid var(--line);border-radius:.4rem;overflow:hidden;background:var(--tint)}\
.card div{padding:.6rem .8rem;box-shadow:0 0 0 1px var(--line)}.card dt{color:var(--soft);font-size:.875rem}\
.card dd{margin:0;font-size:.875rem}.card strong{display:block;font-size:1.3rem;line-height:1.3}\
nav{position:sticky;top:0;z-index:1;display:flex;gap:1rem;overflow-x:auto;margin:0 -1.5rem;padding:.5rem 1.5rem;\
background:var(--paper);border-bottom:1px solid var(--line);font-size:.875rem}\
nav a{flex:none;max-width:14rem;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}\
@media(min-width:85rem){body{display:grid;grid-template-columns:13rem minmax(0,1fr);gap:1.5rem}\
nav{display:block;align-self:start;max-height:100vh;overflow:auto;margin:0;padding:1.5rem 0;border:0}\
body.alone{display:block;max-width:75rem}nav a{display:block;max-width:none;padding:.2rem 0;white-space:normal}section{scroll-margin-top:0}}\
.scroll{overflow-x:auto;animation:hint linear;animation-timeline:scroll(self inline);\
background:linear-gradient(to right,var(--paper) 30%,transparent) 0 0/2rem 100% local,\
linear-gradient(to left,var(--paper) 30%,transparent) 100% 0/2rem 100% local,\
linear-gradient(to right,var(--shade),transparent) 0 0/.6rem 100% scroll,\
linear-gradient(to left,var(--shade),transparent) 100% 0/.6rem 100% scroll;background-repeat:no-repeat}\
@keyframes hint{from,to{--hint:block}}\
.scroll::before{content:'\\2194  scrolls sideways';display:var(--hint,none);position:sticky;left:0;width:max-content;\
color:var(--soft);font-size:.8125rem}\
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}\
th{border-top:1px solid var(--line);vertical-align:bottom;white-space:normal}\
td.c{min-width:7rem;max-width:18rem;white-space:normal}th.n,td.n{text-align:right}th[title]{text-decoration:underline dotted;text-underline-offset:.2em}\
.d{display:inline-block;text-align:left}\
.findings>li{margin:.4rem 0}.findings ul{margin:0;padding-left:1.2rem}\
tbody tr:hover{background:var(--tint)}\
a{color:var(--link);text-decoration:none}a:hover,a:focus{text-decoration:underline}\
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,22.4rem),1fr));gap:.75rem;margin:1rem 0;align-items:start}\
figure{margin:0;padding:.25rem;border:1px solid var(--line);border-radius:.4rem}figcaption{padding:.25rem}\
figure svg{display:block;max-width:100%;height:auto;margin:0 auto}\
@media(min-width:56rem){figure.wide{grid-column:span 2}figure.widest{grid-column:1/-1}}\
li{overflow-wrap:anywhere}details{font-size:.875rem;margin:.4rem 0}\
@media(max-width:40rem){body{padding:.75rem}nav{margin:0 -.75rem;padding:.5rem .75rem}ol,ul{padding-left:1.4rem}}\
@page{size:A4 landscape;margin:10mm}\
@media print{body{display:block;padding:0;max-width:none}nav{display:none}.scroll{overflow:visible;background:none;animation:none}\
table{font-size:.75rem}th,td{padding:.15rem .4rem}\
details.more::details-content,details.read::details-content{content-visibility:visible;display:block;block-size:auto}\
details.more>summary,details.read>summary{list-style:none}\
.pictures{grid-template-columns:1fr 1fr}figure svg{max-height:170mm}\
h2,h3,summary{break-after:avoid}tr,figure,.card div{break-inside:avoid}}";

/// The page, to be written into `folder`.
fn page(parts: &[Part], svgs: &BTreeMap<&str, String>, folder: &Path, made: &str) -> String {
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

fn anchor(part: &Part) -> String {
    format!("#{}-part", part.name)
}

/// Each question's answer by the first part that has one, with a link to it. Questions about one training have an answer
/// for all parts only where there is one part.
fn card(parts: &[Part]) -> Markup {
    let all = parts.iter().flat_map(|part| part.facts.iter().map(move |fact| (part, fact)));
    let several = parts.iter().filter(|part| !part.facts.is_empty()).count() > 1;
    let is_of_one = |fact: &Fact| (Question::Largest..=Question::Time).contains(&fact.question);
    let facts = all.filter(|(_, fact)| !(several && is_of_one(fact)));
    let facts =
        facts.sorted_by(|(_, a), (_, b)| b.weight.total_cmp(&a.weight)).unique_by(|(_, fact)| &fact.label);
    let facts: Vec<(&Part, &Fact)> = facts.sorted_by_key(|(_, fact)| fact.question).collect();
    html! {
        @if !facts.is_empty() {
            dl.card {
                @for (part, fact) in facts {
                    div {
                        dt { (fact.label) }
                        dd {
                            strong { (fact.value) }
                            @if several { a href=(anchor(part)) { (part.title) } ": " }
                            (fact.text)
                        }
                    }
                }
            }
        }
    }
}

/// The findings of each part.
fn findings(parts: &[Part]) -> Markup {
    let with_any = || parts.iter().filter(|part| !part.findings.is_empty());
    html! {
        @if with_any().next().is_some() {
            h2 { "Findings" }
            @match parts {
                [part] => (lines(&part.findings)),
                _ => ol.findings {
                    @for part in with_any() {
                        li {
                            a href=(anchor(part)) { (part.title) }
                            div.soft { (lines(&part.findings)) }
                        }
                    }
                },
            }
            @if with_any().any(|part| !part.is_single) { (folded(&[rows::rule()])) }
        }
    }
}

/// A list of `lines`, of which those behind the first ones are folded.
fn lines(lines: &[String]) -> Markup {
    const FIRST: usize = 6;
    // One line takes as much room as what would unfold it.
    let (first, rest) = if lines.len() > FIRST + 1 { lines.split_at(FIRST) } else { (lines, &[][..]) };
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

fn section(part: &Part, svgs: &BTreeMap<&str, String>, folder: &Path) -> Markup {
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

fn pictures(part: &Part, svgs: &BTreeMap<&str, String>) -> Markup {
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

fn table(part: &Part, sheet: &Sheet, folder: &Path) -> Markup {
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

/// Writes the tables of `parts` as Markdown and CSV, their plots as SVG and PNG, and the page `name` into `folder`, and
/// prints the page's path; `read` are the files that they are made of. Files of an earlier report that this one does not
/// have are removed.
///
/// # Errors
/// If a file cannot be written, or would replace one that is read.
pub fn publish(parts: &[Part], folder: &Path, name: &str, read: &[PathBuf]) -> anyhow::Result<()> {
    let sheets = || parts.iter().flat_map(|part| &part.sheets);
    let files = |sheet: &Sheet| ["md", "csv"].map(|end| folder.join(format!("{}.{end}", sheet.name)));
    sheets().flat_map(files).try_for_each(|file| check_kept("out", &file, read))?;
    let mut written = Vec::new();
    for sheet in sheets() {
        let [markdown, csv] = files(sheet);
        write(&markdown, &sheet.markdown())?;
        write(&csv, &sheet.csv()?)?;
        written.extend([markdown, csv]);
    }
    let mut svgs = BTreeMap::new();
    for picture in parts.iter().flat_map(|part| &part.pictures) {
        let [file, png] = ["svg", "png"].map(|end| folder.join(format!("{}.{end}", picture.name)));
        let svg = picture.plot.svg().map_err(|error| ReportError::new(&file, error))?;
        write_file(&file, svg.as_bytes())?;
        picture.plot.save(&png)?;
        svgs.insert(picture.name.as_str(), svg);
        written.extend([file, png]);
    }
    let now: chrono::DateTime<chrono::Utc> = std::time::SystemTime::now().into();
    let made = format!(
        "Generated by mpiburn {} on {} UTC.",
        env!("CARGO_PKG_VERSION"),
        now.format("%Y-%m-%d %H:%M")
    );
    let file = folder.join(name);
    write(&file, &page(parts, &svgs, folder, &made))?;
    remove_earlier(&folder.join(format!(".{name}.sha256")), folder, &written)?;
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
    let what = match () {
        () if is_own_file(path) => "a file of a run or a sweep",
        () if read.into_iter().any(|read| same_file(read, path).unwrap_or(false)) => {
            "a file that this command reads"
        }
        () => return Ok(()),
    };
    let problem = format!("it is {what}, which is not replaced; choose another name");
    Err(UsageError::new(option, path.display(), problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sheet::Column;

    #[test]
    fn a_number_links_to_its_run_and_lists_repeats() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("report");
        std::fs::create_dir(&folder).unwrap();
        let runs: Vec<PathBuf> = ["a run#1", "b"].map(|name| root.path().join(name)).into();
        runs.iter().for_each(|run| std::fs::create_dir(run).unwrap());
        let sheet = Sheet {
            name: "t".into(),
            title: "a < b".into(),
            columns: vec![Column::number("n", "n")],
            rows: vec![vec![Cell::number(1.5, 1, runs.clone())]],
            remarks: vec!["a rule".into()],
            ..Sheet::default()
        };
        let listed = |sheet: &Sheet| {
            table(&Part::default(), sheet, &folder)
                .into_string()
                .contains("All runs of the rows with repeats")
        };
        let cells = [Cell::number(4.0, 1, runs[..1].to_vec()), Cell::number(1.5, 1, runs.clone())];
        let columns = vec![Column::number("n", "n"), Column::number("m", "m")];
        let of_ratio = Sheet { rows: vec![cells.into()], columns, ..sheet.clone() };
        assert!(listed(&sheet) && !listed(&of_ratio), "a row and its baseline are no repeats");
        let fact = |value: &str, text: &str| Fact {
            question: Question::Fastest,
            label: "fastest".into(),
            value: value.into(),
            text: text.into(),
            weight: 0.0,
        };
        let part = Part {
            title: "T".into(),
            name: "t".into(),
            findings: vec!["fast".into()],
            facts: vec![fact("1x2", "5 s")],
            sheets: vec![sheet],
            notes: vec!["x & y".into()],
            ..Part::default()
        };
        let alone = page(std::slice::from_ref(&part), &BTreeMap::new(), &folder, "Today.");
        assert!(!alone.contains("<nav") && alone.contains("<li>fast</li>"), "{alone}");
        assert!(alone.contains("<strong>1x2</strong>5 s</dd>"), "{alone}");
        let other =
            Part { title: "O".into(), name: "o".into(), facts: vec![fact("2x1", "9 s")], ..Part::default() };
        let text = page(&[part, other], &BTreeMap::new(), &folder, "Today.");
        assert!(text.contains("<strong>1x2</strong><a href=\"#t-part\">T</a>: 5 s</dd>"), "{text}");
        assert!(!text.contains("2x1"), "one answer to each question: {text}");
        assert!(text.contains("href=\"../a%20run%231/\""), "{text}");
        assert!(text.contains(&format!("title=\"{}\n{}\"", runs[0].display(), runs[1].display())), "{text}");
        assert!(
            text.contains("a &lt; b") && text.contains("x &amp; y") && text.contains("href=\"../b/\""),
            "{text}"
        );
        assert_eq!(text.matches(&rows::rule()).count(), 1, "how differences are decided: {text}");
        let folded = "<summary>How to read this</summary><ul class=\"soft\"><li>a rule</li></ul></details>";
        assert!(text.contains(folded), "{text}");
        assert!(text.contains("<a href=\"#t-part\">T</a>"), "the menu has titles: {text}");
        assert!(text.contains("href=\"#t-part\"") && text.contains("<li>fast</li>"), "{text}");
        assert!(!text.contains("<script") && !text.contains("http"), "{text}");
    }

    #[test]
    fn one_configuration_has_no_rule_of_comparison_and_many_findings_are_folded() {
        let with = |is_single, count: usize| {
            let findings = (0..count).map(|number| format!("finding {number}")).collect();
            let part = Part { title: "Run a".into(), is_single, findings, ..Part::default() };
            page(&[part], &BTreeMap::new(), Path::new("."), "Today.")
        };
        assert!(!with(true, 1).contains(&rows::rule()) && with(false, 1).contains(&rows::rule()));
        assert!(with(true, 1).contains("<title>Run a – mpiburn report</title>"), "{}", with(true, 1));
        assert!(!with(true, 7).contains("more</summary>"), "{}", with(true, 7));
        let folded = "<summary>2 findings more</summary><ul><li>finding 6</li><li>finding 7</li></ul>";
        assert!(with(true, 8).contains(folded), "{}", with(true, 8));
    }

    #[test]
    fn files_of_an_earlier_report_are_removed_unless_somebody_changed_them() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path();
        let sheet = |name: &str| Sheet { name: name.into(), ..Sheet::default() };
        let report = |names: &[&str]| {
            let sheets = names.iter().map(|name| sheet(name)).collect();
            publish(&[Part { sheets, ..Part::default() }], folder, "report.html", &[]).unwrap();
        };
        let names = || {
            let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
            entries
                .filter_map(|name| name.into_string().ok())
                .filter(|name| !name.starts_with('.'))
                .sorted()
                .join(" ")
        };
        report(&["a", "b"]);
        assert_eq!(names(), "a.csv a.md b.csv b.md report.html");
        std::fs::write(folder.join("b.md"), "a user's").unwrap();
        std::fs::write(folder.join("c.svg"), "a user's").unwrap();
        report(&["a"]);
        assert_eq!(names(), "a.csv a.md b.md c.svg report.html");
        publish(&[], folder, "prediction.html", &[]).unwrap();
        assert_eq!(names(), "a.csv a.md b.md c.svg prediction.html report.html");
        let list = folder.join(".report.html.sha256");
        std::fs::write(folder.with_extension("kept"), "").unwrap();
        let outside = folder.with_extension("kept");
        let name = outside.file_name().unwrap().to_str().unwrap();
        std::fs::write(&list, format!("{}  ../{name}\n", sha256(b""))).unwrap();
        report(&[]);
        assert!(outside.exists(), "not in the folder");
        // Without a digest, as reports at the same time may leave them.
        std::fs::create_dir(folder.join("d")).unwrap();
        std::fs::write(&list, "  none.md\n  d\n").unwrap();
        report(&[]);
        assert!(folder.join("d").exists());
        std::fs::remove_file(outside).unwrap();
    }
}
