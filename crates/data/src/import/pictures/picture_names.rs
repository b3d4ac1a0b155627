//! Finds the pictures of a folder by their names in tables. Such a name may lack folders and the extension.
//! It may also differ from the file's name in case and in the form of Unicode, because people, Windows and
//! macOS write names differently.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::import::pictures::folder::{LeftOut, is_picture, name, walk};
use crate::import::same_class::key;

/// The pictures below the folder `root`.
pub(crate) struct PictureNames {
    root: PathBuf,
    pub(crate) files: Vec<PathBuf>,
    /// For each file name without its extension, in the normal form of [`key`]: the indices in `files` of the
    /// pictures with this name.
    places: HashMap<String, Vec<usize>>,
}

/// What a name in a table stands for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Index of the only picture with the name.
    One(usize),
    /// Indices of two of the pictures with the name.
    Several([usize; 2]),
    Nothing,
    /// The name leads out of the folder.
    Outside,
}

impl PictureNames {
    pub(crate) fn in_folder(root: &Path) -> Result<Self, DataError> {
        let files = walk(root, &mut LeftOut::default())?;
        let mut places: HashMap<String, Vec<usize>> = HashMap::new();
        for (place, file) in files.iter().enumerate() {
            places.entry(key(&stem(&name(file)))).or_default().push(place);
        }
        Ok(Self { root: root.to_owned(), files, places })
    }

    /// Returns the picture with this name in the folder `within`. The name may have no folders, some of the
    /// last folders of the picture's path, or all of them. Other folders may be before all of them, as in an
    /// absolute path on another machine.
    pub(crate) fn find(&self, wanted: &str, within: &Path) -> Named {
        let path = wanted.replace('\\', "/");
        let parts = path.split('/').filter(|part| !["", "."].contains(part));
        // Ignore `..` at the beginning: the path is relative to where the table was written, as in Kaggle's
        // `../input/train/1.png`.
        let parts: Vec<&str> = parts.skip_while(|part| *part == "..").collect();
        let Some((&last, folders)) = parts.split_last() else { return Named::Nothing };
        if parts.contains(&"..") {
            return Named::Outside;
        }
        let folders: Vec<String> = folders.iter().map(|folder| key(folder)).collect();
        let with_ending = if is_picture(Path::new(last)) { self.at(&stem(last)) } else { &[] };
        let same_ending =
            with_ending.iter().copied().filter(|&place| key(&name(&self.files[place])) == key(last));
        // What looks like an extension may also be a part of the name: 1.png may stand for 1.png.jpg.
        let any_ending = self.at(last).iter().copied();
        let mut found: Vec<usize> = same_ending
            .chain(any_ending)
            .filter(|&place| self.files[place].starts_with(within))
            .filter(|&place| self.folders(place).iter().rev().zip(folders.iter().rev()).all(|(a, b)| a == b))
            .collect();
        let is_whole = |place: &usize| self.folders(*place).len() == folders.len();
        let is_exact = |place: &usize| {
            [name(&self.files[*place]), stem(&name(&self.files[*place]))].iter().any(|n| n == last)
        };
        for prefer in [&is_whole as &dyn Fn(&usize) -> bool, &is_exact] {
            if found.len() > 1 && found.iter().any(prefer) {
                found.retain(prefer);
            }
        }
        match found[..] {
            [] => Named::Nothing,
            [one] => Named::One(one),
            [first, second, ..] => Named::Several([first, second]),
        }
    }

    fn at(&self, stem: &str) -> &[usize] {
        self.places.get(&key(stem)).map_or(&[], Vec::as_slice)
    }

    /// Returns the folders of a picture below the root.
    fn folders(&self, place: usize) -> Vec<String> {
        let folders = self.files[place].strip_prefix(&self.root).ok().and_then(Path::parent);
        folders.into_iter().flatten().map(|folder| key(&folder.to_string_lossy())).collect()
    }
}

/// Returns the name of a picture without its extension.
fn stem(name: &str) -> String {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem).to_owned()
}

#[cfg(all(test, feature = "archives", feature = "parquet", feature = "pictures"))]
mod tests {
    use super::*;
    use crate::import::tests::Lab;

    #[test]
    fn names_are_found_as_they_are_written_on_other_systems() {
        let lab = Lab::new();
        let files = [
            "train/1.png",
            "train/2.JPG",
            "train/b.c.png",
            "test/1.png",
            "e\u{301}.png",
            "x/Y.png",
            "x/y.png",
            "x/1.jpg",
        ];
        files.iter().for_each(|name| lab.write(&format!("set/{name}"), "x"));
        let [root, train] = ["set", "set/train"].map(|name| lab.path(name));
        let names = PictureNames::in_folder(&root).unwrap();
        let find = |wanted: &str, within: &Path| match names.find(wanted, within) {
            Named::One(place) => names.files[place].strip_prefix(&root).unwrap().to_str().unwrap().to_owned(),
            other => format!("{other:?}").split(['(', '[']).next().unwrap().to_owned(),
        };
        for (wanted, expected) in [
            ("1.png", "train/1.png"),
            ("1", "train/1.png"),
            ("train/1.png", "train/1.png"),
            ("train\\1.png", "train/1.png"),
            ("./1.png", "train/1.png"),
            ("TRAIN/1.PNG", "train/1.png"),
            ("C:\\data\\train\\1.png", "train/1.png"),
            ("/home/me/set/train/1.png", "train/1.png"),
            ("2.jpg", "train/2.JPG"),
            ("b.c", "train/b.c.png"),
            ("test/1.png", "Nothing"),
            ("1.jpg", "Nothing"),
            ("3", "Nothing"),
            ("", "Nothing"),
            ("../test/1.png", "Nothing"),
            ("../input/set/train/1.png", "train/1.png"),
            ("..\\..\\train\\1.png", "train/1.png"),
            ("..", "Nothing"),
            ("a\\..\\1.png", "Outside"),
        ] {
            assert_eq!(find(wanted, &train), expected, "{wanted}");
        }
        for (wanted, expected) in [
            ("1.png", "Several"),
            ("test/1", "test/1.png"),
            ("\u{e9}.png", "e\u{301}.png"),
            ("y.png", "x/y.png"),
            ("Y", "x/Y.png"),
            ("x/1", "x/1.jpg"),
        ] {
            assert_eq!(find(wanted, &root), expected, "{wanted}");
        }
    }
}
