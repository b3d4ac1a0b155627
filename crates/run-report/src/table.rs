//! Tables on the console.

use comfy_table::presets::UTF8_FULL_CONDENSED;
pub use comfy_table::{CellAlignment, Table};

/// A table of text with the columns of `header`; those after the first `left` are
/// numbers, aligned right.
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
