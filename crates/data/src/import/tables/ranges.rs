//! Finds features from which a network can learn little: constant features, features with too many digits for
//! f32, and row numbers.

use run_record::count;

use crate::quote::listed;

/// If there are fewer f32 values than this between the lowest and the highest value of a feature, a warning
/// is logged, because different values of the feature may become equal as f32.
const FEW: f64 = 1000.0;
/// 2^53: above it, f64 cannot represent every whole number.
const INEXACT: f64 = (1u64 << 53) as f64;

/// A feature whose values count up by 1 is taken for a row number if it has at least this many values. Fewer
/// values may count up by chance.
const COUNTED: usize = 20;

/// Ranges of the values of all features.
pub(crate) struct FeatureRanges(Vec<FeatureRange>);

#[derive(Clone, Default)]
struct FeatureRange {
    /// Bytes of the first value in the source.
    first: Option<Box<[u8]>>,
    low: f64,
    high: f64,
    /// Whether the bytes of some value differ from the bytes of the first value. Numbers that differ in the
    /// source may be equal as f64.
    differ: bool,
    last: f64,
    /// Number of values.
    values: usize,
    /// Number of values that are not 1 above the value before them.
    breaks: usize,
}

#[derive(PartialEq)]
enum Problem {
    Constant,
    /// All values are equal as f32.
    OneInF32,
    FewInF32,
    /// The feature is the number of the row.
    Counts,
}

impl FeatureRange {
    fn problem(&self) -> Option<Problem> {
        let &Self { low, high, differ, .. } = self;
        let largest = low.abs().max(high.abs());
        let step = f64::from((largest as f32).next_up() - largest as f32);
        if self.first.is_none() {
            None
        } else if low == high && !(differ && largest >= INEXACT) {
            Some(Problem::Constant)
        } else if low as f32 == high as f32 {
            Some(Problem::OneInF32)
        } else if high - low < FEW * step {
            Some(Problem::FewInF32)
        } else if self.values >= COUNTED && self.breaks <= 1 {
            // One break is allowed, because the count may start again in the test table.
            Some(Problem::Counts)
        } else {
            None
        }
    }
}

impl FeatureRanges {
    pub(crate) fn for_features(features: usize) -> Self {
        Self(vec![FeatureRange::default(); features])
    }

    /// Adds a value of a feature. `bytes` are the bytes of the value in the source: text, or a number of an
    /// array.
    pub(crate) fn add(&mut self, feature: usize, value: f64, bytes: &[u8]) {
        let range = &mut self.0[feature];
        match &range.first {
            None => {
                *range = FeatureRange {
                    first: Some(bytes.into()),
                    low: value,
                    high: value,
                    ..FeatureRange::default()
                }
            }
            Some(first) => {
                range.differ = range.differ || **first != *bytes;
                (range.low, range.high) = (range.low.min(value), range.high.max(value));
                range.breaks += usize::from(value != range.last + 1.0);
            }
        }
        range.values += 1;
        range.last = value;
    }

    /// Describes the problems, in one line for each kind. `name` returns the name of a feature, and `remedy`
    /// says how to leave columns out.
    pub(crate) fn problems(&self, name: impl Fn(usize) -> String, remedy: &str) -> Vec<String> {
        let line = |problem: Problem| {
            let found = (0..self.0.len()).filter(|&at| self.0[at].problem().as_ref() == Some(&problem));
            let found: Vec<usize> = found.collect();
            let [first, others @ ..] = &found[..] else { return None };
            let (FeatureRange { low, high, .. }, is_one) = (&self.0[*first], others.is_empty());
            let columns = if is_one { "column" } else { "columns" };
            let names = listed(found.iter().map(|&at| name(at)));
            let which = if is_one { String::new() } else { format!("in column {}, ", name(*first)) };
            Some(match problem {
                Problem::Constant => format!(
                    "{} {} constant, so nothing can be learned from {}: {columns} {names}; {remedy}",
                    count(found.len(), "feature"),
                    if is_one { "is" } else { "are" },
                    if is_one { "it" } else { "them" }
                ),
                Problem::OneInF32 => format!(
                    "{columns} {names}: {which}all values from {low} to {high} are the same number in f32: \
                     subtract a constant before the import, or {remedy}"
                ),
                Problem::FewInF32 => format!(
                    "{columns} {names}: {which}f32 has fewer than {FEW} numbers between {low} and {high}, so \
                     different values may become equal: subtract a constant before the import, or {remedy}"
                ),
                Problem::Counts => format!(
                    "{columns} {names} {} the numbers of the rows: a network may learn the order of the rows; {remedy}",
                    if is_one { "contains" } else { "contain" }
                ),
            })
        };
        let kinds = [Problem::Constant, Problem::OneInF32, Problem::FewInF32, Problem::Counts];
        kinds.into_iter().filter_map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::names_all;

    #[test]
    fn features_that_tell_nothing_are_named_with_the_reason() {
        let problems = |columns: &[&[&str]]| {
            let mut ranges = FeatureRanges::for_features(columns.len());
            for (feature, cells) in columns.iter().enumerate() {
                cells.iter().for_each(|cell| ranges.add(feature, cell.parse().unwrap(), cell.as_bytes()));
            }
            ranges.problems(|feature| format!("f{feature}"), "drop it")
        };
        let few = ["1700000000", "1700005350"];
        // These two numbers are equal as f64.
        let one = ["1700000000000000001", "1700000000000000002"];
        assert!(problems(&[&["0", "1"], &["-1e-30", "1e-30"], &["5", "900"]]).is_empty());
        let count = |rows: &[i32]| -> Vec<String> { rows.iter().map(i32::to_string).collect() };
        let cells = |rows: &[i32]| problems(&[&count(rows).iter().map(String::as_str).collect::<Vec<_>>()]);
        let numbers: Vec<i32> = (1..=30).collect();
        let restarted: Vec<i32> = (1..=30).chain(1..=10).collect();
        for rows in [&numbers, &restarted] {
            let found = cells(rows);
            let [one] = &found[..] else { panic!("{found:?}") };
            assert!(names_all(one, "column f0 | order of the rows | drop it"), "{one}");
        }
        let of_days: Vec<i32> = (0..60).map(|row| row % 20).collect();
        for rows in [&numbers[..19], &of_days, &numbers.iter().map(|row| 2 * row).collect::<Vec<_>>()] {
            assert!(cells(rows).is_empty(), "{rows:?}");
        }
        for (columns, expected) in [
            (&[&["5", "5.0"][..]][..], "1 feature | constant | column f0 | drop it"),
            (&[&["5", "5"], &["1", "2"], &["0", "0"]], "2 features | constant | columns f0, f2 | drop it"),
            (&[&one], "column f0: | f32 | all values | from 1700000000000000000 to 1700000000000000000"),
            (&[&["16777217", "16777216"]], "column f0: | f32 | all values | from 16777216 to 16777217"),
            (&[&few], "column f0: | f32 | fewer than 1000 | 1700000000 and 1700005350"),
            (&[&few, &few], "columns f0, f1: | column f0, | fewer than 1000 | 1700000000 and 1700005350"),
        ] {
            let found = problems(columns);
            let [one] = &found[..] else { panic!("{found:?}") };
            assert!(names_all(one, expected), "{one}");
        }
    }
}
