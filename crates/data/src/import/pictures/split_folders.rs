//! Finds the training split and the test split of a source with pictures in folders, and reads their classes.

use std::path::{Path, PathBuf};

use crate::DataError;
use crate::import::labels::LabelOptions;
use crate::import::no_data_set::unclassed;
use crate::import::pictures::folder::{
    Classes, Found, LeftOut, classes, collect, holds_pictures, inside, is_picture, loops, name,
};
use crate::import::pictures::{inner_folders, metadata};
use crate::import::split::{self, SplitKind};
use crate::import::test_split;
use crate::quote::{listed, short};

/// A folder with the name of a split, or the folder that the user chose as the test split.
struct CandidateSplit {
    name: String,
    split: Option<SplitKind>,
    /// The folder that contains the classes of the split.
    root: PathBuf,
    holds: Holds,
}

/// What a folder contains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// The folders in it are the classes, or a metadata file in it or in the source states the classes.
    Classes,
    /// Only pictures, and no classes. The number is that of the pictures.
    Pictures(usize),
    Nothing,
}

impl CandidateSplit {
    fn open(source: &Path, folder: &Path, split: Option<SplitKind>) -> Result<Self, DataError> {
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

    fn is(&self, split: SplitKind) -> bool {
        self.split == Some(split)
    }
}

/// Returns the folder that contains the classes of a split: `split` or a folder in it. Archives repeat the
/// name of the split, as in `seg_train/seg_train/CLASS`, and some tools write `train/images/CLASS`.
fn root(split: &Path) -> Result<PathBuf, DataError> {
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

/// Finds the pictures below `source`. `test_split` names the folder of the test split. `label` says which
/// column of a metadata file has the classes.
pub(crate) fn find(
    source: &Path,
    test_split: Option<&str>,
    label: LabelOptions<'_>,
) -> Result<Found, DataError> {
    let (mut sides, others) = candidates(source, test_split)?;
    let mut left_out = LeftOut::new(loops(source)?);
    let is_train = |side: &CandidateSplit| side.is(SplitKind::Train) && side.holds == Holds::Classes;
    let Some(train) = sides.iter().position(is_train).map(|at| sides.remove(at)) else {
        check_no_split(source, &sides, &others, test_split)?;
        let found = classes(source, source, true, label, &mut left_out)?;
        check_names(source, &found)?;
        check_inner(source, &found)?;
        left_out.log(source);
        return collect(source, found, None);
    };
    let found = classes(source, &train.root, true, label, &mut left_out)?;
    check_names(&train.root, &found)?;
    check_train(&train, &found, &sides, &others)?;
    check_inner(&train.root, &found)?;
    let (second, sides): (Vec<CandidateSplit>, Vec<CandidateSplit>) =
        sides.into_iter().partition(|side| side.is(SplitKind::Train) && test_split != Some(&side.name));
    let sides = if test_split.is_some() { sides } else { with_classes(sides) };
    let names: Vec<String> = sides.iter().map(|side| side.name.clone()).collect();
    let mut read = Vec::new();
    let chosen = test_split::choose(source, test_split, &found.full(), &names, |at| {
        read.push(classes(source, &sides[at].root, false, label, &mut left_out)?);
        Ok(read[at].full())
    })?;
    let test = match chosen {
        Some(at) => Some(match read.into_iter().nth(at) {
            Some(read) => read,
            None => classes(source, &sides[at].root, false, label, &mut left_out)?,
        }),
        None => {
            for side in &sides {
                let why = if holds_pictures(&side.root) {
                    "no picture in it has a class"
                } else {
                    "it contains no pictures"
                };
                log::warn!("{} is not used: {why}", side.name);
            }
            None
        }
    };
    for unused in second.into_iter().map(|side| side.name).chain(others.iter().map(|folder| name(folder))) {
        log::warn!("{unused} is not used: the training split is {}", train.name);
    }
    left_out.log(source);
    collect(source, found, test)
}

/// Returns the folders in `source` that may be splits, and the other folders. The training split comes first.
/// The other splits follow, the preferred test splits first.
fn candidates(
    source: &Path,
    test_split: Option<&str>,
) -> Result<(Vec<CandidateSplit>, Vec<PathBuf>), DataError> {
    let (folders, _) = inside(source)?;
    let names: Vec<String> = folders.iter().map(|folder| name(folder)).collect();
    let (mut sides, mut others) = (Vec::new(), Vec::new());
    for (folder, split) in folders.into_iter().zip(split::of_names(&names)) {
        if split.is_some() || test_split == Some(&name(&folder)) {
            sides.push(CandidateSplit::open(source, &folder, split)?);
        } else {
            others.push(folder);
        }
    }
    // If several folders are for the same split, the folder with the shortest name comes first: `train` is
    // before `training_set`.
    sides.sort_by_key(|side| (side.split.is_none(), side.split, side.name.len(), side.name.clone()));
    Ok((sides, others))
}

/// Returns the splits that have classes. Warns about each other split.
fn with_classes(sides: Vec<CandidateSplit>) -> Vec<CandidateSplit> {
    let (with_classes, others): (Vec<CandidateSplit>, Vec<CandidateSplit>) =
        sides.into_iter().partition(|side| side.holds == Holds::Classes);
    for side in others {
        let why = match side.holds {
            Holds::Pictures(number) => format!(
                "{} not in a class folder (`mpiburn predict` can classify pictures)",
                if number == 1 { "its picture is".into() } else { format!("its {number} pictures are") }
            ),
            _ => "it contains no pictures".to_owned(),
        };
        log::warn!("{} is not used: {why}", side.name);
    }
    with_classes
}

/// Rejects the folder of the training split if it may be a class that only has the name of a split. It may be
/// a class if two conditions hold. Beside the folder, there are folders of pictures and no other splits. In
/// the folder, there are pictures outside of folders, or there is only one folder of pictures.
fn check_train(
    train: &CandidateSplit,
    found: &Classes,
    sides: &[CandidateSplit],
    others: &[PathBuf],
) -> Result<(), DataError> {
    let (folders, files) = inside(&train.root)?;
    let beside = listed(others.iter().filter(|folder| is_class(folder)).map(|folder| name(folder)));
    let picture = files.iter().find(|file| is_picture(file));
    if found.is_listed
        || beside.is_empty()
        || sides.iter().any(|side| !side.is(SplitKind::Train))
        || (picture.is_none() && found.full().len() > 1)
    {
        return Ok(());
    }
    let folders = listed(folders.iter().map(|folder| name(folder)));
    let what = match picture {
        Some(picture) => format!("pictures ({}, …) and folders ({folders})", name(picture)),
        None => format!("one folder of pictures ({folders})"),
    };
    bail!(
        &train.root,
        "may be a class or the training split: it contains {what}, and there are pictures in the folders beside it \
         ({beside}); if it is a class, move the pictures out of its folders; if it is the training split, give \
         each class a folder in it, and move {beside} out of SOURCE"
    )
}

/// Returns whether a folder beside the folder of a split may be a class: it contains pictures, and its name
/// may be the name of a class.
fn is_class(folder: &Path) -> bool {
    !split::is_no_class(&name(folder)) && holds_pictures(folder)
}

/// Checks a source in which no training split with folders of classes was found. The import then takes the
/// folders in the source as the classes. Rejects the source if its folders are splits rather than classes.
fn check_no_split(
    source: &Path,
    sides: &[CandidateSplit],
    others: &[PathBuf],
    test_split: Option<&str>,
) -> Result<(), DataError> {
    let with_classes = sides.iter().find(|side| side.holds == Holds::Classes);
    let train = sides.iter().find(|side| side.is(SplitKind::Train));
    let is_alone = sides.len() + others.len() == 1;
    let are_splits = train.is_some() && sides.iter().any(|side| !side.is(SplitKind::Train));
    if with_classes.is_none() && !are_splits && others.iter().any(|folder| is_class(folder)) {
        return check_no_test_split(source, test_split);
    }
    match (train, with_classes) {
        (Some(train), _) => match train.holds {
            Holds::Pictures(_) => Err(unclassed(&train.root)?),
            _ if sides.iter().any(|side| side.holds != Holds::Nothing) => {
                bail!(&train.root, "is the training split, but contains no pictures")
            }
            _ => check_no_test_split(source, test_split),
        },
        (None, Some(side)) if !is_alone => bail!(
            source,
            "contains {0}, but no folder train: rename the folder of the training split to train, or import {0} \
             alone",
            side.name
        ),
        (None, None) if sides.iter().any(|side| side.holds != Holds::Nothing) => {
            let names = listed(sides.iter().map(|side| &side.name));
            bail!(
                source,
                "contains {names}, but no folder train: add it, with a folder of pictures for each class"
            );
        }
        _ => check_no_test_split(source, test_split),
    }
}

fn check_no_test_split(source: &Path, test_split: Option<&str>) -> Result<(), DataError> {
    test_split.map_or(Ok(()), |name| {
        let problem =
            format!("{} has no folder train and therefore no splits: leave the option out", source.display());
        Err(DataError::option("test-split", short(name), problem))
    })
}

/// Checks the folders inside the folders of classes, unless a file names the classes.
fn check_inner(root: &Path, found: &Classes) -> Result<(), DataError> {
    if found.is_listed { Ok(()) } else { inner_folders::check(root) }
}

/// Rejects classes that all have names of folders for pictures or annotations, such as `images`.
fn check_names(folder: &Path, found: &Classes) -> Result<(), DataError> {
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
            if full.len() == 1 { "is not a class" } else { "are not classes" },
            images.display()
        ),
        None => Err(unclassed(&images[0])?),
    }
}
