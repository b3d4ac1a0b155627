//! The splits of pictures in folders: which folder is for training, and which for the test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::folder::{
    Classes, Found, LeftOut, classes, collect, holds_pictures, inside, is_picture, loops, name, test_of,
};
use crate::labels::LabelOptions;
use crate::no_data_set::unclassed;
use crate::quote::{listed, short};
use crate::same_class::key;
use crate::split::{self, Split};
use crate::{ImportError, inner_folders, metadata};

/// A folder whose name is one of a split, or that is chosen as the test split.
struct Side {
    name: String,
    split: Option<Split>,
    /// The folder with its classes.
    root: PathBuf,
    holds: Holds,
}

/// What there is in a split.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// Folders, or a file that names the classes of pictures.
    Classes,
    /// Pictures alone.
    Pictures(usize),
    Nothing,
}

impl Side {
    fn open(source: &Path, folder: &Path, split: Option<Split>) -> Result<Self, ImportError> {
        let root = root(folder)?;
        let (folders, files) = inside(&root)?;
        let has_metadata = [source, &root].iter().any(|folder| metadata::file(folder).is_some());
        let holds = match files.iter().filter(|file| is_picture(file)).count() {
            _ if has_metadata || !folders.is_empty() => Holds::Classes,
            0 => Holds::Nothing,
            pictures => Holds::Pictures(pictures),
        };
        Ok(Self { name: name(folder), split, root, holds })
    }

    fn is(&self, split: Split) -> bool {
        self.split == Some(split)
    }
}

/// The folder of a split's classes. Archives repeat the split's name, as in `seg_train/seg_train/CLASS`, and some
/// tools have `train/images/CLASS`.
fn root(split: &Path) -> Result<PathBuf, ImportError> {
    let mut root = split.to_owned();
    loop {
        let (folders, files) = inside(&root)?;
        let [only] = &folders[..] else { return Ok(root) };
        if metadata::file(&root).is_some() || files.iter().any(|file| is_picture(file)) {
            return Ok(root);
        }
        let is_same = name(only).eq_ignore_ascii_case(&name(split));
        let has_classes = split::is_no_class(&name(only)) && !inside(only)?.0.is_empty();
        if !is_same && !has_classes {
            return Ok(root);
        }
        root.clone_from(only);
    }
}

/// Finds the pictures below `source`; `test_split` names the folder of the test split, where there are several, and
/// `label` the column of their classes in `metadata.csv`.
pub(crate) fn find(
    source: &Path,
    test_split: Option<&str>,
    label: LabelOptions<'_>,
) -> Result<Found, ImportError> {
    let (folders, _) = inside(source)?;
    let names: Vec<String> = folders.iter().map(|folder| name(folder)).collect();
    let (mut sides, mut others) = (Vec::new(), Vec::new());
    for (folder, split) in folders.iter().zip(split::of_all(&names)) {
        if split.is_some() || test_split == Some(&name(folder)) {
            sides.push(Side::open(source, folder, split)?);
        } else {
            others.push(folder);
        }
    }
    // The shortest name of a split is the plainest: train is before training_set.
    sides.sort_by_key(|side| (side.split.is_none(), side.split, side.name.len(), side.name.clone()));
    let mut left_out = LeftOut::new(loops(source)?);
    let is_train = |side: &Side| side.is(Split::Train) && side.holds == Holds::Classes;
    let Some(train) = sides.iter().position(is_train).map(|at| sides.remove(at)) else {
        check_no_split(source, &sides, &others, test_split)?;
        let found = classes(source, source, label, &mut left_out)?;
        check_names(source, &found)?;
        check_inner(source, &found)?;
        left_out.log(source);
        return collect(source, found, None);
    };
    let found = classes(source, &train.root, label, &mut left_out)?;
    check_names(&train.root, &found)?;
    check_inner(&train.root, &found)?;
    let (second, sides): (Vec<Side>, Vec<Side>) =
        sides.into_iter().partition(|side| side.is(Split::Train) && test_split != Some(&side.name));
    let test = match test_split {
        Some(_) => {
            let sides = sides.into_iter().map(|side| (side.name, side.root)).collect();
            let root = test_of(source, test_split, sides)?;
            root.map(|root| classes(source, &root, label, &mut left_out)).transpose()?
        }
        None => choose(source, &train.name, &found, sides, label, &mut left_out)?,
    };
    for unused in
        second.into_iter().map(|side| side.name).chain(others.into_iter().map(|folder| name(folder)))
    {
        log::warn!("{unused} is not used: it is beside {}", train.name);
    }
    left_out.log(source);
    collect(source, found, test)
}

/// The test split among `sides`, in this order: the first with a class of the training split, or else the first.
fn choose(
    source: &Path,
    train_name: &str,
    train: &Classes,
    sides: Vec<Side>,
    label: LabelOptions<'_>,
    left_out: &mut LeftOut,
) -> Result<Option<Classes>, ImportError> {
    let known: BTreeSet<String> = train.full().into_iter().map(key).collect();
    let (mut chosen, mut unlike) = (None, Vec::new());
    for side in sides {
        if let Holds::Pictures(number) = side.holds {
            log::warn!(
                "{} is not used: {} in no class's folder (predict names the classes of pictures)",
                side.name,
                if number == 1 { "its picture is".into() } else { format!("its {number} pictures are") }
            );
            continue;
        }
        if chosen.is_some() && side.holds == Holds::Classes {
            log::warn!("{0} is not used: --test-split {0} tests on it", side.name);
            continue;
        }
        let found = match side.holds {
            Holds::Nothing => Classes::default(),
            _ => classes(source, &side.root, label, left_out)?,
        };
        let full = found.full();
        if full.is_empty() {
            if holds_pictures(&side.root) {
                log::warn!("{} is not used: no picture in it has a class", side.name);
            } else {
                log::warn!("{} has no pictures", side.name);
            }
        } else if full.iter().any(|class| known.contains(&key(class))) {
            log::info!("the test split is {}", side.name);
            chosen = Some(found);
        } else {
            unlike.push((side.name, found));
        }
    }
    if chosen.is_none() {
        // The classes of both are named where those of all kinds of sources are checked.
        let first = unlike.into_iter().next();
        return Ok(first.inspect(|(name, _)| log::info!("the test split is {name}")).map(|(_, found)| found));
    }
    for (name, found) in unlike {
        log::warn!(
            "{name} is not used: it has no class of {train_name} ({name} has {}; {train_name} has {})",
            listed(found.full()),
            listed(train.full())
        );
    }
    Ok(chosen)
}

/// Checks that a source without a training split has classes, and no splits without classes.
fn check_no_split(
    source: &Path,
    sides: &[Side],
    others: &[&PathBuf],
    test_split: Option<&str>,
) -> Result<(), ImportError> {
    let with_classes = sides.iter().find(|side| side.holds == Holds::Classes);
    let train = sides.iter().find(|side| side.is(Split::Train));
    let is_alone = sides.len() + others.len() == 1;
    // A folder of pictures beside those of classes is a class, whatever its name.
    let is_class = |folder: &&&PathBuf| !split::is_no_class(&name(folder)) && holds_pictures(folder);
    let are_splits = train.is_some() && sides.iter().any(|side| !side.is(Split::Train));
    if with_classes.is_none() && !are_splits && others.iter().any(|folder| is_class(&folder)) {
        return check_no_test_split(source, test_split);
    }
    match (train, with_classes) {
        (Some(train), _) => match train.holds {
            Holds::Pictures(_) => Err(unclassed(&train.root)?),
            _ if sides.iter().any(|side| side.holds != Holds::Nothing) => {
                bail!(&train.root, "has no pictures, and is the training split")
            }
            _ => check_no_test_split(source, test_split),
        },
        (None, Some(side)) if !is_alone => bail!(
            source,
            "has {0} and no folder train beside it: rename the folder of the training split to train, or import {0} \
             alone",
            side.name
        ),
        (None, None) if sides.iter().any(|side| side.holds != Holds::Nothing) => {
            let names = listed(sides.iter().map(|side| &side.name));
            bail!(source, "has {names} and no folder train: a folder of pictures for each class is expected");
        }
        _ => check_no_test_split(source, test_split),
    }
}

fn check_no_test_split(source: &Path, test_split: Option<&str>) -> Result<(), ImportError> {
    test_split.map_or(Ok(()), |name| {
        let problem = format!("{} has no folder train beside it", source.display());
        Err(ImportError::option("test-split", short(name), problem))
    })
}

/// Checks the folders in those of the classes, unless a file names the classes.
fn check_inner(root: &Path, found: &Classes) -> Result<(), ImportError> {
    if found.is_listed { Ok(()) } else { inner_folders::check(root) }
}

/// Checks that not all names of classes are those of folders for pictures or annotations, such as `images`.
fn check_names(folder: &Path, found: &Classes) -> Result<(), ImportError> {
    let full = found.full();
    if found.is_listed || full.is_empty() || !full.iter().all(|class| split::is_no_class(class)) {
        return Ok(());
    }
    let mut images: Vec<PathBuf> = full.iter().map(|class| folder.join(class)).collect();
    images.sort_by_key(|folder| split::is_of_annotations(&name(folder)));
    let has_classes = |images: &&PathBuf| {
        !split::is_of_annotations(&name(images))
            && inside(images).is_ok_and(|(folders, _)| folders.iter().any(|folder| holds_pictures(folder)))
    };
    match images.iter().find(has_classes) {
        Some(images) => bail!(
            folder,
            "{} {}: import {} if its folders are the classes",
            listed(full.iter()),
            if full.len() == 1 { "is no class" } else { "are no classes" },
            images.display()
        ),
        None => Err(unclassed(&images[0])?),
    }
}
