//! Columns of a partitioned table that the names of its folders have: `year=2020/class=low/part-0.parquet`.
//!
//! Hive, Spark, Dask, Polars, DuckDB and pyarrow write such tables: the column is in no file.
//! <https://cwiki.apache.org/confluence/display/Hive/LanguageManual+DDL#LanguageManualDDL-PartitionedTables>

use std::path::{Path, PathBuf};

use crate::folder;

/// The value that says that there is none.
const MISSING: &str = "__HIVE_DEFAULT_PARTITION__";

/// Whether a folder has the name of a partition.
pub(crate) fn is_one(folder: &Path) -> bool {
    folder::name(folder).split_once('=').is_some_and(|(name, _)| !name.is_empty())
}

/// The names and values that the folders of `path` have, below the folder that all `paths` of its table have in common.
/// A column of the file itself is preferred.
pub(crate) fn of(path: &Path, paths: &[PathBuf], columns: &[String]) -> Vec<(String, Option<String>)> {
    let is_common = |folder: &Path| paths.iter().all(|path| path.starts_with(folder));
    let folders = path.ancestors().skip(1).take_while(|folder| is_one(folder) && !is_common(folder));
    let mut found: Vec<(String, Option<String>)> = folders
        .filter_map(|folder| {
            let (name, value) = folder.file_name()?.to_str()?.split_once('=')?;
            Some((decoded(name), Some(decoded(value)).filter(|value| value != MISSING)))
        })
        .filter(|(name, _)| !columns.contains(name))
        .collect();
    found.reverse();
    found
}

/// A text in which `%20` stands for a blank.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let code = after.get(..2).filter(|_| *first == b'%').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_name_columns_below_what_the_files_have_in_common() {
        let paths = [
            "seed=3/t/year=2020/kind=a%20b/0.parquet",
            "seed=3/t/year=2021/kind=__HIVE_DEFAULT_PARTITION__/0.parquet",
        ]
        .map(PathBuf::from);
        let of = |at: usize, columns: &[String]| super::of(&paths[at], &paths, columns);
        let named = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        assert_eq!(of(0, &[]), [named("year", "2020"), named("kind", "a b")]);
        assert_eq!(of(1, &[]), [named("year", "2021"), ("kind".to_owned(), None)]);
        assert_eq!(of(0, &["year".into()]), [named("kind", "a b")]);
        assert_eq!(super::of(&paths[0], &paths[..1], &[]), [], "one file");
        assert_eq!(["50%", "a%2Fb", "%zz", "%C3%A4"].map(decoded), ["50%", "a/b", "%zz", "ä"]);
    }
}
