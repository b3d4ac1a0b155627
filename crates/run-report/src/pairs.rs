//! Tables that compare pairs of rows. A row is a configuration: one run or its repeats. The two rows of a
//! pair differ only in the backend, or only in quantization.

use super::quantized::measure;
use super::remarks::is_sound;
use super::rows::{Row, Spread, times_differ};
use super::runs::Section;
use super::sheet::{Cell, Column, Field, Sheet};
use super::summary::{TRAIN, is_quantized, labels, own_columns, paths, setting, titled};
use run_record::Part;

/// Two rows with equal settings, except for the setting that is compared.
pub struct Pair<'r, 'a> {
    /// The row with mpi, or without quantization.
    pub base: &'r Row<'a>,
    /// The row with another backend, or with quantization.
    pub other: &'r Row<'a>,
}

impl Pair<'_, '_> {
    /// Returns the training time of `other` divided by the training time of `base`: the ratio of medians, and
    /// the smallest and largest ratio over repeats. `None` if the times of one of the rows are unreliable.
    pub fn ratio(&self) -> Option<Spread> {
        let [other, base] = [self.other, self.base].map(Row::train_seconds);
        (is_sound(self.other) && is_sound(self.base)).then(|| Spread {
            median: other.median / base.median,
            min: other.min / base.max,
            max: other.max / base.min,
            count: other.count.min(base.count),
        })
    }

    /// Whether the times differ by more than noise.
    fn differs(&self) -> bool {
        times_differ(&self.other.train_seconds(), &self.base.train_seconds())
    }

    /// Returns how much longer `other` takes, in percent; `None` if the times are unreliable or do not differ
    /// beyond noise.
    fn percent_longer(&self) -> Option<Spread> {
        let longer = |ratio: f64| 100.0 * (ratio - 1.0);
        let Spread { median, min, max, count } = self.ratio().filter(|_| self.differs())?;
        Some(Spread { median: longer(median), min: longer(min), max: longer(max), count })
    }

    /// Returns two cells. The first contains the number, and links to the runs of both rows. The second
    /// contains the range over repeats; it is empty if one of the rows has a single run.
    fn cells(&self, spread: Option<Spread>, digits: usize) -> [Cell; 2] {
        let runs = || [paths(self.other), paths(self.base)].concat();
        let number = spread.map(|spread| Cell::number(spread.median, digits, runs()));
        let repeated = spread.filter(|spread| spread.count > 1);
        let range = |Spread { min, max, .. }| Cell::text(format!("{min:.digits$} … {max:.digits$}"));
        let range = repeated.map(range);
        [number, range].map(Cell::maybe)
    }
}

/// Pairs each row over mpi with the rows that differ from it only in the backend and in options of a single
/// backend. Rows of one rank are left out, because one rank does not communicate.
pub fn pairs<'r, 'a>(rows: &'r [Row<'a>]) -> Vec<Pair<'r, 'a>> {
    let of_mpi = |base: &'r Row<'a>| {
        let is_other = move |row: &&Row<'a>| {
            row.setting("backend") != "mpi" && row.equals_except(base, |name| base.is_of_backend(name))
        };
        rows.iter().filter(is_other).map(move |other| Pair { base, other })
    };
    rows.iter().filter(|row| row.setting("backend") == "mpi" && row.ranks() > 1).flat_map(of_mpi).collect()
}

/// Makes the table of `pairs`; `None` if there are no pairs. The first of the two remarks is always below the
/// table. The second is only there if `is_missing` returns true for at least one pair.
fn sheet<'r, 'a>(
    name: String,
    title: String,
    columns: Vec<Field<'_, Pair<'r, 'a>>>,
    pairs: &[Pair<'r, 'a>],
    [remark, missing]: [&str; 2],
    is_missing: impl Fn(&Pair<'r, 'a>) -> bool,
) -> Option<Sheet> {
    let missing = pairs.iter().any(is_missing).then_some(missing);
    let remarks = [remark].into_iter().chain(missing).map(Into::into);
    (!pairs.is_empty()).then(|| Sheet::from_rows(name, title, columns, pairs).with_remarks(remarks))
}

/// Makes the table of other backends' times relative to mpi's.
pub fn ratios(section: &Section, rows: &[Row<'_>]) -> Option<Sheet> {
    let varied = own_columns(rows).into_iter().filter(|name| !rows[0].is_of_backend(name));
    let own = |name: &str| setting(name, |pair: &Pair<'_, '_>| pair.base);
    let mut columns = vec![own("topology"), own("launcher")];
    columns.extend(varied.map(|name| own(&name)));
    columns.extend([
        Column::words("backend", "backend")
            .means("The transport that is compared with mpi")
            .shows(|pair: &Pair<'_, '_>| Cell::text(pair.other.setting("backend"))),
        own("oversubscribed"),
        Column::spread("its train s", "train_seconds")
            .means("Seconds of training over this backend")
            .shows(|pair: &Pair<'_, '_>| TRAIN.cell(pair.other)),
        Column::spread("mpi train s", "mpi_train_seconds")
            .means("Seconds of training over mpi")
            .shows(|pair: &Pair<'_, '_>| TRAIN.cell(pair.base)),
        Column::number("ratio", "ratio")
            .means("The backend's median divided by mpi's: above 1, mpi is faster")
            .shows(|pair: &Pair<'_, '_>| pair.cells(pair.ratio(), 2)[0].clone()),
        Column::words("from … to", "ratio_range")
            .means("The ratio of the backend's fastest repeat to mpi's slowest, and of its slowest to mpi's fastest")
            .shows(|pair: &Pair<'_, '_>| pair.cells(pair.ratio(), 2)[1].clone()),
        Column::words("differ", "differ").means("Whether the times differ by more than noise").shows(
            |pair: &Pair<'_, '_>| {
                Cell::maybe(pair.ratio().map(|_| Cell::text(if pair.differs() { "yes" } else { "no" })))
            },
        ),
    ]);
    let remarks = [
        "A ratio above 1 means that mpi is faster, if the times differ by more than noise.",
        "Rows that are too short, disturbed or unsteady (see above) have no ratio.",
    ];
    let title = format!("{}: comparison of backends by median training time", section.title);
    let name = format!("{}-ratios", section.name);
    sheet(name, title, columns, &pairs(rows), remarks, |pair| pair.ratio().is_none())
}

/// Makes the table of quantized rows, each beside the row that differs from it in quantization only.
pub fn joint(section: &Section, rows: &[Row<'_>]) -> Option<Sheet> {
    let (quantized, float): (Vec<&Row<'_>>, Vec<&Row<'_>>) = rows.iter().partition(|row| is_quantized(row));
    // Settings of quantization may differ: they have no effect on the row without quantization.
    let is_quantization = |name: &str| rows[0].part(name) == Some(Part::Quantization);
    let of_float =
        |other: &&Row<'_>| float.iter().find(|row| row.equals_except(other, is_quantization)).copied();
    let pairs: Vec<Pair<'_, '_>> =
        quantized.into_iter().filter_map(|other| Some(Pair { base: of_float(&other)?, other })).collect();
    let shown: Vec<&Row<'_>> = pairs.iter().map(|pair| pair.other).collect();
    shown.first()?;
    // Makes the column of a measurement, either of the row with quantization or of the row without.
    let column = |key: &str, title: &'static str, quantized: bool, hide_order: u8| {
        let measured = measure(key, title, hide_order);
        let (prefix, with) = if quantized { ("quantized_", "with") } else { ("", "without") };
        let titled = Column::spread(title, &format!("{prefix}{key}")).hide_order(hide_order);
        let defined = titled.means(&format!("{}; {with} quantization", measured.definition));
        defined
            .shows(move |pair: &Pair<'_, '_>| measured.cell(if quantized { pair.other } else { pair.base }))
    };
    let int8 = measure("int8_test_accuracy", "int8 acc %", 0);
    let mut columns = labels(&shown, |pair: &Pair<'_, '_>| pair.other);
    columns.extend([
        column("train_seconds", "train s", false, 0),
        column("train_seconds", "quant. s", true, 0),
        Column::number("% longer", "percent_longer")
            .means("By how much the median of train s is longer with quantization")
            .shows(|pair: &Pair<'_, '_>| pair.cells(pair.percent_longer(), 1)[0].clone()),
        Column::number("from … to", "percent_longer_range")
            .means("% longer if the fastest repeat with quantization is compared with the slowest without, and the slowest with the fastest")
            .hide_order(4)
            .shows(|pair: &Pair<'_, '_>| pair.cells(pair.percent_longer(), 1)[1].clone()),
        column("train_accuracy", "train acc %", false, 2),
        column("train_accuracy", "quant. acc %", true, 2),
        column("test_accuracy", "test acc %", false, 0),
        column("test_accuracy", "float acc %", true, 3),
        int8.column().shows(move |pair: &Pair<'_, '_>| int8.cell(pair.other)),
    ]);
    let remarks = [
        "Each row compares two trainings that differ only in quantization, by their median train s.",
        "% longer is missing if a row is too short, disturbed or unsteady (see above), or if the times do not differ by more \
         than noise.",
    ];
    let title = format!("{}: {}", section.title, titled("with and without quantization", &shown));
    let name = format!("{}-quantization", section.name);
    sheet(name, title, columns, &pairs, remarks, |pair| pair.percent_longer().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::group;
    use crate::runs::Run;
    use crate::sheet::CellValue;
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
        assert_eq!(short.rows[0].iter().rev().nth(2).unwrap().value, CellValue::Nothing);
        assert!(short.remarks[1].contains("too short, disturbed or unsteady"), "{:?}", short.remarks);
    }

    #[test]
    fn the_range_is_that_of_extreme_repeats() {
        let timed = |seconds: f64, gloo: bool| {
            run((1, 2), if gloo { &["--backend", "gloo"][..] } else { &[] }, seconds)
        };
        let found =
            sheet(vec![timed(4.0, false), timed(5.0, false), timed(6.0, true), timed(7.0, true)]).unwrap();
        let shown: Vec<String> = found.rows[0][4..].iter().map(Cell::shown).collect();
        assert_eq!(shown, ["6.50 (6.00–7.00)", "4.50 (4.00–5.00)", "1.44", "1.20 … 1.75", "yes"]);
        let close = sheet(vec![timed(4.0, false), timed(4.1, true)]).unwrap();
        assert_eq!(close.rows[0].last().unwrap().shown(), "no", "single runs differ by 2.5%");
    }
}
