//! Labels as they are found, and the classes that they become.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::path::Path;

use crate::ImportError;
use crate::writer::MOST_CLASSES;

/// The first of `names` that is the same as one before it.
pub(crate) fn twin<T: Copy + Eq + Hash>(names: impl IntoIterator<Item = T>) -> Option<T> {
    let mut seen = HashSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

/// Labels by the order in which they were found, or those that a source names.
pub(crate) enum Labels {
    /// The number of each label.
    Found(BTreeMap<String, u32>),
    /// Their names; a label is the place of its name.
    Named(Vec<String>),
}

impl Labels {
    /// The labels of a source that may have their names.
    pub(crate) fn of(names: Option<Vec<String>>) -> Self {
        let named = names.filter(|names| !names.is_empty()).map(Self::Named);
        named.unwrap_or(Self::Found(BTreeMap::new()))
    }

    /// The number of a label, with its value if it is a number.
    pub(crate) fn number(&mut self, name: &str, value: Option<f64>) -> Result<u32, String> {
        let name = match value {
            Some(value) if value.fract() != 0.0 => {
                return Err(format!("the class is {name}: classes are words or whole numbers"));
            }
            // Whole numbers that were stored as floats; words such as 01 are not.
            Some(value) if value.abs() < 1e15 && name.contains(['.', ',', 'e', 'E']) => format!("{value}"),
            _ => name.to_owned(),
        };
        match self {
            Self::Named(names) => {
                let place = name.parse().ok().filter(|place: &usize| *place < names.len());
                place.map(|place| place as u32).ok_or_else(|| {
                    format!("the class is {name}, and the source names classes 0 to {}", names.len() - 1)
                })
            }
            Self::Found(labels) => {
                let next = labels.len() as u32;
                match *labels.entry(name).or_insert(next) {
                    number if (number as usize) < MOST_CLASSES => Ok(number),
                    _ => Err(format!("there are more than {MOST_CLASSES} classes")),
                }
            }
        }
    }

    /// The names of the classes, whole numbers in their order and words in that of their letters, and the class of
    /// each label.
    pub(crate) fn classes(self, source: &Path) -> Result<(Vec<String>, Vec<u16>), ImportError> {
        match self {
            Self::Named(names) => {
                if names.len() > MOST_CLASSES {
                    bail!(source, "has {} classes, and at most {MOST_CLASSES} are supported", names.len());
                }
                if let Some(name) = twin(&names) {
                    bail!(source, "names two classes {name:?}: rename one");
                }
                let classes = (0..names.len()).map(|class| class as u16).collect();
                Ok((names, classes))
            }
            Self::Found(labels) => {
                let mut labels: Vec<(String, u32)> = labels.into_iter().collect();
                if labels.iter().all(|(name, _)| name.parse::<i64>().is_ok()) {
                    labels.sort_by_key(|(name, _)| name.parse::<i64>().unwrap_or_default());
                }
                let mut class = vec![0; labels.len()];
                labels.iter().enumerate().for_each(|(at, (_, found))| class[*found as usize] = at as u16);
                Ok((labels.into_iter().map(|(name, _)| name).collect(), class))
            }
        }
    }
}
