//! Chooses the test split, with one rule for folders, tables and arrays.

use std::collections::BTreeSet;
use std::path::Path;

use crate::DataError;
use crate::import::same_class::key;
use crate::import::split;
use crate::quote::{listed, short};

/// Chooses the test split. `names` are the names of the splits of `source` other than the training split.
/// Splits that are preferred for the test come first.
///
/// If `wanted` is given, the test split is the split with this name, and a missing split is an error. If
/// `wanted` is `None`, the test split is the first split that shares a class with `train`, the classes of the
/// training split. If no split shares a class, it is the first split that has any class.
/// [`same_class`](crate::import::same_class) then rejects this split, with a message that lists the classes
/// of both splits.
///
/// Returns the index of the test split in `names`, or `None` if no split has a class.
///
/// `classes` reads the classes of the split with a given index. It is not called if `wanted` is given.
/// Otherwise it is called for one split after the other until a split shares a class with `train`.
pub(crate) fn choose(
    source: &Path,
    wanted: Option<&str>,
    train: &BTreeSet<String>,
    names: &[String],
    mut classes: impl FnMut(usize) -> Result<BTreeSet<String>, DataError>,
) -> Result<Option<usize>, DataError> {
    let known: BTreeSet<String> = train.iter().map(|class| key(class)).collect();
    let (mut found, mut chosen) = (Vec::new(), None);
    if let Some(wanted) = wanted {
        chosen = Some(place(wanted, names).ok_or_else(|| {
            let source = source.display();
            let problem = match names {
                [] => format!("{source} has only the training split: leave the option out"),
                names => format!("is not a split of {source}, which has {}", listed(names)),
            };
            DataError::option("test-split", short(wanted), problem)
        })?);
    }
    while chosen.is_none() && found.len() < names.len() {
        let of_split = classes(found.len())?;
        chosen = of_split.iter().any(|class| known.contains(&key(class))).then_some(found.len());
        found.push(of_split);
    }
    let is_like = chosen.is_some();
    let chosen = chosen.or_else(|| found.iter().position(|of_split| !of_split.is_empty()));
    if let Some(chosen) = chosen {
        log::info!("the test split is {}", names[chosen]);
    }
    for (at, name) in names.iter().enumerate().filter(|(at, _)| is_like && Some(*at) != chosen) {
        match found.get(at) {
            None => {
                log::warn!(
                    "{name} is not used: to test on it, pass --test-split {}",
                    run_record::quoted(name)
                )
            }
            Some(classes) if classes.is_empty() => {
                log::warn!("{name} is not used: it has no samples with a class");
            }
            Some(classes) => log::warn!(
                "{name} is not used: it shares no class with the training split (it has {}; the training split has \
                 {})",
                listed(classes),
                listed(train)
            ),
        }
    }
    Ok(chosen)
}

/// Returns the index of the split that `wanted` names: the split with this name or, if there is none, the
/// only split of the kind that the name stands for, such as `test_set` for `test`.
fn place(wanted: &str, names: &[String]) -> Option<usize> {
    let of_kind = || {
        let kind = split::of_name(wanted)?;
        let mut places = (0..names.len()).filter(|&at| split::in_name(&names[at]) == Some(kind));
        places.next().filter(|_| places.next().is_none())
    };
    names.iter().position(|name| name == wanted).or_else(of_kind)
}
