//! Makes tables for the console, and shortens names.

use comfy_table::presets::UTF8_FULL_CONDENSED;
pub use comfy_table::{CellAlignment, Table};

/// Shortens `name` to at most `room` characters. A longer name becomes its beginning, `…` and its end. `room`
/// must be at least 1.
pub fn shortened(name: &str, room: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= room {
        return name.to_owned();
    }
    let end = (room - 1) / 2;
    let (before, after) = (&letters[..room - 1 - end], &letters[letters.len() - end..]);
    before.iter().chain(&['…']).chain(after).collect()
}

/// Makes a table with the column names `header`. The first `left` columns contain text and are aligned left.
/// The other columns contain numbers and are aligned right.
pub fn table<S: ToString>(header: &[S], left: usize, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(header.iter().map(ToString::to_string));
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
