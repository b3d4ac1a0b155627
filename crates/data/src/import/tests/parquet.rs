//! Tests imports of Parquet in folders, and of unusual columns.

use crate::error::names_all;
use crate::import::Imported;
use crate::import::tests::Lab;
use crate::import::tests::sources::{Column, parquet};

/// Returns a table of one feature, with the class if `kinds` are given.
pub(crate) fn table(x: &[f64], kinds: Option<&[&str]>) -> Vec<u8> {
    let x = Column::Double(x.iter().copied().map(Some).collect());
    match kinds {
        None => parquet("message m { optional double x; }", None, vec![x]),
        Some(kinds) => {
            let kinds = kinds.iter().map(|kind| kind.as_bytes().to_vec()).collect();
            let schema = "message m { optional double x; optional byte_array class (STRING); }";
            parquet(schema, None, vec![x, Column::Bytes(kinds, 1)])
        }
    }
}

/// Returns the number of samples and the names of the classes.
fn found(imported: &Imported) -> (usize, Vec<&str>) {
    (imported.counts.iter().flatten().sum(), imported.set.classes.iter().map(String::as_str).collect())
}

#[test]
fn the_parts_of_a_folder_are_one_table() {
    let part = table(&[1.0, 2.0], Some(&["a", "b"]));
    for names in [
        // Names of parts as Spark, Dask, Polars, DuckDB, pyarrow and BigQuery write them, and names with
        // months.
        [
            "part-00000-0a1b2c3d-aaaa-4bbb-8ccc-0123456789ab-c000.snappy.parquet",
            "part-00001-0a1b2c3d-aaaa-4bbb-8ccc-0123456789ab-c000.snappy.parquet",
        ],
        ["part.0.parquet", "part.1.parquet"],
        ["00000000.parquet", "00000001.parquet"],
        ["data_0.PARQUET", "data_1.PARQUET"],
        ["0a1b2c3d-aaaa-4bbb-8ccc-0123456789ab-0.parquet", "9f8e7d6c-aaaa-4bbb-8ccc-0123456789ab-0.parquet"],
        ["file-000000000000.parquet", "file-000000000001.parquet"],
        ["tripdata_2023-01.parquet", "tripdata_2023-02.parquet"],
    ] {
        let lab = Lab::new();
        names.iter().for_each(|name| lab.write(&format!("src/t/{name}"), &part));
        for name in ["_SUCCESS", "_metadata", "_common_metadata", "._SUCCESS.crc", "_delta_log/0.json"] {
            lab.write(&format!("src/t/{name}"), "");
        }
        assert_eq!(found(&lab.imported("src", &[])), (4, vec!["a", "b"]), "{}", names[0]);
    }
    let lab = Lab::new();
    ["train.parquet", "test.parquet"].iter().for_each(|name| {
        lab.write(&format!("set/{name}/part-00000.parquet"), &part);
        lab.write(&format!("set/{name}/part-00001.parquet"), &part);
    });
    assert_eq!(lab.imported("set", &[]).counts, [[2, 2], [2, 2]], "folders with the names of files");
    lab.write("two/iris.parquet", &part);
    lab.write("two/wine.parquet", &part);
    let message = lab.import("two", &["--overwrite"]).unwrap_err();
    assert!(
        names_all(&message, "/two: | 2 tables (iris.parquet, wine.parquet): | mpiburn data import "),
        "{message}"
    );
}

/// Rows are counted in their own file, even after a cell of several lines and after a file without rows.
#[test]
fn a_row_of_a_part_is_named_by_its_own_file() {
    let lab = Lab::new();
    lab.write("set/year=1/0.parquet", table(&[0.0, 1.0, 2.0], Some(&["a\nb", "c", "c"])));
    lab.write("set/year=2/0.parquet", table(&[], Some(&[])));
    lab.write("set/year=3/0.parquet", table(&[3.0, 4.0, 5.0], Some(&["a\nb", "c", "a\nb"])));
    lab.imported("set", &["--order", "files"]);
    let mut from = lab.from().concat();
    from.sort();
    let rows = |folder: &str| [1, 2, 3].map(|row| format!("{folder}/0.parquet:{row}"));
    assert_eq!(from, [rows("year=1"), rows("year=3")].concat());
    lab.write("set/year=4/0.parquet", table(&[6.0, f64::NAN], Some(&["c", "c"])));
    let message = lab.import("set", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "year=4/0.parquet: | row 2: | column x | no value"), "{message}");
}

#[test]
fn the_column_of_the_class_has_a_name_in_any_spelling_or_a_number() {
    let lab = Lab::new();
    lab.write("t.parquet", table(&[1.0, 2.0, 3.0, 4.0], Some(&["a", "a", "b", "b"])));
    for label in ["class", "CLASS", "2"] {
        assert_eq!(found(&lab.imported("t.parquet", &["--label", label])), (4, vec!["a", "b"]), "{label}");
    }
    for label in ["0", "3", "y"] {
        let message = lab.import("t.parquet", &["--label", label, "--overwrite"]).unwrap_err();
        assert!(names_all(&message, &format!("--label {label}: | t.parquet | x, class")), "{message}");
    }
    for number in 0..4 {
        lab.picture(&format!("pets/{number}.png"), [2, 2], number);
    }
    lab.write("pets/metadata.csv", "file_name,Kind,age\n0.png,a,1\n1.png,a,2\n2.png,b,3\n3.png,b,4\n");
    assert_eq!(found(&lab.imported("pets", &["--label", "kind"])), (4, vec!["a", "b"]));
}

#[test]
fn partitions_of_other_tables_than_parquet_are_named() {
    let lab = Lab::new();
    let csv = "x,class\n1,a\n2,b\n3,a\n4,b\n";
    for year in [2020, 2021] {
        lab.write(&format!("set/year={year}/part-0.csv"), csv);
        ["train", "test"].iter().for_each(|split| lab.write(&format!("two/{split}/year={year}/0.tsv"), csv));
    }
    lab.write("mixed/year=2020/0.parquet", table(&[1.0, 2.0], Some(&["a", "b"])));
    lab.write("mixed/year=2021/0.csv", csv);
    for (source, files) in [
        ("set", "year=2020/part-0.csv, year=2021/part-0.csv"),
        ("two", "year=2020/0.tsv, year=2021/0.tsv"),
        ("mixed", "year=2020/0.parquet, year=2021/0.csv"),
    ] {
        let message = lab.import(source, &[]).unwrap_err();
        let what = format!("{source} | table of 2 files ({files}) | Parquet");
        assert!(names_all(&message, &what), "{message}");
    }
}

#[test]
fn folders_of_partitions_are_columns() {
    let lab = Lab::new();
    for (folder, x) in [
        ("year=2020/class=low%20one", 1.0),
        ("year=2021/class=high", 2.0),
        ("year=2021/class=low%20one", 3.0),
    ] {
        lab.write(&format!("set/{folder}/part-0.parquet"), table(&[x, x + 10.0], None));
    }
    let imported = lab.imported("set", &["--order", "files"]);
    assert_eq!(found(&imported), (6, vec!["high", "low one"]));
    assert_eq!(imported.set.features, ["x", "year"]);
    lab.write("set/year=2021/class=__HIVE_DEFAULT_PARTITION__/part-0.parquet", table(&[5.0], None));
    let message = lab.import("set", &["--overwrite"]).unwrap_err();
    let place = "year=2021/class=__HIVE_DEFAULT_PARTITION__/part-0.parquet: row 1: ";
    assert!(message.contains(place) && message.contains("no class"), "{message}");
    // A partition column may have the same value in all rows. In the folder `one`, such a column is a
    // feature. In the folder `single`, it is the class.
    lab.write("one/year=2020/0.parquet", table(&[1.0, 2.0, 3.0, 4.0], Some(&["a", "a", "b", "b"])));
    assert_eq!(lab.imported("one", &[]).set.features, ["x", "year"]);
    assert_eq!(lab.imported("one/year=2020", &[]).set.features, ["x"]);
    assert_eq!(lab.imported("one/year=2020/0.parquet", &[]).set.features, ["x"]);
    // These folders are data sets and only have names like partitions.
    lab.write("sets/lr=0.1/train.csv", "x,class\n1,a\n2,b\n");
    lab.write("sets/lr=0.1/test.csv", "x,class\n3,a\n");
    assert_eq!(lab.imported("sets", &[]).counts, [[1, 1], [1, 0]]);
    for split in ["train", "test"] {
        lab.write(&format!("files/lr=0.1/{split}.parquet"), table(&[1.0, 2.0], Some(&["a", "b"])));
    }
    assert_eq!(lab.imported("files", &[]).set.features, ["x"]);
    ["a/1", "a/2", "b/1", "b/2"]
        .iter()
        .for_each(|name| lab.picture(&format!("pets/lr=0.1/{name}.png"), [2, 2], 9));
    assert_eq!(lab.imported("pets", &[]).set.classes, ["a", "b"]);
    lab.write("single/class=low/0.parquet", table(&[1.0, 2.0], None));
    assert_eq!(found(&lab.imported("single", &[])), (2, vec!["low"]));
    // Folders of tools beside the table are ignored.
    lab.write("lake/_delta_log/0.json", "{}");
    ["a", "b"]
        .iter()
        .for_each(|class| lab.write(&format!("lake/class={class}/0.parquet"), table(&[1.0, 2.0], None)));
    assert_eq!(found(&lab.imported("lake", &[])), (4, vec!["a", "b"]));
    lab.write("ice/metadata/v1.json", "{}");
    lab.write("ice/data/0.parquet", table(&[1.0, 2.0, 3.0, 4.0], Some(&["a", "a", "b", "b"])));
    assert_eq!(found(&lab.imported("ice", &[])).0, 4);
    // Partitions may be in the folders of splits.
    for split in ["train", "test"] {
        for class in ["low", "high"] {
            lab.write(&format!("splits/{split}/class={class}/0.parquet"), table(&[1.0], None));
        }
    }
    assert_eq!(lab.imported("splits", &[]).counts, [[1, 1], [1, 1]]);
}

#[test]
fn a_test_table_of_parquet_without_classes_is_left_to_predict() {
    let lab = Lab::new();
    lab.write("set/train.parquet", table(&[1.0, 2.0], Some(&["a", "b"])));
    lab.write("set/test.parquet", table(&[1.0, 2.0], None));
    let message = lab.import("set", &[]).unwrap_err();
    assert!(
        names_all(&message, "test.parquet: | no column \"class\" | import train.parquet alone"),
        "{message}"
    );
}

/// `metadata.parquet` in the folder of a split is not a table of features.
#[test]
fn metadata_of_parquet_in_the_folders_of_splits_names_the_classes() {
    let lab = Lab::new();
    for (split, names) in [("train", ["0.png", "1.png"]), ("test", ["2.png", "3.png"])] {
        names.iter().enumerate().for_each(|(number, name)| {
            lab.picture(&format!("set/{split}/{name}"), [2, 2], number as u8);
        });
        let schema =
            "message m { optional byte_array file_name (STRING); optional byte_array label (STRING); }";
        let columns = [names, ["a", "b"]]
            .map(|cells| Column::Bytes(cells.map(|cell| cell.as_bytes().to_vec()).to_vec(), 1));
        lab.write(&format!("set/{split}/metadata.parquet"), parquet(schema, None, columns.into()));
    }
    let Imported { set, counts } = lab.imported("set", &[]);
    assert_eq!((set.shape[1..].to_vec(), set.classes), (vec![2, 2], vec!["a".to_owned(), "b".into()]));
    assert_eq!(counts, [[1, 1], [1, 1]]);
}

#[test]
fn several_configurations_are_named() {
    let lab = Lab::new();
    for name in ["coarse/train-00000-of-00001", "fine/train-00000-of-00001", "tiny/train/0000"] {
        lab.write(&format!("set/{name}.parquet"), table(&[1.0, 2.0, 3.0, 4.0], Some(&["a", "a", "b", "b"])));
    }
    let message = lab.import("set", &[]).unwrap_err();
    assert!(
        names_all(&message, "/set: | 3 data sets | (coarse, fine, tiny): | mpiburn data import "),
        "{message}"
    );
    assert!(message.contains("/set/coarse --out "), "{message}");
    assert_eq!(found(&lab.imported("set/tiny", &[])).0, 4);
}

#[test]
fn lists_of_one_length_are_features() {
    let lab = Lab::new();
    let schema = "message m { optional group v (LIST) { repeated group list { optional double element; } } \
                  optional int64 label; }";
    let lists = |lists: &[&[f64]]| {
        let labels = (0..lists.len()).map(|row| Some(row as i64 % 2)).collect();
        let lists = lists.iter().map(|list| list.to_vec()).collect();
        parquet(schema, None, vec![Column::Lists(lists), Column::Int64(labels)])
    };
    lab.write("one.parquet", lists(&[&[1.0, 2.0], &[3.0, 4.0], &[5.0, 6.0], &[7.0, 8.0]]));
    let imported = lab.imported("one.parquet", &["--order", "files"]);
    assert_eq!(
        (imported.set.shape, &imported.set.features[..]),
        ([1, 1, 2], &["v_0".to_owned(), "v_1".into()][..])
    );
    let message = lab.import("one.parquet", &["--overwrite", "--drop", "v"]).unwrap_err();
    assert!(names_all(&message, "--drop v: | no feature | besides label"), "{message}");
    lab.write("one.parquet", lists(&[&[1.0, 2.0], &[3.0, 4.0], &[5.0]]));
    let message = lab.import("one.parquet", &["--overwrite"]).unwrap_err();
    assert!(
        names_all(&message, "one.parquet: column v | different lengths (2 in row 1, 1 in row 3) | --drop v"),
        "{message}"
    );
}

#[test]
fn a_struct_is_not_a_feature() {
    let lab = Lab::new();
    let schema = "message m { optional group s { optional int64 x; } optional int64 label; }";
    let one = || Column::Int64(vec![Some(1), Some(1), Some(1)]);
    lab.write("t.parquet", parquet(schema, None, vec![one(), one()]));
    let message = lab.import("t.parquet", &[]).unwrap_err();
    assert!(names_all(&message, "t.parquet: column s | structs | --drop s"), "{message}");
}

#[test]
fn pictures_by_path_alone_are_one_line() {
    let lab = Lab::new();
    let schema = "message m { optional group image { optional byte_array bytes; optional byte_array path (STRING); } \
                  optional int64 label; }";
    let paths = (0..50).map(|row| format!("{row}.png").into_bytes()).collect();
    let labels = (0..50).map(|row| Some(row % 2)).collect();
    let columns = vec![Column::Missing(50, 1), Column::Bytes(paths, 2), Column::Int64(labels)];
    lab.write("t.parquet", parquet(schema, None, columns));
    let message = lab.import("t.parquet", &["--skip-broken"]).unwrap_err();
    assert!(
        names_all(&message, "t.parquet: | column image | 50 of 50 rows | (row 1: \"0.png\")"),
        "{message}"
    );
    let schema = "message m { optional byte_array image (STRING); optional int64 label; }";
    let paths = (0..4).map(|row| format!("{row}.png").into_bytes()).collect();
    let columns = vec![Column::Bytes(paths, 1), Column::Int64(vec![Some(0), Some(1), Some(0), Some(1)])];
    lab.write("set/train.parquet", parquet(schema, None, columns));
    let message = lab.import("set", &[]).unwrap_err();
    assert!(names_all(&message, "train.parquet: | column image | 4 of 4 rows"), "{message}");
    // If the pictures are beside the table, the table names their classes.
    for row in 0..4 {
        lab.picture(&format!("set/train/{row}.png"), [2, 2], row);
    }
    assert_eq!(found(&lab.imported("set", &[])), (4, vec!["0", "1"]));
}
