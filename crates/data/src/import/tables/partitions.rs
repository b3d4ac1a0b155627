//! Reads columns from the names of folders. In a partitioned table, the values of some columns are not in the
//! files, but in the names of folders, as in `year=2020/class=low/part-0.parquet`.
//!
//! Hive, Spark, Dask, Polars, DuckDB and pyarrow write such tables:
//! <https://cwiki.apache.org/confluence/display/Hive/LanguageManual+DDL#LanguageManualDDL-PartitionedTables>

use std::path::Path;

use crate::import::pictures::folder;

/// Value in the name of a folder that stands for a missing value.
const MISSING: &str = "__HIVE_DEFAULT_PARTITION__";

/// Returns whether a folder has the name of a partition, `column=value`.
pub(crate) fn is_one(folder: &Path) -> bool {
    folder::name(folder).split_once('=').is_some_and(|(name, _)| !name.is_empty())
}

/// Returns the columns and their values from the names of the folders between `root`, the folder of the
/// table, and the file `path`. Leaves out the columns in `columns`: they are in the file itself.
pub(crate) fn in_path(path: &Path, root: &Path, columns: &[String]) -> Vec<(String, Option<String>)> {
    let folders = path.ancestors().skip(1).take_while(|folder| is_one(folder) && *folder != root);
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

/// Decodes percent-encoding: `%20` is a blank.
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
    fn folders_name_columns_below_that_of_the_table() {
        let found =
            |path: &str, root: &str, columns: &[String]| in_path(Path::new(path), Path::new(root), columns);
        let named = |name: &str, value: &str| (name.to_owned(), Some(value.to_owned()));
        let path = "seed=3/t/year=2020/kind=a%20b/0.parquet";
        assert_eq!(found(path, "seed=3/t", &[]), [named("year", "2020"), named("kind", "a b")]);
        assert_eq!(found(path, "seed=3/t/year=2020", &[]), [named("kind", "a b")]);
        assert_eq!(found(path, "seed=3/t/year=2020/kind=a%20b", &[]), [], "one file");
        assert_eq!(found(path, "seed=3/t", &["year".into()]), [named("kind", "a b")]);
        let missing = "t/kind=__HIVE_DEFAULT_PARTITION__/0.parquet";
        assert_eq!(found(missing, "t", &[]), [("kind".to_owned(), None)]);
        assert_eq!(["50%", "a%2Fb", "%zz", "%C3%A4"].map(decoded), ["50%", "a/b", "%zz", "ä"]);
    }
}
