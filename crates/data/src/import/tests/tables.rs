//! Tests tables in all their forms, and the errors about them.

use crate::error::names_all;
use crate::import::tables::TableFiles;
use crate::import::tables::table_file::TableFile;
use crate::import::tests::{Lab, features};
use crate::import::{Header, Imported};
use crate::{DataError, Element};

#[test]
fn tables_of_many_kinds_are_the_same_data_set() {
    let rows =
        [("1.5", "2", "b"), ("-3.25", "4e1", "a"), ("0.5", "6", "b"), ("7", "8", "a"), ("9", "0", "b")];
    let of = |separator: &str, decimal: &str, header: &str| {
        let row = |(x, y, class): &(&str, &str, &str)| {
            [x.replace('.', decimal), y.replace('.', decimal), (*class).into()].join(separator)
        };
        let rows: Vec<String> = rows.iter().map(row).collect();
        format!("{header}{}\n", rows.join("\n"))
    };
    let lab = Lab::new();
    let mut digests = Vec::new();
    for (name, contents, options) in [
        ("plain.csv", of(",", ".", "x,y,class\n"), &[][..]),
        ("plain.csv", of(",", ".", "x,y,kind\n"), &["--label", "kind"]),
        ("bare.csv", of(",", ".", ""), &["--label", "3"]),
        ("semicolon.csv", of(";", ",", "x;y;Class\n"), &[]),
        ("tab.tsv", of("\t", ".", "x\ty\tlabel\n"), &[]),
        ("bom.csv", format!("\u{feff}{}", of(", ", ".", "x, y, target\r\n")), &[]),
        ("quoted.csv", of(",", ".", "\"x\",\"y\",\"class\"\n").replace("-3.25", "\"-3.25\""), &[]),
    ] {
        lab.write(name, contents);
        let Imported { set, counts } = lab.imported(name, &[options, &["--order", "files"]].concat());
        assert_eq!(
            (set.shape, set.numbers, &set.classes[..]),
            ([1, 1, 2], Element::F32, &["a".into(), "b".into()][..])
        );
        assert_eq!(counts, [[1, 2], [1, 1]], "{name}");
        digests.push((set.train.sha256, set.test.sha256));
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    let found = features(&lab, 2);
    assert!(found.iter().all(|row| {
        [[1.5, 2.0], [-3.25, 40.0], [0.5, 6.0], [7.0, 8.0], [9.0, 0.0]].contains(&[row[0], row[1]])
    }));
}

#[test]
fn compressed_tables_beside_each_other_and_numbered_classes() {
    use std::io::Write;
    let lab = Lab::new();
    let packed = |text: &str| {
        let mut file = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        file.write_all(text.as_bytes()).unwrap();
        file.finish().unwrap()
    };
    // Two gzip members, as in concatenated files.
    lab.write("set/train.csv.gz", [packed("id,x,label\n1,5,10\n"), packed("2,6,9.0\n3,7,10\n")].concat());
    lab.write("set/test.csv", "id,x,label\n4,8,9\n");
    let Imported { set, counts } = lab.imported("set", &["--drop", "id", "--order", "files"]);
    assert_eq!(
        (&set.classes[..], &set.features[..]),
        (&["9".to_owned(), "10".into()][..], &["x".to_owned()][..])
    );
    assert_eq!(counts, [[1, 2], [1, 0]]);
    assert_eq!(features(&lab, 1), [[5.0], [6.0], [7.0]]);
    assert_eq!((set.mean[0], lab.labels("train")), (6.0, vec![1, 0, 1]));
    assert_eq!(lab.from(), [vec!["train.csv.gz:2", "train.csv.gz:3", "train.csv.gz:4"], vec!["test.csv:2"]]);
}

/// Nobody would notice if messages had wrong line numbers, or `dataset.json` wrong names of features. This
/// test checks both.
#[test]
fn rows_have_their_lines_and_columns_their_names() {
    let lab = Lab::new();
    for (newline, blank) in [("\r\n", ""), ("\r", ""), ("\n", ""), ("\r\n", "\r\n"), ("\n", "\n\n")] {
        let text = ["x,class", "1,a", "2,a", "\"3\",b", "4,b", ""].join(newline).replacen(
            "1,a",
            &format!("1,a{blank}"),
            1,
        );
        lab.write("table.csv", &text);
        lab.imported("table.csv", &["--order", "files", "--test-fraction", "0.01"]);
        let mut lines: Vec<usize> =
            lab.from().concat().iter().map(|from| from[10..].parse().unwrap()).collect();
        lines.sort_unstable();
        let more = if newline == "\r\n" { blank.len() / 2 } else { blank.len() };
        assert_eq!(lines, [2, 3 + more, 4 + more, 5 + more], "{text:?}");
        lab.write("table.csv", text.replace("4,b", "x,b"));
        let message = lab.import("table.csv", &["--overwrite"]).unwrap_err();
        assert!(
            names_all(&message, &format!("table.csv: | line {}: | column x is \"x\"", 5 + more)),
            "{message}"
        );
    }
    let names = ["a".to_owned(), "b".into()];
    let rows = |contents: &str| {
        lab.write("rows.csv", contents);
        let mut found = Vec::new();
        let read = crate::import::reading::rows(&lab.path("rows.csv"), 2, &names, |line, row| {
            found.push((line, row.unwrap()))
        });
        read.map(|()| found).map_err(|error| error.to_string())
    };
    assert_eq!(rows("b,c,a\r\n1,2,3\r\n").unwrap(), [(2, vec![3.0, 1.0])]);
    assert_eq!(rows(",b,a\n0,1,2\n").unwrap(), [(2, vec![2.0, 1.0])]);
    assert_eq!(rows("B,c,a\n1,2,3\n").unwrap(), [(2, vec![3.0, 1.0])]);
    for contents in ["c,a\n1,2\n", "id,a,x\n1,2,3\n", "a,a,b\n1,2,3\n"] {
        let message = rows(contents).unwrap_err();
        assert!(
            names_all(&message, "rows.csv: | no column | \"b\"")
                || names_all(&message, "rows.csv: | two columns | \"a\""),
            "{contents:?}: {message}"
        );
    }
}

#[test]
fn names_of_features_tell_a_header_whatever_they_look_like() {
    let lab = Lab::new();
    let rows = |names: &[&str], contents: &str| {
        lab.write("rows.csv", contents);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let (mut good, mut bad) = (Vec::new(), 0);
        let visit = |_: u64, row: Result<Vec<f32>, DataError>| match row {
            Ok(row) => good.push(row),
            Err(_) => bad += 1,
        };
        let count = names.len().max(1);
        crate::import::reading::rows(&lab.path("rows.csv"), count, &names, visit)
            .map(|()| (good, bad))
            .map_err(|error| error.to_string())
    };
    assert_eq!(rows(&["RI", "Na"], "Na,RI\n1,2\n").unwrap(), (vec![vec![2.0, 1.0]], 0));
    assert_eq!(rows(&["0", "1", "2"], "2,1,0\n7,8,9\n").unwrap(), (vec![vec![9.0, 8.0, 7.0]], 0));
    assert_eq!(rows(&["a"], "a\n5\n").unwrap(), (vec![vec![5.0]], 0));
    assert_eq!(rows(&[], "5\n6\n").unwrap(), (vec![vec![5.0], vec![6.0]], 0));
    // A row with another number of cells is an error. The other rows are still read.
    assert_eq!(rows(&["a", "b"], "a,b\n1,2\n3\n4,5\n").unwrap(), (vec![vec![1.0, 2.0], vec![4.0, 5.0]], 1));
    let three = "1,2,3\n4,5,6\n";
    assert!(names_all(&rows(&["a"], three).unwrap_err(), "3 columns | 1 feature | remove"));
    assert!(names_all(&rows(&["a", "b", "c", "d"], three).unwrap_err(), "3 columns | 4 features | add"));
    // Features without names are found by position, so the table must have no other column.
    assert!(names_all(&rows(&[], "x,label\n4,1\n").unwrap_err(), "rows.csv: | 2 columns | 1 feature"));

    let classes = |contents: &str, options: &[&str]| {
        lab.write("table.csv", contents);
        lab.import("table.csv", &[&["--overwrite"], options].concat()).map(|imported| imported.set.classes)
    };
    assert_eq!(classes("Na,K,type\n1,2,0\n3,4,0\n5,6,1\n7,8,1\n", &["--label", "3"]).unwrap(), ["0", "1"]);
    assert_eq!(
        classes("2019,2020,kind\n1,2,0\n3,4,0\n5,6,1\n7,8,1\n", &["--label", "kind"]).unwrap(),
        ["0", "1"]
    );
    // pandas.DataFrame(x).to_csv() also writes the index.
    assert_eq!(
        classes(",0,1,2\n0,5,6,0\n1,7,8,0\n2,9,1,1\n3,2,3,1\n", &["--label", "2"]).unwrap(),
        ["0", "1"]
    );
    let message = classes("-,1.5,0\n1,2,0\n3,4,1\n", &["--label", "3"]).unwrap_err();
    assert!(names_all(&message, "table.csv: | line 1: | column 1 is \"-\" | number"), "{message}");
}

#[test]
fn a_table_is_read_in_one_way() {
    let lab = Lab::new();
    let imported = |contents: &str, options: &[&str]| {
        lab.write("table.csv", contents);
        lab.import("table.csv", &[&["--overwrite", "--order", "files"], options].concat())
    };
    for (contents, options, expected) in [
        ("x,x,class\n1,2,a\n3,4,a\n", &[][..], "table.csv: | two columns | \"x\""),
        (
            "price;w;label\n1.200;2,5;x\n950;2,7;y\n",
            &[],
            "table.csv: | line 2: | column price is \"1.200\" | --drop price",
        ),
        ("x,label\n1e39,a\n2,b\n", &[], "table.csv: | column x is 1e39 | f32"),
        ("x,label\n1e400,a\n2,b\n", &[], "table.csv: | column x is 1e400 | f32"),
        ("x,label\n2,a\ninf,b\n", &[], "table.csv: | column x is \"inf\" | not a number"),
        ("x,label\n1,a\n2,b\n", &["--size", "5"], "--size 5: | pictures | table.csv"),
        ("x,label\n1,a\n2,b\n", &["--test-split", "val"], "--test-split val: | table.csv | split"),
        ("\u{feff}x", &[], "line 1 | 1 cell, \"x\""),
    ] {
        let message = imported(contents, options).unwrap_err();
        assert!(names_all(&message, expected), "{contents:?}: {message}");
    }
    let classes = |contents: &str, options: &[&str]| imported(contents, options).unwrap().set.classes;
    assert_eq!(classes("0,1,2\n5.1,3.5,0\n4.9,3.0,1\n5,3,0\n4,3,1\n", &["--label", "3"]), ["0", "1"]);
    assert_eq!(
        classes("x,label\n1,none\n2,NA\n3,none\n4,NA\n", &["--missing-labels", "keep"]),
        ["NA", "none"]
    );
    assert_eq!(classes("x,label\n1,01\n2,1\n3,01\n4,1.0\n", &[]), ["01", "1"]);
    let header = |value| imported("1,a\n2,b\n3,a\n4,b\n", &["--label", "2", "--header", value]);
    assert_eq!(header("no").unwrap().counts.concat().iter().sum::<usize>(), 4);
    assert_eq!(header("yes").unwrap().counts.concat().iter().sum::<usize>(), 3);

    // Columns of the test table are found by name. A name that is a number does not stand for a column
    // number.
    lab.write("set/train.csv", "0,1,2,label\n1,2,3,a\n3,4,5,b\n");
    lab.write("set/test.csv", "1,5,6,label\n1,2,3,a\n");
    let message = lab.import("set", &["--overwrite"]).unwrap_err();
    let facts = "test.csv: | no column \"0\" | has 1, 5, 6, label | train.csv has 0, 1, 2, label";
    assert!(names_all(&message, facts), "{message}");
    lab.write("set/train.csv", "x,y,label\n1,2,a\n3,4,b\n");
    lab.write("set/test.csv", "label,y,x\nb,60,5\n");
    lab.write("set/val.csv", "label,y,x\nb,7,6\na,7,6\n");
    let test = |options: &[&str]| {
        lab.imported("set", options);
        let bytes = lab.data("test-images.npy");
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>()
    };
    assert_eq!(test(&[]), [5.0, 60.0]);
    assert_eq!(test(&["--test-split", "val", "--order", "files"]), [6.0, 7.0, 6.0, 7.0]);
}

#[test]
fn what_is_wrong_in_a_table_is_named_with_line_and_column() {
    let lab = Lab::new();
    for (contents, options, expected) in [
        ("x,class\n1,a\n,b\n", &[][..], "table.csv: | line 3: | column x | no value | --drop x"),
        ("x,class\n1,a\nNA,b\n", &[], "table.csv: | line 3: | column x is \"NA\" | no value | --drop x"),
        ("my x,class\nmany,b\n2,b\n", &[], "column my x is \"many\" | --drop 'my x'"),
        ("x,my class\n1,b\n2,b\n", &[], "x, my class: | --label 'my class'"),
        ("x,class\n1,a\nmany,b\n", &[], "table.csv: | line 3: | column x is \"many\" | --drop x"),
        (
            "x,kind,class\n1,train,a\n2,test,b\n",
            &[],
            "line 2: | column kind is \"train\" | train.csv and test.csv | --drop kind",
        ),
        ("x,class\n1,a\n2,\n", &[], "table.csv: | line 3: | column class | no class"),
        ("x,class\n1,a\n2\n", &[], "table.csv: | line 3: | 1 cell, | 2 cells"),
        ("x,class\n1,0.5\n2,1\n", &[], "table.csv: | line 2: | column class | 0.5 | whole number"),
        ("x,y,z\n1,2,3\n", &[], "table.csv: | which column | x, y, z: | --label z"),
        ("1,2,3\n4,5,6\n", &[], "table.csv: | columns 1 to 3, | --label 3"),
        ("x,class\n1,a\n", &["--label", "y"], "--label y: | table.csv | x, class"),
        ("x,class\n1,a\n", &["--drop", "x"], "--drop x: | no feature | besides class"),
        ("x,class\n1,a\n", &["--drop", "class"], "--drop class: | column of the class"),
        ("one column\n1\n", &[], "table.csv: | line 1 | 1 cell, \"one column\""),
        ("x,class\n", &[], "table.csv: | no rows"),
        ("", &[], "table.csv: | empty"),
        ("PK\x03\x04", &[], "table.csv: | cannot be unpacked"),
        ("x,class\n1e300,a\n2,b\n", &[], "table.csv: | line 2: | column x is 1e300 | f32"),
    ] {
        lab.write("table.csv", contents);
        let message = lab.import("table.csv", options).unwrap_err();
        assert!(names_all(&message, expected), "{contents:?}: {message}");
    }
    lab.write("set/train.csv", "x,class\n1,a\n");
    lab.write("set/test.csv", "x\n1\n");
    let message = lab.import("set", &[]).unwrap_err();
    assert!(names_all(&message, "test.csv: | no column \"class\""), "{message}");
}

#[test]
fn rows_of_separators_are_no_samples() {
    let lab = Lab::new();
    for end in [",\n,\n", " , ,\n", ",,,\n"] {
        lab.write("table.csv", format!("x,class\n1,a\n2,b\n,\n3,a\n4,b\n{end}"));
        assert_eq!(lab.imported("table.csv", &[]).counts, [[1, 1], [1, 1]], "{end:?}");
    }
    lab.write("table.csv", "x,class\n1,a\n2,b\n,a\n");
    assert!(names_all(
        &lab.import("table.csv", &["--overwrite"]).unwrap_err(),
        "line 4: | column x | no value"
    ));
}

/// The rows between two surplus quotation marks are the text of one cell.
#[test]
fn rows_in_a_cell_are_found() {
    let lab = Lab::new();
    let swallowed = |contents: &str| {
        lab.write("table.csv", contents);
        let files = TableFiles::one(&lab.path("table.csv"));
        let mut table = TableFile::open(&files, Some(Header::Yes), &[], 2, &|_, _| Ok(())).unwrap();
        let mut found = Vec::new();
        table
            .for_each_row(|table, row, _| {
                found.extend(table.swallowed(row));
                Ok(())
            })
            .unwrap();
        found
    };
    assert_eq!(swallowed("n,x,c\n\"p,1,a\nq,2,b\n\"r,3,a\ns,4,b\n"), [(0, 2)]);
    assert_eq!(swallowed("x,n,c\n1,\"p,a\n2,q,b\n3,\"r,a\n"), [(1, 2)]);
    assert_eq!(swallowed("x,n,c\r\n1,p,\"a\r\n2,q,b\r\n3,r,\"c\r\n"), [(2, 2)]);
    for end in ["", "\n", "\r\n"] {
        let never_closed = format!("x,n,c\n1,p,\"a\n2,q,b\n3,r,c{end}");
        assert_eq!(swallowed(&never_closed), [(2, 2)], "{end:?}");
    }
    // The closing quotation mark is missing in one of the last two rows.
    assert_eq!(swallowed("x,n,c\n1,p,a\n2,q,\"b\n3,r,c\n"), [(2, 1)]);
    lab.write("table.csv", "x,n,c\n1,2,a\n2,\"3,b\n");
    let message = lab.import("table.csv", &["--label", "c"]).unwrap_err();
    assert!(names_all(&message, "table.csv: line 3: | 2 cells | 3 cells | quotation mark"), "{message}");
    for text in
        ["\"a text,\nof lines\",1\n", "\"a, b, c\nd, e\nf\",1\n", "\"a, b\nc\",1\n", "\"5\"\" pipe\",1\n"]
    {
        assert_eq!(swallowed(&format!("n,c\n{text}")), [], "{text:?}");
    }
}
