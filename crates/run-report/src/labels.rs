//! The columns of text that tell the rows of a table of runs apart.

use std::collections::BTreeSet;

use super::rows::Row;
use super::sheet::{Cell, Column};

/// Names of the settings that are columns.
pub struct Labels(Vec<String>);

impl Labels {
    /// The topology, and the settings that differ between `rows`.
    pub fn of(rows: &[&Row<'_>]) -> Self {
        let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.settings.keys()).collect();
        let differs = |name: &str| rows.iter().any(|row| row.setting(name) != rows[0].setting(name));
        // What was changed in mid-run is a footnote of the main table.
        let own = |name: &&&String| !["topology", "changed"].contains(&name.as_str()) && differs(name);
        Self(
            ["topology".to_owned()]
                .into_iter()
                .chain(names.iter().filter(own).map(|name| (*name).clone()))
                .collect(),
        )
    }

    /// The columns.
    pub fn columns(&self) -> Vec<Column> {
        let title = |name: &str| match name {
            "oversubscribed" => "oversub.".to_owned(),
            _ => name.replace('_', " "),
        };
        self.0.iter().map(|name| Column::words(&title(name), name)).collect()
    }

    /// The cells of a row.
    pub fn cells(&self, row: &Row<'_>) -> Vec<Cell> {
        self.0.iter().map(|name| Cell::text(row.setting(name))).collect()
    }
}

/// Whether a row is of a quantized training.
pub fn is_quantized(row: &Row<'_>) -> bool {
    row.setting("quantized") != "no"
}

/// `title` of a table of quantized `rows`, with their kind if they have one.
pub fn titled(title: &str, rows: &[&Row<'_>]) -> String {
    let kinds: BTreeSet<&str> = rows.iter().map(|row| row.setting("quantized")).collect();
    match kinds.len() {
        1 => format!("{title}, {}", rows[0].setting("quantized")),
        _ => title.to_owned(),
    }
}
