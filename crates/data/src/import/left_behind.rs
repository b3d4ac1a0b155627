//! Files and folders that systems, network drives and tools leave beside people's own.

/// Their names in small letters. Names that begin with a dot, such as `.DS_Store`, `._photo.jpg`, `.Trash-1000` or
/// `.ipynb_checkpoints`, are ignored as well and are not listed.
const NAMES: [&str; 25] = [
    // Windows: github.com/github/gitignore, Global/Windows.gitignore; the bin of Windows XP; what chkdsk recovers.
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
    // Linux: mklost+found(8). Android: the same on cards.
    "lost+found",
    "lost.dir",
    // Synology's DSM: thumbnails, bin, snapshots.
    "@eadir",
    "#recycle",
    "#snapshot",
    // QNAP's QTS.
    "@recycle",
    "@recently-snapshot",
    // NetApp's ONTAP over SMB; over NFS it is .snapshot.
    "~snapshot",
    // Python and Picasa.
    "__pycache__",
    "picasa.ini",
];

/// Whether a file or folder of this name is no part of a data set.
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
