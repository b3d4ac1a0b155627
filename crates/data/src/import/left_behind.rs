//! Names of files and folders that operating systems, network drives and tools create beside the user's
//! files. They are never part of a data set.

/// The names in lower case. Names that begin with a dot, such as `.DS_Store`, `._photo.jpg`, `.Trash-1000` or
/// `.ipynb_checkpoints`, are ignored as well and are not listed here.
const NAMES: [&str; 25] = [
    // Windows: github.com/github/gitignore, Global/Windows.gitignore; the recycle bin of Windows XP; files
    // that chkdsk recovers.
    "$recycle.bin",
    "desktop.ini",
    "ehthumbs.db",
    "ehthumbs_vista.db",
    "found.000",
    "recycler",
    "system volume information",
    "thumbs.db",
    "thumbs.db:encryptable",
    // macOS: Global/macOS.gitignore, and the folders of AFP shares.
    "__macosx",
    "icon\r",
    "network trash folder",
    "temporary items",
    "thefindbycontentfolder",
    "thevolumesettingsfolder",
    // Linux: mklost+found(8). Android makes the same folder on memory cards.
    "lost+found",
    "lost.dir",
    // Synology's DSM: thumbnails, recycle bin, snapshots.
    "@eadir",
    "#recycle",
    "#snapshot",
    // QNAP's QTS.
    "@recycle",
    "@recently-snapshot",
    // NetApp's ONTAP over SMB. Over NFS, the name is .snapshot.
    "~snapshot",
    // Python and Picasa.
    "__pycache__",
    "picasa.ini",
];

/// Returns whether a file or folder of this name is to be ignored.
pub(crate) fn is_ignored(name: &str) -> bool {
    name.starts_with('.') || NAMES.contains(&&*name.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case() {
        for name in [
            "@eaDir",
            "#recycle",
            "$RECYCLE.BIN",
            "System Volume Information",
            "RECYCLER",
            "lost+found",
            "@Recently-Snapshot",
            "~snapshot",
            "THUMBS.DB",
            "Desktop.ini",
            "Network Trash Folder",
            ".Trash-1000",
            "._x.jpg",
        ] {
            assert!(is_ignored(name), "{name}");
        }
        for name in ["recycled", "recycle", "snapshot", "thumbs", "lost", "@home", "desktop", "trash"] {
            assert!(!is_ignored(name), "{name}");
        }
    }
}
