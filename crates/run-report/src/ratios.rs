//! The other backends' times relative to mpi's.

use super::footnotes::is_sound;
use super::labels::setting;
use super::measures::TRAIN;
use super::noise::times_differ;
use super::rows::{Row, Spread};
use super::runs::Section;
use super::sheet::{Cell, Column, Sheet};
use super::summary::{own_columns, paths};

// gloo's options are settings of mpi runs as well, without an effect.
const EXCEPT: [&str; 3] = ["backend", "gloo_algorithm", "interface"];

/// Rows of two backends with otherwise equal settings.
pub struct Pair<'r, 'a> {
    /// The row over mpi.
    pub mpi: &'r Row<'a>,
    /// The row over the other backend.
    pub other: &'r Row<'a>,
}

impl Pair<'_, '_> {
    /// The other's median time over mpi's, with the extremes over repeats; `None` unless the times
    /// of both rows can be compared.
    pub fn ratio(&self) -> Option<Spread> {
        let (other, mpi) = (self.other.train_seconds(), self.mpi.train_seconds());
        (is_sound(self.other) && is_sound(self.mpi)).then(|| Spread {
            median: other.median / mpi.median,
            min: other.min / mpi.max,
            max: other.max / mpi.min,
            count: other.count.min(mpi.count),
        })
    }
}

/// The pairs of `rows`. One rank communicates with none, so that its backends do not differ.
pub fn pairs<'r, 'a>(rows: &'r [Row<'a>]) -> Vec<Pair<'r, 'a>> {
    let of_mpi = |mpi: &'r Row<'a>| {
        let is_other =
            move |row: &&Row<'a>| row.setting("backend") != "mpi" && row.equals_except(mpi, &EXCEPT);
        rows.iter().filter(is_other).map(move |other| Pair { mpi, other })
    };
    rows.iter().filter(|row| row.setting("backend") == "mpi" && row.ranks() > 1).flat_map(of_mpi).collect()
}

/// The table of the pairs; none if there are none.
pub fn ratios(section: &Section, rows: &[Row<'_>]) -> Option<Sheet> {
    let varied: Vec<String> =
        own_columns(rows).into_iter().filter(|name| !EXCEPT.contains(&name.as_str())).collect();
    let differ = |pair: &Pair<'_, '_>| {
        let [other, mpi] = [pair.other, pair.mpi].map(Row::train_seconds);
        Cell::text(if times_differ(&other, &mpi) { "yes" } else { "no" })
    };
    let own = |name: &str| setting(name, |pair: &Pair<'_, '_>| pair.mpi);
    let mut columns = vec![own("topology"), own("launcher")];
    columns.extend(varied.iter().map(|name| own(name)));
    columns.extend([
        Column::words("backend", "backend")
            .of(|pair: &Pair<'_, '_>| Cell::text(pair.other.setting("backend"))),
        own("oversubscribed"),
        Column::spread("its train s", "train_seconds")
            .means("Seconds of training over that backend")
            .of(|pair: &Pair<'_, '_>| TRAIN.cell(pair.other)),
        Column::spread("mpi train s", "mpi_train_seconds")
            .means("Seconds of training over mpi")
            .of(|pair: &Pair<'_, '_>| TRAIN.cell(pair.mpi)),
        Column::number("ratio", "ratio").means("The backend's median over mpi's: above 1, mpi is faster").of(
            |pair: &Pair<'_, '_>| {
                let runs = || [paths(pair.other), paths(pair.mpi)].concat();
                Cell::maybe(pair.ratio().map(|ratio| Cell::number(ratio.median, 2, runs())))
            },
        ),
        Column::words("from … to", "ratio_range")
            .means("The backend's fastest repeat over mpi's slowest, and the reverse")
            .of(|pair: &Pair<'_, '_>| {
                let range = pair.ratio().filter(|ratio| ratio.count > 1);
                Cell::maybe(range.map(|ratio| Cell::text(format!("{:.2} … {:.2}", ratio.min, ratio.max))))
            }),
        Column::words("differ", "differ")
            .means("Whether the times differ by more than noise")
            .of(|pair: &Pair<'_, '_>| Cell::maybe(pair.ratio().map(|_| differ(pair)))),
    ]);
    let pairs = pairs(rows);
    let remark = "A ratio above 1: mpi is faster, where the times differ by more than noise.";
    let missing = pairs.iter().any(|pair| pair.ratio().is_none());
    let missing =
        missing.then_some("There is no ratio where a row is too short, disturbed or unsteady (see above).");
    let title = format!("{}: comparison of backends, medians of train s", section.title);
    let sheet = Sheet::of(format!("{}-ratios", section.name), title, columns, &pairs);
    (!pairs.is_empty()).then(|| sheet.with_remarks([remark].into_iter().chain(missing).map(Into::into)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::runs::Run;
    use crate::sheet::Value;
    use crate::testing::run;

    fn sheet(runs: Vec<Run>) -> Option<Sheet> {
        let section = Section { name: "t".into(), title: "T".into(), runs, ..Section::default() };
        ratios(&section, &group(&section.runs))
    }

    #[test]
    fn ratios_compare_rows_with_equal_settings_only() {
        let gloo = ["--backend", "gloo", "--gloo-algorithm", "bcube"];
        let runs = vec![run((2, 1), &[], 4.0), run((2, 1), &gloo, 5.0), run((2, 2), &gloo, 5.0)];
        let found = sheet(runs.clone()).unwrap();
        assert_eq!(found.rows.len(), 1);
        assert_eq!(found.rows[0].iter().rev().nth(2).unwrap().shown(), "1.25");
        assert!(sheet(runs[1..].to_vec()).is_none());
    }

    #[test]
    fn one_rank_has_no_ratio_and_short_rows_none_either() {
        let gloo = ["--backend", "gloo"];
        assert!(sheet(vec![run((1, 1), &[], 4.0), run((1, 1), &gloo, 5.0)]).is_none());
        let short = sheet(vec![run((1, 2), &[], 1.0), run((1, 2), &gloo, 5.0)]).unwrap();
        assert_eq!(short.rows[0].iter().rev().nth(2).unwrap().value, Value::Nothing);
        assert!(short.remarks[1].contains("too short, disturbed or unsteady"), "{:?}", short.remarks);
    }

    #[test]
    fn the_range_is_that_of_extreme_repeats() {
        let of = |seconds: f64, gloo: bool| {
            run((1, 2), if gloo { &["--backend", "gloo"][..] } else { &[] }, seconds)
        };
        let found = sheet(vec![of(4.0, false), of(5.0, false), of(6.0, true), of(7.0, true)]).unwrap();
        let shown: Vec<String> = found.rows[0][4..].iter().map(Cell::shown).collect();
        assert_eq!(shown, ["6.50 (6.00–7.00)", "4.50 (4.00–5.00)", "1.44", "1.20 … 1.75", "yes"]);
        let close = sheet(vec![of(4.0, false), of(4.1, true)]).unwrap();
        assert_eq!(close.rows[0].last().unwrap().shown(), "no", "single runs differ by 2.5%");
    }
}
