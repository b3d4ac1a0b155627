//! Tests values in tables and arrays: labels, headers, names of classes, and missing values.

use parquet::data_type::{ByteArrayType, DoubleType};

use crate::Element;
use crate::error::names_all;
use crate::import::Imported;
use crate::import::tests::Lab;
use crate::import::tests::sources::{npy, npz};

/// All kinds of sources have the same words for a missing label, and the same options to deal with it.
#[test]
fn labels_that_say_that_there_is_none_are_named_left_out_or_kept() {
    let lab = Lab::new();
    for word in
        ["NA", "NaN", "nan", "?", "null", "NULL", "None", "n/a", "<NA>", "NaT", "#N/A", "#DIV/0!", "\\N"]
    {
        let rows = format!("x,class\n1,a\n2,b\n3,{word}\n4,a\n5,b\n6,{word}\n");
        lab.write("table.csv", rows);
        let message = lab.import("table.csv", &["--overwrite"]).unwrap_err();
        let expected = format!("table.csv: | line 4: | column class | {word:?} | --missing-labels drop");
        assert!(names_all(&message, &expected), "{message}");
        let Imported { set, counts } = lab.imported("table.csv", &["--missing-labels", "drop"]);
        assert_eq!((&set.classes[..], counts), (&["a".to_owned(), "b".into()][..], [vec![1, 1], vec![1, 1]]));
        let set = lab.imported("table.csv", &["--missing-labels", "keep"]).set;
        assert!(set.classes.len() == 3 && set.classes.contains(&word.to_owned()), "{:?}", set.classes);
    }
    for blank in ["", "  "] {
        lab.write("table.csv", format!("x,class\n1,a\n2,a\n3,{blank}\n"));
        for options in [&["--overwrite"][..], &["--overwrite", "--missing-labels", "keep"]] {
            let message = lab.import("table.csv", options).unwrap_err();
            assert!(
                names_all(&message, "table.csv: | line 4: | column class | no class | --missing-labels drop"),
                "{message}"
            );
            assert_eq!(message.contains("--missing-labels keep"), options.contains(&"keep"), "{message}");
        }
        assert_eq!(lab.imported("table.csv", &["--missing-labels", "drop"]).counts, [[1], [1]]);
    }
    // If a sample is left out, its features may be missing too. A table of only such samples is an error.
    lab.write("table.csv", "x,class\n,NA\n");
    let message = lab.import("table.csv", &["--overwrite", "--missing-labels", "drop"]).unwrap_err();
    assert!(names_all(&message, "table.csv: | no row | column class"), "{message}");
    // The name of a folder is always a class.
    for class in ["none", "NA"] {
        for number in [1, 2] {
            lab.picture(&format!("pets/{class}/{number}.png"), [2, 2], number);
        }
    }
    assert_eq!(lab.imported("pets", &[]).set.classes, ["NA", "none"]);
}

#[test]
fn a_test_split_whose_metadata_has_no_class_is_not_used() {
    let lab = Lab::new();
    let row = |file: String, class: &str| format!("{file},{class}\n");
    let mut all = "file_name,label\n".to_owned();
    for (split, classes) in [("train", ["a", "b"]), ("test", ["", "NA"]), ("val", ["b", "a"])] {
        let mut own = "file_name,label\n".to_owned();
        for (number, class) in classes.iter().cycle().take(4).enumerate() {
            for set in ["own", "one"] {
                lab.picture(&format!("{set}/{split}/{number}.png"), [2, 2], number as u8);
            }
            own += &row(format!("{number}.png"), class);
            all += &row(format!("{split}/{number}.png"), class);
        }
        lab.write(&format!("own/{split}/metadata.csv"), own);
    }
    lab.write("one/metadata.csv", &all);
    for set in ["own", "one"] {
        assert_eq!(lab.imported(set, &[]).counts, [[2, 2], [2, 2]], "val is tested");
        std::fs::remove_dir_all(lab.path(&format!("{set}/val"))).unwrap();
    }
    assert_eq!(lab.imported("own", &[]).counts, [[1, 1], [1, 1]], "a part of each class");
    lab.write("own/test/metadata.csv", "file_name,label\n0.png,a\n1.png,\n");
    let message = lab.import("own", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "test/metadata.csv: | line 3: | column label | no class"), "{message}");
    lab.write("own/train/metadata.csv", "file_name,label\n0.png,\n1.png,\n");
    let message = lab.import("own", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "train/metadata.csv: | line 2: | column label | no class"), "{message}");
}

#[test]
fn labels_of_parquet_may_be_missing() {
    let lab = Lab::new();
    let schema = "message m { required double x; optional double kind; optional byte_array word (STRING); }";
    let mut file = Vec::new();
    {
        use parquet::file::writer::SerializedFileWriter;
        let schema = std::sync::Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
        let mut writer = SerializedFileWriter::new(&mut file, schema, Default::default()).unwrap();
        let mut rows = writer.next_row_group().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        column.typed::<DoubleType>().write_batch(&[1.0, 2.0, 3.0, 4.0, 5.0], None, None).unwrap();
        column.close().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        let kinds = [10.0, f64::NAN, 2.0, 10.0];
        column.typed::<DoubleType>().write_batch(&kinds, Some(&[1, 1, 1, 0, 1]), None).unwrap();
        column.close().unwrap();
        let mut column = rows.next_column().unwrap().unwrap();
        let words = ["a", "b", "a", "b", "a"].map(Into::into);
        column.typed::<ByteArrayType>().write_batch(&words, Some(&[1; 5]), None).unwrap();
        column.close().unwrap();
        rows.close().unwrap();
        writer.close().unwrap();
    }
    lab.write("table.parquet", file);
    let options = ["--label", "kind", "--drop", "word"];
    let message = lab.import("table.parquet", &options).unwrap_err();
    assert!(names_all(&message, "table.parquet: | row 2: | column kind | \"NaN\" | no class"), "{message}");
    let options = [&options[..], &["--missing-labels", "drop"]].concat();
    let Imported { set, counts } = lab.imported("table.parquet", &options);
    assert_eq!((&set.classes[..], counts[0].iter().sum::<usize>()), (&["2".to_owned(), "10".into()][..], 2));
}

#[test]
fn labels_of_metadata_may_be_missing() {
    let lab = Lab::new();
    for number in 0..5 {
        lab.picture(&format!("set/{number}.png"), [2, 2], number);
    }
    let csv = "file_name,label\n0.png,10.0\n1.png,2.0\n2.png,+2\n3.png,1e1\n4.png,NA\n";
    let json = "{\"file_name\": \"0.png\", \"label\": 10.0}\n{\"file_name\": \"1.png\", \"label\": 2.0}\n\
                {\"file_name\": \"2.png\", \"label\": 2}\n{\"file_name\": \"3.png\", \"label\": 10}\n\
                {\"file_name\": \"4.png\", \"label\": null}\n";
    let lines: Vec<&str> = json.lines().collect();
    let missing_first = [&lines[4..], &lines[..4]].concat().join("\n");
    for (name, text) in
        [("metadata.csv", csv), ("metadata.jsonl", json), ("metadata.jsonl", missing_first.as_str())]
    {
        lab.write(&format!("set/{name}"), text);
        let message = lab.import("set", &["--overwrite"]).unwrap_err();
        assert!(names_all(&message, &format!("{name}: | line | column label | no class")), "{message}");
        let Imported { set, counts } = lab.imported("set", &["--missing-labels", "drop"]);
        assert_eq!(
            (&set.classes[..], counts),
            (&["2".to_owned(), "10".into()][..], [vec![1, 1], vec![1, 1]])
        );
        std::fs::remove_file(lab.path(&format!("set/{name}"))).unwrap();
    }
}

#[test]
fn metadata_without_a_class_of_a_training_picture_is_named() {
    let lab = Lab::new();
    ["flat", "set/train", "set/test"].iter().for_each(|folder| {
        (0..2).for_each(|number| lab.picture(&format!("{folder}/{number}.png"), [2, 2], number));
    });
    for (set, rows) in [
        ("set", "test/0.png,a\ntest/1.png,b\n"),
        ("set", "train/0.png,NA\ntrain/1.png,\ntest/0.png,a\ntest/1.png,b\n"),
        ("flat", "0.png,NA\n1.png,\n"),
    ] {
        lab.write(&format!("{set}/metadata.csv"), format!("file_name,label\n{rows}"));
        let message = lab.import(set, &["--missing-labels", "drop"]).unwrap_err();
        let expected = "metadata.csv: | no training picture | class";
        assert!(names_all(&message, expected), "{message}");
    }
}

#[test]
fn labels_of_arrays_may_be_missing() {
    let lab = Lab::new();
    let x = npy("|u1", &[5, 2], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let y = npy("<f4", &[5], &[10.0f32, 2.0, f32::NAN, 10.0, 2.0].map(f32::to_le_bytes).concat());
    lab.write("a.npz", npz(&[("x", x.clone()), ("y", y)]));
    let message = lab.import("a.npz", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "y.npy: | label [2] | \"NaN\" | no class"), "{message}");
    let Imported { set, counts } = lab.imported("a.npz", &["--missing-labels", "drop"]);
    assert_eq!((&set.classes[..], counts), (&["2".to_owned(), "10".into()][..], [vec![1, 1], vec![1, 1]]));
    let y = npy("<f4", &[5], &[1.0f32, 0.5, 0.0, 1.0, 0.0].map(f32::to_le_bytes).concat());
    lab.write("a.npz", npz(&[("x", x), ("y", y)]));
    let message = lab.import("a.npz", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "y.npy: | label [1] | 0.5 | whole number"), "{message}");
}

/// All tables have the same samples, but begin differently.
#[test]
fn lines_before_a_table_and_empty_columns_behind_it_are_left_out() {
    let lab = Lab::new();
    let rows = [("1.5", "2", "b"), ("-3.25", "40", "a"), ("0.5", "6", "b"), ("7", "8", "a"), ("9", "0", "b")];
    let table = |before: &str, separator: &str, end: &str| {
        let decimal = if separator == ";" { "," } else { "." };
        let row = |(x, y, class): &(&str, &str, &str)| {
            format!("{}{end}\n", [&x.replace('.', decimal), *y, *class].join(separator))
        };
        format!("{before}{}", rows.iter().map(row).collect::<String>())
    };
    let utf16 = |text: &str, bytes: fn(u16) -> [u8; 2]| {
        ['\u{feff}']
            .into_iter()
            .chain(text.chars())
            .collect::<String>()
            .encode_utf16()
            .flat_map(bytes)
            .collect::<Vec<u8>>()
    };
    let digest = |contents: &[u8]| {
        lab.write("table.csv", contents);
        let Imported { set, .. } = lab.imported("table.csv", &["--order", "files"]);
        assert_eq!(set.features, ["x", "y"], "{}", String::from_utf8_lossy(contents));
        let lines: Vec<String> = lab.from().concat();
        (set.train.sha256, lines)
    };
    let (plain, lines) = digest(table("x,y,class\n", ",", "").as_bytes());
    let first = |lines: &[String]| -> usize {
        lines.iter().map(|from| from.rsplit_once(':').unwrap().1.parse().unwrap()).min().unwrap()
    };
    assert_eq!(first(&lines), 2);
    for (contents, line) in [
        (table("sep=;\nx;y;class\n", ";", ""), 3),
        (table("\u{feff}sep=;\nx;y;class\n", ";", ""), 3),
        (table("SEP=|\nx|y|class\n", "|", ""), 3),
        (table("# by Fisher, in 1936\nx,y,class\n", ",", ""), 3),
        (table("# by Fisher\n#\nx,y,class\n", ",", ""), 4),
        (table("% units: cm\nx,y,class\n", ",", ""), 3),
        (table("// a, b, c\nx,y,class\n", ",", ""), 3),
        (table("Iris data set\nx,y,class\n", ",", ""), 3),
        (table("Iris data set,,\n,,\nx,y,class\n", ",", ""), 4),
        (table("\"Iris, a data set\"\n\nx,y,class\n", ",", ""), 4),
        (table("x,y,class\ncm,mm,\n", ",", ""), 3),
        (table("x,y,class\n(cm),[mm],(name)\n", ",", ""), 3),
        (table("x,y,class\n(cm),(g),text\n", ",", ""), 3),
        (table("Iris\nx,y,class\ncm,cm,-\n", ",", ""), 4),
        (table("x,y,class,\n", ",", ","), 2),
        (table("x,y,class,,\n", ",", ",,"), 2),
        (table("x,y,class\n", ",", ","), 2),
    ] {
        let (digest, lines) = digest(contents.as_bytes());
        assert_eq!((&digest, first(&lines)), (&plain, line), "{contents}");
    }
    let text = table("x\ty\tclass\r\n", "\t", "\r");
    for bytes in [u16::to_le_bytes, u16::to_be_bytes] {
        assert_eq!(digest(&utf16(&text, bytes)), (plain.clone(), lines.clone()));
    }
    for bytes in [text.encode_utf16().flat_map(u16::to_le_bytes).collect(), vec![0; 10240]] {
        lab.write("table.csv", bytes);
        let message = lab.import("table.csv", &["--overwrite", "--label", "1"]).unwrap_err();
        assert!(names_all(&message, "table.csv: | UTF-8 | .csv"), "{message}");
    }
}

#[test]
fn true_and_false_are_numbers_as_in_parquet() {
    let lab = Lab::new();
    lab.write("table.csv", "x,class\nTrue,a\nFALSE,a\ntrue,b\nfalse,b\n");
    lab.imported("table.csv", &["--order", "files", "--test-fraction", "0.5"]);
    let values = [lab.data("train-images.npy"), lab.data("test-images.npy")].concat();
    let is_one = values.chunks_exact(4).filter(|bytes| *bytes == 1f32.to_le_bytes()).count();
    assert_eq!((values.len(), is_one), (16, 2));
}

#[test]
fn lines_that_may_be_samples_are_not_left_out() {
    let lab = Lab::new();
    for (contents, options, expected) in [
        ("x,y,class\nmany,2,a\n3,4,b\n", &[][..], "line 2: | column x is \"many\" | --drop x"),
        ("x,y,class\ncm,cm,species\n3,4,b\n", &[], "line 2: | column x is \"cm\" | --drop x"),
        ("x,y,class\nNA,NA,\n3,4,b\n", &[], "line 2: | column class | no class"),
        ("x,y,class\n1,2,a\n# note\n", &[], "line 3: | 1 cell, | 3 cells"),
        ("x,y,class\n1,2,a,5\n", &[], "line 2: | 4 cells, | 3 cells"),
        ("x,class\n7,2,a\n9,4,b\n", &[], "line 2: | 3 cells, | 2 cells"),
        ("x,class\nm,2,a\nn,4,b\no,5\n", &[], "line 2: | 3 cells, | 2 cells"),
        ("5\n1,2,a\n3,4,b\n", &["--label", "3"], "line 1 | 1 cell, | line 2 | 3 cells"),
        ("x,y,class,\n1,2,a,\n1,2,a,7\n", &[], "line 2: | column 4 | no value"),
        ("", &[], "table.csv: | empty"),
        ("\n\n", &[], "table.csv: | empty"),
        ("one column\n1\n", &[], "line 1 | 1 cell, \"one column\""),
        ("1 1:0.5 3:2\n0 2:1\n", &[], "table.csv: | LIBSVM | .csv"),
        ("% title\n@RELATION iris\n\n@attribute x real\n@data\n1,2,a\n", &[], "table.csv: | ARFF"),
        ("{\"x\": 1, \"class\": \"a\"}\n", &[], "table.csv: | JSON | save"),
        ("[\n  {\"x\": 1}\n]\n", &[], "table.csv: | JSON | save"),
        ("x,class\n1,a\n", &["--label", "0"], "--label 0: | from 1, | table.csv | 2 columns"),
        ("x,class\n1,a\n", &["--label", "3"], "--label 3: | from 1, | table.csv | 2 columns"),
        ("x,class\n1,a\n", &["--drop", "y, z"], "--drop y: | table.csv | x, class"),
    ] {
        lab.write("table.csv", contents);
        let message = lab.import("table.csv", options).unwrap_err();
        assert!(names_all(&message, expected), "{contents:?}: {message}");
    }
    lab.write("table.csv", "x,y,z,class\n1,2,3,a\n4,5,6,a\n");
    assert_eq!(lab.imported("table.csv", &["--drop", "y, z"]).set.features, ["x"], "blanks after a comma");
    for option in ["--label", "--drop"] {
        let message = lab.import("table.csv", &["--overwrite", option, &"z".repeat(5000)]).unwrap_err();
        assert!(message.starts_with(&format!("{option} zzz")) && message.len() < 300, "{message}");
    }
    // A header of one word, and names of columns that begin like comments.
    lab.write("table.csv", "#id,x,class\n1,2,a\n4,5,a\n");
    assert_eq!(lab.imported("table.csv", &[]).set.features, ["#id", "x"]);
    // R's write.table names the rows, but not the column with their names.
    for names in [["1", "2", "3", "4"], ["Mazda RX4", "Datsun 710", "Valiant", "Merc 230"]] {
        let rows =
            names.iter().zip(["2.5,a", "4,b", "5,a", "7,b"]).map(|(name, row)| format!("\"{name}\",{row}\n"));
        lab.write("table.csv", format!("x,class\n{}", rows.collect::<String>()));
        let set = lab.imported("table.csv", &[]).set;
        assert_eq!((set.features.join(","), set.classes.join(",")), ("x".into(), "a,b".into()));
    }
    // NumPy's savetxt writes the header as a comment.
    lab.write("table.csv", "# x,y,kind\n1,2,0\n4,5,0\n");
    assert_eq!(lab.imported("table.csv", &["--label", "3"]).set.features, ["# x", "y"]);
}

#[test]
fn an_array_of_strings_names_the_classes_or_is_the_labels() {
    let lab = Lab::new();
    let strings = |words: &[&str]| {
        let letters = words.iter().flat_map(|word| word.chars().chain(std::iter::repeat('\0')).take(4));
        npy(
            "<U4",
            &[words.len()],
            &letters.flat_map(|letter| u32::from(letter).to_le_bytes()).collect::<Vec<u8>>(),
        )
    };
    let x = npy("|u1", &[4, 2], &[0, 1, 2, 3, 4, 5, 6, 7]);
    let y = npy("|u1", &[4], &[1, 0, 1, 0]);
    for name in ["class_names", "classes", "label_names", "target_names"] {
        let named = npz(&[("x", x.clone()), ("y", y.clone()), (name, strings(&["dog", "cat"]))]);
        lab.write("a.npz", named);
        let Imported { set, counts } = lab.imported("a.npz", &["--order", "files"]);
        assert_eq!(set.classes, ["dog", "cat"], "{name}");
        assert_eq!(counts, [[1, 1], [1, 1]]);
    }
    lab.write("a.npz", npz(&[("x", x.clone()), ("classes", y)]));
    assert_eq!(lab.imported("a.npz", &[]).set.classes, ["0", "1"], "labels");
    let words = ("labels", strings(&["dog", "cat", "dog", "cat"]));
    lab.write("a.npz", npz(&[("x", x.clone()), words.clone()]));
    assert_eq!(lab.imported("a.npz", &[]).set.classes, ["cat", "dog"]);
    lab.write("a.npz", npz(&[("x", x.clone()), words, ("class_names", strings(&["dog", "cat", "fox"]))]));
    assert_eq!(lab.imported("a.npz", &[]).set.classes, ["dog", "cat", "fox"]);
    lab.write("a.npz", npz(&[("x", x.clone()), ("class_names", strings(&["dog", "cat", "dog", "cat"]))]));
    assert_eq!(lab.imported("a.npz", &["--label", "class_names"]).set.classes, ["cat", "dog"]);
    lab.write("a.npz", npz(&[("x", x.clone()), ("y", npy("|b1", &[4, 1, 1], &[1, 0, 1, 0]))]));
    assert_eq!(lab.imported("a.npz", &[]).set.classes, ["0", "1"]);

    let one_hot = npy("<f8", &[4, 2], &[0.0f64; 8].map(f64::to_le_bytes).concat());
    let pixels = |values: [i64; 8]| npy("<i8", &[4, 2, 1], &values.map(i64::to_le_bytes).concat());
    let floats =
        npy("<f4", &[4, 2, 1], &[-1.0f32, 0.5, 0.0, 1.0, 0.0, 0.5, 0.0, 0.5].map(f32::to_le_bytes).concat());
    let objects = npy("|O", &[4], b"pickle");
    let labels = npy("|u1", &[4], &[0, 1, 0, 1]);
    for (x, y, expected) in [
        (&x, &one_hot, "y.npy: | 2 labels per sample | y.argmax(1)"),
        (&npy("|u1", &[0, 2, 2], &[]), &npy("|u1", &[0], &[]), "x.npy: | [0, 2, 2] | no sample"),
        (&x, &pixels([0; 8]), "y.npy: | [4, 2, 1] | one label per sample"),
        (&x, &objects, "y.npy: | dtype | |O (Python objects)"),
        (&pixels([0, 255, 9, 9, 9, 9, 9, 9]), &labels, "(x.round().astype(\"uint8\"))"),
        (&pixels([0, 1, 1, 0, 0, 0, 0, 0]), &labels, "((255 * x).round().astype(\"uint8\"))"),
        (&floats, &labels, "from -1 to 1 | ((x - x.min())"),
    ] {
        lab.write("a.npz", npz(&[("x", x.clone()), ("y", y.clone())]));
        let message = lab.import("a.npz", &["--overwrite"]).unwrap_err();
        assert!(names_all(&message, expected), "{message}");
    }
}

#[test]
fn an_imported_set_is_imported_with_its_names() {
    let lab = Lab::new();
    lab.write("table.csv", "x,y,class\n1,2,low\n3,4,low\n5,6,high\n7,8,high\n");
    let first = lab.imported("table.csv", &["--order", "files"]).set;
    std::fs::rename(lab.path("out"), lab.path("table-set")).unwrap();
    let again = lab.imported("table-set", &["--order", "files"]).set;
    assert_eq!(
        (&again.classes, &again.features, again.numbers),
        (&first.classes, &first.features, Element::F32)
    );
    assert_eq!((again.train.sha256, again.test.sha256), (first.train.sha256, first.test.sha256));
    for (class, number) in [("cat", 1), ("cat", 2), ("dog", 3), ("dog", 4)] {
        lab.picture(&format!("pets/{class}/{number}.png"), [3, 5], number);
    }
    let first = lab.imported("pets", &["--order", "files", "--size", "4", "--fit", "pad"]).set;
    std::fs::rename(lab.path("out"), lab.path("pets-set")).unwrap();
    let again = lab.imported("pets-set", &["--order", "files"]).set;
    assert_eq!(
        (again.classes, again.fit, again.train.sha256),
        (first.classes, first.fit, first.train.sha256)
    );
}
