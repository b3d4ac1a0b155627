//! Tests imports of folders with tables: which table is used, and how pictures get their classes from it.

use std::io::{Cursor, Write};

use crate::error::names_all;
use crate::import::Imported;
use crate::import::tests::Lab;

/// Writes the pictures `{class}{number}.png` of two classes into a folder.
fn pictures(lab: &Lab, folder: &str, numbers: std::ops::Range<u8>) {
    for number in numbers {
        lab.picture(&format!("{folder}/cat{number}.png"), [2, 2], number);
        lab.picture(&format!("{folder}/dog{number}.png"), [2, 2], 100 + number);
    }
}

/// Returns a table with a row for each picture that [`pictures`] writes. In `row`, `{c}` stands for the class
/// and `{n}` for the number.
fn rows(header: &str, row: &str, numbers: std::ops::Range<u8>) -> String {
    let line = |class: &str, number: u8| row.replace("{c}", class).replace("{n}", &number.to_string()) + "\n";
    let lines = ["cat", "dog"].into_iter().flat_map(|class| numbers.clone().map(move |n| (class, n)));
    std::iter::once(header.to_owned()).chain(lines.map(|(class, n)| line(class, n))).collect()
}

fn names(imported: &Imported) -> (Vec<&str>, usize) {
    let samples = imported.counts.iter().flatten().sum();
    (imported.set.classes.iter().map(String::as_str).collect(), samples)
}

#[test]
fn a_table_of_names_and_classes_beside_pictures_is_enough() {
    for (folder, file, header, row, options) in [
        ("train", "train.csv", "image_id,label\n", "{c}{n}.png,{c}", &[][..]),
        ("train", "labels.csv", "id,breed\n", "{c}{n},{c}", &[]),
        ("train", "TRAINLABELS.CSV", "id,breed\n", "train\\{c}{n}.PNG,{c}", &[]),
        ("train", "train/labels.csv", "", "{c}{n}.png,{c}", &[]),
        ("images", "labels.csv", "path;class\n", "C:\\me\\set\\images\\{c}{n}.png;{c}", &[]),
        (".", "labels.tsv", "class\tfilename\n", "{c}\t{c}{n}.png", &[]),
        (
            "deep/images",
            "deep/labels.csv",
            "width,breed,age,name\n",
            "{n},{c},3,{c}{n}",
            &["--label", "breed"],
        ),
    ] {
        let lab = Lab::new();
        pictures(&lab, &format!("set/{folder}"), 0..4);
        lab.write(&format!("set/{file}"), rows(header, row, 0..4));
        let imported = lab.imported("set", &[options, &["--order", "files"]].concat());
        assert_eq!(names(&imported), (vec!["cat", "dog"], 8), "{file}");
        for (from, label) in lab.from()[0].iter().zip(lab.labels("train")) {
            assert_eq!(from.contains("dog"), label == 1, "{file}: {from}");
        }
    }
}

#[test]
fn splits_of_listed_pictures_are_tables_or_folders() {
    let lab = Lab::new();
    // Kaggle's test pictures have no classes, and a sample submission is beside them.
    pictures(&lab, "kaggle/train", 0..5);
    pictures(&lab, "kaggle/test", 5..7);
    lab.write("kaggle/train.csv", rows("id,has_dog\n", "{c}{n},{c}", 0..5));
    lab.write("kaggle/test.csv", rows("id\n", "{c}{n}", 5..7));
    lab.write("kaggle/sample_submission.csv", rows("id,has_dog\n", "{c}{n},0.5", 5..7));
    assert_eq!(lab.imported("kaggle", &[]).counts, [[4, 4], [1, 1]]);
    // One folder has all pictures, and the tables say which split each picture belongs to.
    pictures(&lab, "tables/images", 0..5);
    lab.write("tables/train.csv", rows("image,label\n", "{c}{n}.png,{c}", 0..3));
    lab.write("tables/test.csv", rows("label,image\n", "{c},{c}{n}.png", 3..5));
    assert_eq!(lab.imported("tables", &[]).counts, [[3, 3], [2, 2]]);
    // One table lists the pictures of both folders. Some names are in both folders.
    pictures(&lab, "both/train", 0..3);
    pictures(&lab, "both/val", 0..1);
    let text = rows("file,label\n", "train/{c}{n}.png,{c}", 0..3) + &rows("", "val/{c}{n}.png,{c}", 0..1);
    lab.write("both/labels.csv", text);
    assert_eq!(lab.imported("both", &[]).counts, [[3, 3], [1, 1]]);
    lab.write("both/labels.csv", rows("file,label\n", "{c}{n}.png,{c}", 0..3));
    let message = lab.import("both", &["--overwrite"]).unwrap_err();
    assert!(
        names_all(&message, "labels.csv: | \"cat0.png\" | train/cat0.png | val/cat0.png")
            || message.contains("train/cat0.png or"),
        "{message}"
    );
}

#[test]
fn what_is_wrong_in_a_table_of_pictures_is_named() {
    let lab = Lab::new();
    pictures(&lab, "set", 0..4);
    let good = rows("name,kind\n", "{c}{n}.png,{c}", 0..4);
    for (table, options, expected) in [
        (
            good.clone() + "gone.png,cat\n",
            &[][..],
            "labels.csv: | 1 row | (line 10: \"gone.png\") | --skip-broken",
        ),
        (
            good.clone() + "cat1.png,dog\n",
            &[],
            "labels.csv: | line 10: \"cat1.png\" | \"dog\" | \"cat\" in line 3",
        ),
        (
            good.clone() + "x/../../cat1.png,dog\n",
            &[],
            "labels.csv: | line 10: | \"x/../../cat1.png\" | outside",
        ),
        (good.replace("1.png,cat", "1.png,"), &[], "labels.csv: | line 3: | column kind | no class"),
        (rows("name,a,b\n", "{c}{n}.png,{c},1", 0..4), &[], "labels.csv: | which column | a, b: | --label b"),
        (good.clone(), &["--label", "sort"], "--label sort: | labels.csv | name, kind"),
    ] {
        lab.write("set/labels.csv", &table);
        let message = lab.import("set", options).unwrap_err();
        assert!(names_all(&message, expected), "{message}");
    }
    lab.picture("far/train/cat0.png", [2, 2], 1);
    lab.write("far/labels.csv", "name,kind\nx1.png,cat\nx2.png,dog\n");
    let message = lab.import("far", &[]).unwrap_err();
    assert!(names_all(&message, "far/train: | metadata.csv | file_name and label; labels.csv "), "{message}");
    lab.write("set/labels.csv", good.clone() + "CAT1.png,cat\ngone.png,cat\n");
    assert_eq!(names(&lab.imported("set", &["--skip-broken"])), (vec!["cat", "dog"], 8), "each picture once");
}

#[test]
fn folders_of_classes_are_the_classes_beside_a_table() {
    let lab = Lab::new();
    pictures(&lab, "set/a", 0..4);
    pictures(&lab, "set/b", 0..4);
    // A table of notes does not matter. A table with other classes than the folders is an error.
    lab.write("set/notes.csv", rows("path,sharp,by\n", "a/{c}{n}.png,{n},me", 0..4));
    assert_eq!(names(&lab.imported("set", &[])), (vec!["a", "b"], 16));
    let both =
        |row: &str| rows("path,species\n", &format!("a/{row}"), 0..4) + &rows("", &format!("b/{row}"), 0..4);
    lab.write("set/notes.csv", both("{c}{n}.png,{c}"));
    let message = lab.import("set", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "notes.csv: | column \"species\" | folders | --label species"), "{message}");
    assert_eq!(names(&lab.imported("set", &["--label", "species"])), (vec!["cat", "dog"], 16));
    // The folders of classes are in a folder beside the table.
    lab.write("around/notes.csv", both("{c}{n}.png,{c}").replace("species", "kind"));
    std::fs::rename(lab.path("set"), lab.path("around/set")).unwrap();
    std::fs::remove_file(lab.path("around/set/notes.csv")).unwrap();
    assert_eq!(names(&lab.imported("around", &[])), (vec!["a", "b"], 16));
    assert_eq!(names(&lab.imported("around", &["--label", "kind"])), (vec!["cat", "dog"], 16));
    std::fs::rename(lab.path("around/set"), lab.path("set")).unwrap();
    // A table of features has a column of numbers that looks like names of pictures.
    let numbers = |number: u8| lab.picture(&format!("leaves/images/{number}.png"), [2, 2], number);
    (0..8).for_each(numbers);
    let row =
        |number: u8| format!("{number},{},0.5,{}\n", number * 3, if number < 4 { "oak" } else { "elm" });
    lab.write(
        "leaves/train.csv",
        "id,margin,texture,species\n".to_owned() + &(0..8).map(row).collect::<String>(),
    );
    assert_eq!(lab.imported("leaves", &["--drop", "id"]).set.features, ["margin", "texture"]);
    assert_eq!(lab.imported("leaves", &[]).set.features.len(), 3);
    // A log beside pictures is not mistaken for a list of the pictures.
    lab.write("set/notes.csv", "epoch,loss,class\n0,0.5,a\n1,0.25,b\n");
    assert_eq!(names(&lab.imported("set", &[])), (vec!["a", "b"], 16));
}

#[test]
fn folders_that_differ_in_a_number_are_not_the_classes_beside_a_table() {
    let lab = Lab::new();
    pictures(&lab, "set/part_1", 0..4);
    pictures(&lab, "set/part_2", 4..8);
    lab.write("set/notes.csv", rows("id,dx,age\n", "{c}{n},{c},{n}", 0..8));
    let message = lab.import("set", &[]).unwrap_err();
    assert!(names_all(&message, "notes.csv: | a number (part_1, part_2) | --label (dx, age)"), "{message}");
    assert_eq!(names(&lab.imported("set", &["--label", "dx"])), (vec!["cat", "dog"], 16));
}

#[test]
fn metadata_is_read_as_windows_and_macos_write_it() {
    let lab = Lab::new();
    for name in ["a/x.png", "a/y.png", "b/\u{fc}.png", "b/z.png"] {
        lab.picture(&format!("set/{name}"), [2, 2], name.len() as u8);
    }
    let text =
        "file_name,age,label\na\\x.png,1,p\nA/Y.PNG,2,p\nb\\u\u{308}.png,3,q\nb/z.png,4,q\nb\\z.png,4,q\n";
    lab.write("set/METADATA.CSV", text);
    assert_eq!(names(&lab.imported("set", &["--order", "files"])), (vec!["p", "q"], 4));
    assert!(lab.from().concat().contains(&"b/\u{fc}.png".to_owned()), "{:?}", lab.from());
    lab.write("set/METADATA.CSV", text.replace("b\\z.png,4,q", "b\\z.png,4,p"));
    let message = lab.import("set", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "METADATA.CSV: | b/z.png | twice | \"q\" | \"p\""), "{message}");
    // The only column beside the names is the class, unless the folders are the classes.
    lab.write("set/METADATA.CSV", "file_name,text\na/x.png,p\na/y.png,q\nb/z.png,r\n");
    assert_eq!(names(&lab.imported("set", &[])), (vec!["a", "b"], 4));
    pictures(&lab, "flat", 0..4);
    lab.write("flat/metadata.csv", rows("file_name,breed,age\n", "{c}{n}.png,{c},{n}", 0..4));
    let message = lab.import("flat", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "metadata.csv: | which column | breed, age: | --label breed"), "{message}");
    assert_eq!(names(&lab.imported("flat", &["--label", "breed"])), (vec!["cat", "dog"], 8));
    lab.write("flat/metadata.csv", rows("file_name,breed\n", "{c}{n}.png,{c}", 0..4));
    assert_eq!(names(&lab.imported("flat", &[])), (vec!["cat", "dog"], 8));
}

const TABLE: &str = "x,y,class\n1,2,a\n3,4,a\n5,6,b\n7,8,b\n";

#[test]
fn the_only_table_is_taken_and_several_are_named() {
    let lab = Lab::new();
    lab.write("one/iris.CSV", TABLE);
    for name in ["README.md", "LICENSE", "iris.names", "iris.xlsx", "docs/deep/a.txt"] {
        lab.write(&format!("one/{name}"), "text");
    }
    assert_eq!(names(&lab.imported("one", &[])), (vec!["a", "b"], 4));
    lab.write("one/b.csv", TABLE);
    let message = lab.import("one", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "/one: | 2 tables (b.csv, iris.CSV): | mpiburn data import "), "{message}");
    assert!(message.contains("/one/b.csv --out "), "{message}");
    for (folder, train, test) in [
        ("capitals", "TRAIN.CSV", "Test.Csv"),
        ("mnist", "mnist_train.csv", "mnist_test.csv"),
        ("folders", "sign_train/sign_train.csv", "sign_test/sign_test.csv"),
        ("sets", "training_set.csv", "test_set.csv"),
    ] {
        lab.write(&format!("{folder}/{train}"), TABLE);
        lab.write(&format!("{folder}/{test}"), "x,y,class\n9,9,a\n");
        assert_eq!(lab.imported(folder, &[]).counts, [[2, 2], [1, 0]], "{folder}");
    }
    for name in ["x_train", "y_train", "x_test", "y_test"] {
        lab.write(&format!("halves/{name}.csv"), TABLE);
    }
    let message = lab.import("halves", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "/halves: | x_train.csv and y_train.csv"), "{message}");
    lab.write("plot/iris.csv", TABLE);
    lab.picture("plot/plot.png", [2, 2], 1);
    let message = lab.import("plot", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "/plot: | 1 picture (plot.png) | class folders | iris.csv"), "{message}");
    assert!(names_all(&message, "mpiburn data import | /plot/iris.csv --out"), "{message}");
    // The source contains two data sets in folders.
    lab.write("sets2/coarse/train.csv", TABLE);
    lab.write("sets2/fine/train.csv", TABLE);
    let message = lab.import("sets2", &["--overwrite"]).unwrap_err();
    assert!(
        names_all(&message, "/sets2: | 2 data sets | (coarse, fine): | mpiburn data import "),
        "{message}"
    );
}

/// A test table whose column of classes is empty is used like a table without that column.
#[test]
fn a_test_table_with_an_empty_column_of_classes_is_left_to_predict() {
    let lab = Lab::new();
    lab.write("set/train.csv", "x,y,class\n1,2,a\n2,2,a\n3,1,b\n4,1,b\n");
    lab.write("set/test.csv", "x,y,class\n1,2,\n3,1,\n");
    for how in ["drop", "error"] {
        let message = lab.import("set", &["--missing-labels", how]).unwrap_err();
        let expected =
            "test.csv: | no row | column class | import train.csv alone | predict test.csv (mpiburn";
        assert!(names_all(&message, expected), "{message}");
    }
    pictures(&lab, "pets/train", 0..4);
    ["1", "2"].iter().for_each(|name| lab.picture(&format!("pets/test/{name}.png"), [2, 2], 200));
    lab.write("pets/train.csv", rows("id,kind\n", "{c}{n}.png,{c}", 0..4));
    lab.write("pets/test.csv", "id,kind\n1,\n2,\n");
    let imported = lab.imported("pets", &["--missing-labels", "drop"]);
    assert_eq!(imported.counts, [[3, 3], [1, 1]]);
    assert!(lab.from().concat().iter().all(|from| from.starts_with("train/")));
    assert_eq!(lab.imported("pets", &[]).counts, [[3, 3], [1, 1]]);
    pictures(&lab, "pets/val", 8..9);
    lab.write("pets/val.csv", rows("id,kind\n", "{c}{n}.png,{c}", 8..9));
    assert_eq!(lab.imported("pets", &[]).counts, [[4, 4], [1, 1]]);
}

#[test]
fn a_test_table_without_classes_is_left_to_predict() {
    let lab = Lab::new();
    let header: Vec<String> = (0..784).map(|number| format!("pixel{number}")).collect();
    let row = ["0"; 784].join(",");
    lab.write("wide/train.csv", format!("label,{}\n1,{row}\n2,{row}\n", header.join(",")));
    lab.write("wide/test.csv", format!("{}\n{row}\n", header.join(",")));
    let message = lab.import("wide", &[]).unwrap_err();
    assert!(
        names_all(&message, "test.csv: | no column \"label\" | import train.csv alone | predict test.csv"),
        "{message}"
    );
    assert!(message.contains("wide/train.csv --out ") && message.len() < 600, "{message}");
    lab.write("wide/val.csv", format!("label,{}\n1,{row}\n", header.join(",")));
    let message = lab.import("wide", &["--test-split", "test"]).unwrap_err();
    assert!(names_all(&message, "import train.csv alone | predict test.csv"), "{message}");
    lab.imported("wide", &[]);
    assert_eq!(lab.from()[1], ["val.csv:2"]);
    // Names of columns in another spelling, and a name that fits two columns.
    lab.write("names/train.csv", "x,y,class\n1,2,a\n2,2,a\n3,1,b\n");
    lab.write("names/test.csv", "Class, Y,X\na,20,10\n");
    let imported = lab.imported("names", &["--order", "files"]);
    assert_eq!((imported.set.features.join(","), imported.counts), ("x,y".into(), [vec![2, 1], vec![1, 0]]));
    assert_eq!(lab.data("test-images.npy"), [10f32, 20.0].map(f32::to_le_bytes).concat());
    for (header, expected) in [
        ("class,Y,y ,X", None),
        ("class,Y,YY,X", None),
        (
            "class,Y,\"Y \",X",
            Some("test.csv: | no column \"y\" | has class, Y, Y, X | train.csv has x, y, class"),
        ),
        ("class,z,w,X", Some("test.csv: | no column \"y\" | has class, z, w, X | train.csv has x, y, class")),
    ] {
        lab.write("names/test.csv", format!("{header}\na,20,20,10\n"));
        match (lab.import("names", &["--overwrite"]), expected) {
            (Ok(_), None) => {}
            (Err(message), Some(expected)) => assert!(names_all(&message, expected), "{message}"),
            (found, _) => panic!("{header}: {found:?}"),
        }
    }
    // The tables have no header.
    lab.write("bare/train.csv", "1,2,0\n3,4,0\n5,6,1\n");
    lab.write("bare/test.csv", "1,2\n3,4\n");
    let message = lab.import("bare", &["--overwrite", "--label", "3"]).unwrap_err();
    assert!(names_all(&message, "test.csv: | no column \"3\""), "{message}");
}

#[test]
fn zips_of_windows_and_macos_have_folders_and_names() {
    let lab = Lab::new();
    pictures(&lab, "set", 0..4);
    let zip = |entries: &[(&str, &str)], options: zip::write::SimpleFileOptions| {
        let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (entry, source) in entries {
            archive.start_file(*entry, options).unwrap();
            archive.write_all(&std::fs::read(lab.path(source)).unwrap()).unwrap();
        }
        archive.finish().unwrap().into_inner()
    };
    let plain = zip::write::SimpleFileOptions::default();
    let entries = [
        ("p\\caf\u{e9}\\0.png", "set/cat0.png"),
        ("p\\caf\u{e9}\\1.png", "set/cat1.png"),
        ("p\\dog\\0.png", "set/dog0.png"),
        ("p\\dog\\1.png", "set/dog1.png"),
        ("..\\..\\out.png", "set/dog1.png"),
    ];
    let mut bytes = zip(&entries, plain);
    lab.write("windows.zip", &bytes);
    assert_eq!(names(&lab.imported("windows.zip", &[])), (vec!["caf\u{e9}", "dog"], 4));
    // macOS writes names in UTF-8 without setting the flag for it in the headers of the entries.
    for magic in [&b"PK\x03\x04"[..], b"PK\x01\x02"] {
        let flags = if magic[2] == 3 { 6 } else { 8 };
        let headers: Vec<usize> = (0..bytes.len() - 4).filter(|&at| &bytes[at..at + 4] == magic).collect();
        headers.into_iter().for_each(|at| bytes[at + flags + 1] &= !8);
    }
    lab.write("macos.zip", &bytes);
    assert_eq!(names(&lab.imported("macos.zip", &[])), (vec!["caf\u{e9}", "dog"], 4));
    // The first flag says that the entry is encrypted.
    let headers: Vec<usize> =
        (0..bytes.len() - 4).filter(|&at| &bytes[at..at + 4] == b"PK\x01\x02").collect();
    headers.into_iter().for_each(|at| bytes[at + 8] |= 1);
    lab.write("secret.zip", &bytes);
    let message = lab.import("secret.zip", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "secret.zip: | encrypted | password"), "{message}");
    // An archive with two tables.
    lab.write("a.csv", TABLE);
    lab.write("two.zip", zip(&[("a.csv", "a.csv"), ("b.csv", "a.csv")], plain));
    let message = lab.import("two.zip", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "two.zip: | 2 tables (a.csv, b.csv): | unpack two.zip"), "{message}");
}
