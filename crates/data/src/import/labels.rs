//! Converts the labels that a source contains to classes.
//!
//! All kinds of sources use the same rules. If a source lists the names of its classes, a label is one of
//! these names or its index in the list. If there is no list, each different label is a class. Classes that
//! are not from a list are sorted by number if all are whole numbers, and by name otherwise.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Display;
use std::hash::Hash;
use std::path::Path;

use clap::ValueEnum;
use run_record::count;

use crate::DataError;
use crate::import::ImportArgs;
use crate::import::tables::missing::is_missing;
use crate::quote::{quoted, short};
use crate::source::MOST_CLASSES;

/// Label that stands for "no label" in Hugging Face's columns of named classes:
/// <https://huggingface.co/docs/datasets/package_reference/main_classes#datasets.ClassLabel>.
const UNLABELLED: &str = "-1";

/// What to do with samples whose label is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum MissingLabels {
    /// The import stops at the first missing label.
    #[default]
    Error,
    /// Samples without a label are left out.
    Drop,
    /// Each word for a missing label, such as NA, becomes a class.
    Keep,
}

/// The options about labels.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LabelOptions<'a> {
    /// Name or number of the column with the labels, as given by `--label`.
    pub(crate) column: Option<&'a str>,
    pub(crate) missing: MissingLabels,
}

impl ImportArgs {
    pub(crate) fn label_options(&self) -> LabelOptions<'_> {
        LabelOptions { column: self.label.as_deref(), missing: self.missing_labels }
    }
}

/// Returns the first of `names` that equals an earlier name, or `None` if all names differ.
pub(crate) fn twin<T: Copy + Eq + Hash>(names: impl IntoIterator<Item = T>) -> Option<T> {
    let mut seen = HashSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

/// Returns the name of the class that a label stands for, or `None` if the sample must be left out.
///
/// If the label is a number, `number` is its value. If the label is a word, `number` is `None`. For an
/// integer, `None` is allowed too, because the text of an integer is already the name of its class. Errors
/// begin with `place`, which says where the label is.
pub(crate) fn class_name(
    place: impl Display,
    label: &str,
    number: Option<f64>,
    missing: MissingLabels,
) -> Result<Option<String>, String> {
    match (missing, number) {
        (MissingLabels::Drop, _) if is_missing(label) => Ok(None),
        (MissingLabels::Keep, _) if label.is_empty() => Err(format!(
            "{place} has no class, and an empty label cannot be a class, even with --missing-labels keep: fill in the class, or \
             leave out such samples with --missing-labels drop"
        )),
        (MissingLabels::Error, _) if label.is_empty() => Err(format!(
            "{place} has no class: fill in the class, or leave out such samples with --missing-labels drop"
        )),
        (MissingLabels::Error, _) if is_missing(label) => Err(format!(
            "{place} is {label:?}, which means no class: fill in the class, leave out such samples with \
             --missing-labels drop, or make this word a class with --missing-labels keep"
        )),
        (_, Some(value)) if value.fract() == 0.0 => Ok(Some(whole(label, value))),
        // NaN gets here only with `--missing-labels keep`, and becomes the name of a class.
        (_, Some(value)) if !value.is_nan() => {
            Err(format!("{place} is {}, but a class must be a word or a whole number", short(label)))
        }
        _ => Ok(Some(label.to_owned())),
    }
}

/// Returns the number that a word stands for, or `None` if the word is not a finite number.
pub(crate) fn number_in(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Returns the class name for a label that is a whole number. It is `2` for `2.0`, `+2` and `2e0`. A label
/// with leading zeros, such as `02`, is a class of its own and keeps its spelling.
fn whole(label: &str, value: f64) -> String {
    let is_respelled = label.contains(['.', ',', 'e', 'E', '+']) || value == 0.0 && label.starts_with('-');
    // At 1e15 and above, the digits of the f64 may differ from the digits of the label. Adding 0 turns -0
    // into 0.
    if is_respelled && value.abs() < 1e15 { format!("{}", value + 0.0) } else { label.to_owned() }
}

/// Returns the index of the class that a label stands for. A label is either an index of `names` or a name.
/// Returns `None` for any other label.
fn index_in(names: &[String], label: &str) -> Option<usize> {
    let place = label.parse().ok().filter(|place: &usize| *place < names.len());
    place.or_else(|| names.iter().position(|name| name == label))
}

/// The labels of a source and their numbers. If the source lists names of classes, the numbers follow the
/// list. Otherwise, labels are numbered in the order in which they are found.
pub(crate) struct Labels {
    known: Known,
    missing: MissingLabels,
    /// Number of samples that were left out because they have no label.
    dropped: usize,
}

enum Known {
    /// The number of each label. Labels are numbered in the order in which they are found.
    Found(BTreeMap<String, u32>),
    /// Names of the classes, as the source lists them. The number of a label is the index of its class.
    Named(Vec<String>),
}

impl Labels {
    /// Starts without any labels. `names` are the names of the classes, if the source lists them.
    pub(crate) fn with_names(names: Option<Vec<String>>, missing: MissingLabels) -> Self {
        let named = names.filter(|names| !names.is_empty()).map(Known::Named);
        Self { known: named.unwrap_or(Known::Found(BTreeMap::new())), missing, dropped: 0 }
    }

    /// Returns the number of a label, or `None` if the sample must be left out. A new label gets the next
    /// number.
    ///
    /// If the label is a number, `value` is its value. If the label is a word, `value` is `None`. For an
    /// integer, `None` is allowed too, because the text of an integer is already the name of its class.
    /// Errors begin with `place`, which says where the label is.
    pub(crate) fn number(
        &mut self,
        place: impl Display,
        label: &str,
        value: Option<f64>,
    ) -> Result<Option<u32>, String> {
        let is_named = matches!(self.known, Known::Named(_));
        let label =
            if is_named && label == UNLABELLED && self.missing != MissingLabels::Keep { "" } else { label };
        let Some(name) = class_name(&place, label, value, self.missing)? else {
            self.dropped += 1;
            return Ok(None);
        };
        match &mut self.known {
            Known::Named(names) => index_in(names, &name).map(|place| Some(place as u32)).ok_or_else(|| {
                let (last, all) = (names.len() - 1, count(names.len(), "class name"));
                let what = match number_in(&name) {
                    Some(_) => format!("outside 0 to {last}"),
                    None => "not a class name".into(),
                };
                format!("{place} is {}, which is {what}: the source has {all}", short(&name))
            }),
            Known::Found(labels) => {
                let next = labels.len() as u32;
                match *labels.entry(name).or_insert(next) {
                    number if (number as usize) < MOST_CLASSES => Ok(Some(number)),
                    _ => Err(format!(
                        "there are more than {MOST_CLASSES} classes: choose the column of the class with --label"
                    )),
                }
            }
        }
    }

    /// Returns the name of the class that a label stands for, even if no sample so far has the label. Returns
    /// `None` if the label does not stand for a class.
    pub(crate) fn name(&self, label: &str, value: Option<f64>) -> Option<String> {
        match &self.known {
            Known::Found(_) => class_name("", label, value, self.missing).ok().flatten(),
            Known::Named(names) => {
                let name = class_name("", label, value, self.missing).ok().flatten()?;
                Some(names[index_in(names, &name)?].clone())
            }
        }
    }

    /// Returns the names of the classes that have these label numbers.
    pub(crate) fn names(&self, numbers: impl IntoIterator<Item = u32>) -> BTreeSet<String> {
        let numbers: BTreeSet<u32> = numbers.into_iter().collect();
        match &self.known {
            Known::Found(found) => found
                .iter()
                .filter(|(_, number)| numbers.contains(number))
                .map(|(name, _)| name.clone())
                .collect(),
            Known::Named(names) => numbers.into_iter().map(|number| names[number as usize].clone()).collect(),
        }
    }

    /// Keeps only the labels with these numbers. Callers leave out labels that occur only in splits that are
    /// not used. If the source lists names of classes, all names are kept.
    pub(crate) fn retain(&mut self, numbers: impl IntoIterator<Item = u32>) {
        let numbers: BTreeSet<u32> = numbers.into_iter().collect();
        if let Known::Found(found) = &mut self.known {
            found.retain(|_, number| numbers.contains(number));
        }
    }

    /// Returns the sorted names of the classes, and the class of each label number. Names are sorted by
    /// number if all are whole numbers, and as text otherwise. The names that a source lists keep their
    /// order.
    pub(crate) fn classes(self, source: &Path) -> Result<(Vec<String>, Vec<u16>), DataError> {
        if self.dropped > 0 {
            log::info!("left out: {} without a class", count(self.dropped, "sample"));
        }
        match self.known {
            Known::Named(names) => {
                if names.len() > MOST_CLASSES {
                    bail!(source, "has {} classes, but at most {MOST_CLASSES} are supported", names.len());
                }
                if let Some(name) = twin(&names) {
                    bail!(source, "gives two classes the name {}: rename one", quoted(name));
                }
                let classes = (0..names.len()).map(|class| class as u16).collect();
                Ok((names, classes))
            }
            Known::Found(labels) => {
                let mut labels: Vec<(String, u32)> = labels.into_iter().collect();
                if labels.iter().all(|(name, _)| name.parse::<i64>().is_ok()) {
                    labels.sort_by_key(|(name, _)| name.parse::<i64>().unwrap_or_default());
                }
                let last = labels.iter().map(|(_, found)| *found as usize).max();
                let mut class = vec![0; last.map_or(0, |last| last + 1)];
                labels.iter().enumerate().for_each(|(at, (_, found))| class[*found as usize] = at as u16);
                Ok((labels.into_iter().map(|(name, _)| name).collect(), class))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::names_all;

    #[test]
    fn whole_numbers_have_one_name_however_they_are_written() {
        let name = |label: &str| {
            class_name("column y", label, label.parse().ok(), MissingLabels::Error).map(Option::unwrap)
        };
        for (label, expected) in [
            ("10.0", "10"),
            ("+1", "1"),
            ("+1.0", "1"),
            ("1e0", "1"),
            ("1E2", "100"),
            ("-0", "0"),
            ("-1", "-1"),
            ("01", "01"),
            ("9007199254740993", "9007199254740993"),
            ("C++", "C++"),
            ("Na", "Na"),
        ] {
            assert_eq!(name(label).as_deref(), Ok(expected));
        }
        let kept = class_name("column y", "NaN", Some(f64::NAN), MissingLabels::Keep);
        assert_eq!(kept, Ok(Some("NaN".to_owned())));
        for label in ["0.5", "1e-3", "inf"] {
            let message = name(label).unwrap_err();
            assert!(names_all(&message, &format!("column y | {label} | whole number")), "{message}");
        }
    }
}
