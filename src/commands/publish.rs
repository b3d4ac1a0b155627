//! Tables and pages, printed or as files.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::cli::Format;
use crate::report::page::{self, Part};
use crate::report::sheet::Sheet;

/// Prints one table in the form asked for; of a page, nothing.
pub fn print_sheet(sheet: &Sheet, format: Format) -> anyhow::Result<()> {
    let width = terminal_width();
    match format {
        Format::Terminal => println!("{}", sheet.terminal(width)),
        Format::Markdown => println!("{}", sheet.markdown()),
        Format::Csv => print!("{}", sheet.csv()?),
        Format::Html => {}
    }
    Ok(())
}

/// Columns of the terminal that stdout is, if it is one.
fn terminal_width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(size.ws_col).filter(|&columns| columns > 0)
}

/// Writes a table into `folder`, for people and for programs.
pub fn write_sheet(sheet: &Sheet, folder: &Path) -> anyhow::Result<()> {
    write(&folder.join(format!("{}.md", sheet.name)), &sheet.markdown())?;
    write(&folder.join(format!("{}.csv", sheet.name)), &sheet.csv()?)
}

/// Writes a page into `folder`, and says where it is.
pub fn publish_page(parts: &[Part], file: &Path, folder: &Path) -> anyhow::Result<()> {
    let now: chrono::DateTime<chrono::Utc> = std::time::SystemTime::now().into();
    let made =
        format!("Made by mpiburn {} on {} UTC.", env!("CARGO_PKG_VERSION"), now.format("%Y-%m-%d %H:%M"));
    write(file, &page::page(parts, folder, &made))?;
    eprintln!("{}", file.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
