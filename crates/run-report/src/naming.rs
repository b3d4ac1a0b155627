//! Names of a report's rows in plots. A row is a configuration: one run or its repeats. Its name consists of
//! the settings in which rows differ.

use std::collections::BTreeMap;

use itertools::Itertools;

use super::rows::{Row, is_off, typed, unset, varied, word};

/// Up to this number of rows, every line of a legend contains the names of the settings. With more rows, a
/// line may contain only their values.
const FEW: usize = 4;
/// Maximum number of characters in a line of a legend.
const LINE: usize = 36;

/// Returns a name for each row: the settings in which it differs from other rows. If one of these names is
/// longer than a line of a legend, all names leave out the values that most rows share.
pub fn names(rows: &[Row<'_>]) -> Vec<String> {
    let (varied, usual) = (varied(rows), usual(rows));
    if usual.is_empty() {
        return rows.iter().map(|row| row.name(rows, &varied)).collect();
    }
    let own = |row: &Row<'_>| {
        let told = |name: &String| match (row.setting(name), usual.get(name)) {
            (value, Some(usual)) if value == usual => None,
            (value, Some(_)) => word(name, value).or_else(|| unset(name, value)),
            (value, None) => word(name, value),
        };
        let changed = row.settings.contains_key("changed").then(|| "changed by a resume".to_owned());
        let words = settings(rows).iter().filter_map(told).chain(changed).join(", ");
        if words.is_empty() { "usual settings".into() } else { words }
    };
    rows.iter().map(own).collect()
}

/// Returns the settings that most rows share, which [`names`] leaves out. Empty if the names contain all
/// settings.
pub fn left_out(rows: &[Row<'_>]) -> String {
    let usual = usual(rows);
    settings(rows).iter().filter_map(|name| word(name, usual.get(name)?)).join(", ")
}

/// Returns the heading of a legend, and the name of each row in the legend.
///
/// If there are many rows, the heading lists the names of the settings in which the rows differ, and each
/// line of the legend lists only a row's values. This requires that each of these settings is on in every
/// row, that no resume changed a setting, and that each line is short enough. If not, the heading is empty,
/// and the lines are [`names`].
pub fn legend(rows: &[Row<'_>]) -> (String, Vec<String>) {
    let settings = settings(rows);
    let is_told = |row: &Row<'_>| {
        !row.settings.contains_key("changed") && settings.iter().all(|name| !is_off(row.setting(name)))
    };
    if rows.len() <= FEW || settings.is_empty() || !rows.iter().all(is_told) {
        return (String::new(), names(rows));
    }
    let values = |row: &Row<'_>| settings.iter().map(|name| typed(row.setting(name))).join(", ");
    let names: Vec<String> = rows.iter().map(values).collect();
    if names.iter().any(|name| name.chars().count() > LINE) {
        (String::new(), self::names(rows))
    } else {
        (format!("{}:", settings.iter().map(|name| name.replace('_', " ")).join(", ")), names)
    }
}

/// Returns the names of the settings in which rows differ.
fn settings(rows: &[Row<'_>]) -> Vec<String> {
    let differs = |name: &&str| rows.iter().any(|row| row.setting(name) != rows[0].setting(name));
    let place = ["topology", "backend"].into_iter().filter(differs).map(Into::into);
    place.chain(varied(rows)).collect()
}

/// For the settings in which rows differ, returns the value that more than half of the rows have. A setting
/// without such a value is left out. Empty if names with all settings are short enough.
fn usual(rows: &[Row<'_>]) -> BTreeMap<String, String> {
    let varied = varied(rows);
    if rows.iter().all(|row| row.name(rows, &varied).chars().count() <= LINE) {
        return BTreeMap::new();
    }
    let of_most = |name: String| {
        let counts = rows.iter().map(|row| row.setting(&name)).counts();
        let (value, _) = counts.into_iter().find(|(_, count)| 2 * count > rows.len())?;
        let value = value.to_owned();
        Some((name, value))
    };
    settings(rows).into_iter().filter_map(of_most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::testing::run;

    #[test]
    fn names_of_mixed_runs_have_what_differs_from_most() {
        let run_of = |topology, options: &[&str]| {
            let usual = [
                "--shuffle",
                "--epochs",
                "8",
                "--batch-size",
                "16",
                "--data-root",
                "a/trees",
                "--model",
                "mlp",
            ];
            let options: Vec<&str> = usual.iter().chain(options).copied().collect();
            run(topology, &options, 4.0)
        };
        let runs = [
            run_of((1, 1), &[]),
            run_of((1, 1), &["--hidden", "64", "--shuffle", "false"]),
            run_of((1, 1), &["--dropout", "0.2", "--batch-norm"]),
            run_of((1, 2), &["--data-root", "a/digits", "--epochs", "12", "--batch-size", "32"]),
            run_of((1, 1), &["--epochs", "9"]),
        ];
        let rows = group(&runs);
        let expected = [
            "hidden 64, shuffle off",
            "usual settings",
            "batch norm, dropout 0.2",
            "epochs 9",
            "1x2, data root a/digits, epochs 12, train batch size 32",
        ];
        let found = names(&rows);
        assert_eq!(found.iter().sorted().collect::<Vec<_>>(), expected.iter().sorted().collect::<Vec<_>>());
        assert_eq!(left_out(&rows), "1x1, data root a/trees, epochs 8, shuffle, train batch size 16");
        assert_eq!(legend(&rows), (String::new(), found));
        assert_eq!(left_out(&rows[..1]), "", "a name alone says all");
    }
}
