//! Checks whether the folders inside the folders of classes look like splits or classes.
//!
//! All pictures below the folder of a class belong to the class, as in torchvision's ImageFolder. This rule
//! goes wrong if the user named a folder other than the one with the classes: the pictures of `cat/train` and
//! `cat/test` are mixed, and the classes of `animals/train/cat` or `fold1/cat` are lost.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::import::pictures::folder::{holds_pictures, inside, is_picture, name};
use crate::import::split::{self, SplitKind};
use crate::quote::listed;

/// The folder of a class. `folders` are its inner folders that contain pictures.
struct Class {
    name: String,
    folders: Vec<PathBuf>,
}

impl Class {
    fn names(&self) -> BTreeSet<String> {
        self.folders.iter().map(|folder| name(folder)).collect()
    }

    fn has_splits(&self) -> bool {
        let splits = split::of_names(&self.names().into_iter().collect::<Vec<_>>());
        let is_train = |split: &SplitKind| *split == SplitKind::Train;
        splits.iter().flatten().any(is_train) && splits.iter().flatten().any(|split| !is_train(split))
    }

    /// Returns whether two folders of this class contain folders of the same name, such as `train/cat` and
    /// `test/cat`. If they do, the folder of the class is a whole data set.
    fn has_data_set(&self) -> Result<bool, DataError> {
        let mut found = BTreeSet::new();
        for folder in &self.folders {
            for inner in inside(folder)?.0.iter().filter(|inner| holds_pictures(inner)) {
                if !found.insert(name(inner)) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Checks the folders of classes in `root`. Rejects folders that are whole data sets. Warns if folders of
/// classes contain splits, because their pictures are mixed. Logs a remark if all classes have the same inner
/// folders. Does none of this if some folder of a class has pictures directly in it.
pub(crate) fn check(root: &Path) -> Result<(), DataError> {
    let mut classes = Vec::new();
    for folder in inside(root)?.0.iter().filter(|folder| holds_pictures(folder)) {
        let (folders, files) = inside(folder)?;
        // Pictures directly in this folder show that it is a class. This is so in nearly all sources: return
        // at once, so that the other folders are not read once more.
        if files.iter().any(|file| is_picture(file)) {
            return Ok(());
        }
        let folders = folders.into_iter().filter(|inner| holds_pictures(inner)).collect();
        classes.push(Class { name: name(folder), folders });
    }
    let with_splits: Vec<&Class> = classes.iter().filter(|class| class.has_splits()).collect();
    if let [first, ..] = &with_splits[..] {
        let names = listed(with_splits.iter().map(|class| &class.name));
        if first.has_data_set()? {
            let of = match with_splits.len() {
                1 => "a data set with splits, in the folder",
                _ => "several data sets with splits, in the folders",
            };
            let first = root.join(&first.name);
            bail!(root, "contains {of} {names}: import one data set alone, such as {}", first.display());
        }
        let [class, names] = [&first.name, &listed(first.names())];
        let inner = first.names().into_iter().next().unwrap_or_default();
        log::warn!(
            "the class folders contain splits ({class} contains {names}), and their pictures are mixed: to keep \
             the splits, move {class}/{inner} to {inner}/{class}, and so on"
        );
        return Ok(());
    }
    let inner = classes.first().map(Class::names).unwrap_or_default();
    if classes.len() > 1 && inner.len() > 1 && classes.iter().all(|class| class.names() == inner) {
        log::info!(
            "the classes are {}; each contains the folders {}, whose pictures are mixed",
            listed(classes.iter().map(|class| &class.name)),
            listed(inner)
        );
    }
    Ok(())
}
