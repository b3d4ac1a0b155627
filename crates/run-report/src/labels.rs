//! The columns of text that tell the rows of a table of runs apart.

use std::collections::BTreeSet;

use super::rows::Row;
use super::sheet::{Cell, Column, Field};

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

    /// The columns of a table of rows from which `row` takes the one that is labelled.
    pub fn columns<'a, R: 'a>(
        &self,
        row: impl for<'r> Fn(&'r R) -> &'r Row<'a> + Copy + 'a,
    ) -> Vec<Field<'a, R>> {
        self.0.iter().map(|name| setting(name, row)).collect()
    }
}

/// The column of a setting of the row that `row` takes.
pub fn setting<'a, R: 'a>(name: &str, row: impl for<'r> Fn(&'r R) -> &'r Row<'a> + 'a) -> Field<'a, R> {
    let title = if name == "oversubscribed" { "oversub.".to_owned() } else { name.replace('_', " ") };
    let option = name.replace('_', "-");
    let definition = match name {
        "topology" => "Machines x processes on each",
        "backend" => "Transport of the gradients",
        "launcher" => "What started the ranks",
        "oversubscribed" => {
            "yes: more ranks than cores, which take turns; shared: several hosts are one machine"
        }
        _ => &format!("The option --{option}"),
    };
    let name = name.to_owned();
    let column = Column::words(&title, &name).means(definition);
    column.of(move |of: &R| Cell::text(row(of).setting(&name)))
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
