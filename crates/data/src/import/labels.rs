//! Labels as they are found, and the classes that they become.

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

/// The label of samples without one in Hugging Face's columns of classes with names:
/// <https://huggingface.co/docs/datasets/package_reference/main_classes#datasets.ClassLabel>.
const UNLABELLED: &str = "-1";

/// What to do with samples whose label is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum MissingLabels {
    /// The import stops at the first.
    #[default]
    Error,
    /// They are left out.
    Drop,
    /// They are of a class with the name that the label has, such as NA.
    Keep,
}

/// Where a source has its labels, as options say.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LabelOptions<'a> {
    /// The column.
    pub(crate) column: Option<&'a str>,
    pub(crate) missing: MissingLabels,
}

impl ImportArgs {
    pub(crate) fn label_options(&self) -> LabelOptions<'_> {
        LabelOptions { column: self.label.as_deref(), missing: self.missing_labels }
    }
}

/// The first of `names` that is the same as one before it.
pub(crate) fn twin<T: Copy + Eq + Hash>(names: impl IntoIterator<Item = T>) -> Option<T> {
    let mut seen = HashSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

/// The class that a label names; `None` if its sample is to be left out. `number` is the label as a number if it is one,
/// and `place` is where it stands, for an error.
pub(crate) fn class_name(
    place: impl Display,
    label: &str,
    number: Option<f64>,
    missing: MissingLabels,
) -> Result<Option<String>, String> {
    match (missing, number) {
        (MissingLabels::Drop, _) if is_missing(label) => Ok(None),
        (MissingLabels::Error | MissingLabels::Keep, _) if label.is_empty() => Err(format!(
            "{place} has no class: fill it in, or leave such samples out with --missing-labels drop"
        )),
        (MissingLabels::Error, _) if is_missing(label) => Err(format!(
            "{place} has no class ({label:?}): fill it in, leave such samples out with --missing-labels drop, or make a \
             class of them with --missing-labels keep"
        )),
        (_, Some(value)) if value.fract() == 0.0 => Ok(Some(whole(label, value))),
        // NaN that is kept is a word.
        (_, Some(value)) if !value.is_nan() => {
            Err(format!("{place}: the class is {}: classes are words or whole numbers", short(label)))
        }
        _ => Ok(Some(label.to_owned())),
    }
}

/// The number that a word is, if it is finite: infinity is a word.
pub(crate) fn number_in(word: &str) -> Option<f64> {
    word.parse().ok().filter(|number: &f64| number.is_finite())
}

/// The name of a class that is a whole number: 2 for 2.0, +2 and 2e0. Words such as 02 are other classes.
fn whole(label: &str, value: f64) -> String {
    let is_respelled = label.contains(['.', ',', 'e', 'E', '+']) || value == 0.0 && label.starts_with('-');
    // Larger numbers have other digits as f64. The sum of -0 and 0 is 0.
    if is_respelled && value.abs() < 1e15 { format!("{}", value + 0.0) } else { label.to_owned() }
}

/// The place that a label has or names in the names of the classes.
fn index_in(names: &[String], label: &str) -> Option<usize> {
    let place = label.parse().ok().filter(|place: &usize| *place < names.len());
    place.or_else(|| names.iter().position(|name| name == label))
}

/// Labels by the order in which they were found, or those that a source names.
pub(crate) struct Labels {
    known: Known,
    missing: MissingLabels,
    /// Samples that were left out.
    dropped: usize,
}

enum Known {
    /// The number of each label.
    Found(BTreeMap<String, u32>),
    /// Their names; a label is the place of its name.
    Named(Vec<String>),
}

impl Labels {
    /// The labels of a source that may have their names.
    pub(crate) fn with_names(names: Option<Vec<String>>, missing: MissingLabels) -> Self {
        let named = names.filter(|names| !names.is_empty()).map(Known::Named);
        Self { known: named.unwrap_or(Known::Found(BTreeMap::new())), missing, dropped: 0 }
    }

    /// The number of a label, with its value if it is a number; none if its sample is to be left out. `place` is where
    /// the label stands, for an error.
    pub(crate) fn number(
        &mut self,
        place: impl Display,
        label: &str,
        value: Option<f64>,
    ) -> Result<Option<u32>, String> {
        let is_named = matches!(self.known, Known::Named(_));
        let label =
            if is_named && label == UNLABELLED && self.missing != MissingLabels::Keep { "" } else { label };
        let Some(name) = class_name(place, label, value, self.missing)? else {
            self.dropped += 1;
            return Ok(None);
        };
        match &mut self.known {
            Known::Named(names) => index_in(names, &name).map(|place| Some(place as u32)).ok_or_else(|| {
                let last = names.len() - 1;
                format!("the class is {}, and the source names classes 0 to {last}", short(&name))
            }),
            Known::Found(labels) => {
                let next = labels.len() as u32;
                match *labels.entry(name).or_insert(next) {
                    number if (number as usize) < MOST_CLASSES => Ok(Some(number)),
                    _ => Err(format!("there are more than {MOST_CLASSES} classes")),
                }
            }
        }
    }

    /// The class that a label names, whether another sample has it or not; `None` if the label names no class.
    pub(crate) fn name(&self, label: &str, value: Option<f64>) -> Option<String> {
        match &self.known {
            Known::Found(_) => class_name("", label, value, self.missing).ok().flatten(),
            Known::Named(names) => {
                let name = class_name("", label, value, self.missing).ok().flatten()?;
                Some(names[index_in(names, &name)?].clone())
            }
        }
    }

    /// The names of the classes with these numbers.
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

    /// Forgets all labels but those with these numbers: the others are of splits that are not used.
    pub(crate) fn retain(&mut self, numbers: impl IntoIterator<Item = u32>) {
        let numbers: BTreeSet<u32> = numbers.into_iter().collect();
        if let Known::Found(found) = &mut self.known {
            found.retain(|_, number| numbers.contains(number));
        }
    }

    /// The names of the classes, whole numbers in their order and words in that of their letters, and the class of
    /// each label.
    pub(crate) fn classes(self, source: &Path) -> Result<(Vec<String>, Vec<u16>), DataError> {
        if self.dropped > 0 {
            log::info!("left out: {} without a class", count(self.dropped, "sample"));
        }
        match self.known {
            Known::Named(names) => {
                if names.len() > MOST_CLASSES {
                    bail!(source, "has {} classes, and at most {MOST_CLASSES} are supported", names.len());
                }
                if let Some(name) = twin(&names) {
                    bail!(source, "names two classes {}: rename one", quoted(name));
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
            assert!(message.contains(&format!("column y: the class is {label}: ")), "{message}");
        }
    }
}
