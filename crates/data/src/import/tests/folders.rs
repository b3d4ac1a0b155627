//! Tests imports of pictures in folders, as people, tools and competitions lay them out.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::symlink;

use crate::error::names_all;
use crate::import::tests::Lab;
use crate::import::tests::parquet::table;
use crate::import::tests::sources::{npy, npz};

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        WARNINGS.with_borrow_mut(|warnings| warnings.push(record.args().to_string()));
    }

    fn flush(&self) {}
}

/// Returns what this thread logs while `run` runs.
fn logged<T>(run: impl FnOnce() -> T) -> (T, String) {
    // Another test may have set the logger already.
    let _ = log::set_logger(&Recorder);
    log::set_max_level(log::LevelFilter::Info);
    WARNINGS.take();
    let value = run();
    (value, WARNINGS.take().join("\n"))
}

/// Returns a folder with these pictures, all of them different.
fn lab(pictures: &[&str]) -> Lab {
    let lab = Lab::new();
    for (number, name) in pictures.iter().enumerate() {
        if name.ends_with('/') {
            fs::create_dir_all(lab.path("in").join(name)).unwrap();
        } else if name.ends_with("g") {
            lab.picture(&format!("in/{name}"), [2, 3], number as u8);
        } else {
            lab.write(&format!("in/{name}"), "x");
        }
    }
    lab
}

/// The search for the extensions of tables must not split a letter of several bytes. The names have such a
/// letter at each distance from their end.
#[test]
fn names_of_pictures_have_any_letters() {
    let names: Vec<String> = ["é", "猫", "🐈"]
        .iter()
        .flat_map(|letter| (0..8).map(move |digits| format!("{letter}{}.png", &"1234567"[..digits])))
        .collect();
    for folders in [["in/a", "in/b"], ["in/train/a", "in/train/b"]] {
        let lab = Lab::new();
        for (folder, at) in folders.iter().zip([0, 100]) {
            names
                .iter()
                .zip(at..)
                .for_each(|(name, red)| lab.picture(&format!("{folder}/{name}"), [2, 3], red));
        }
        let counts = lab.imported("in", &[]).counts;
        assert_eq!(counts.iter().flatten().sum::<usize>(), 2 * names.len());
    }
}

/// Folders inside the folders of classes are reported if they are splits or data sets, or if all classes have
/// the same inner folders.
#[test]
fn splits_and_data_sets_in_the_folders_of_classes_are_named() {
    let sets =
        ["animals", "birds"].map(|set| ["train/a", "train/b", "test/a"].map(|f| format!("{set}/{f}/1.png")));
    let message =
        lab(&sets.concat().iter().map(String::as_str).collect::<Vec<_>>()).import("in", &[]).unwrap_err();
    assert!(names_all(&message, "/in: | several data sets | splits | animals, birds"), "{message}");
    let one = [&sets[0][..], &["other/x/1.png".to_owned(), "other/y/1.png".into()]].concat();
    let message = lab(&one.iter().map(String::as_str).collect::<Vec<_>>()).import("in", &[]).unwrap_err();
    assert!(names_all(&message, "/in: | a data set | folder animals: | in/animals"), "{message}");
    for (folders, expected) in [
        (["a/train", "a/test", "b/train", "b/test"], "a | test, train | a/test | test/a"),
        (["a/2020", "a/2021", "b/2020", "b/2021"], "classes are a, b; | 2020, 2021"),
        (["in/a/x", "in/a/y", "in/b/x", "in/b/y"], "classes are a, b; | x, y"),
        (["a/train", "a/station", "b/train", "b/station"], "classes are a, b; | station, train"),
        (["a/x", "a/y", "b/x", "b/z"], ""),
        (["a/x", "a/x/y", "b/x", "b/x/y"], ""),
        (["train/a/x", "train/a/y", "train/b/x", "test/a/y"], ""),
        (["train/a/x", "train/a/y", "train/b/x", "train/b/y"], "classes are a, b; | x, y"),
    ] {
        let pictures: Vec<String> =
            folders.iter().flat_map(|folder| [1, 2].map(|number| format!("{folder}/{number}.png"))).collect();
        let lab = lab(&pictures.iter().map(String::as_str).collect::<Vec<_>>());
        let (imported, log) = logged(|| lab.imported("in", &[]));
        assert_eq!(imported.set.classes, ["a", "b"], "{folders:?}");
        match expected {
            "" => assert!(!log.contains("mixed"), "{folders:?}: {log}"),
            _ => assert!(names_all(&log, expected), "{folders:?}: {log}"),
        }
    }
}

#[test]
fn a_folder_of_other_files_is_no_folder_of_pictures() {
    let message = lab(&["iris.data", "iris.names"]).import("in", &["--label", "5"]).unwrap_err();
    assert!(names_all(&message, "/in: | no data set | iris.data | iris.names"), "{message}");
    let message = lab(&["a/1.png", "b/1.png"]).import("in", &["--label", "5"]).unwrap_err();
    assert!(names_all(&message, "--label 5: | tables and arrays | /in "), "{message}");
}

/// However many classes have a problem, there is one line for each kind of problem.
#[test]
fn classes_without_samples_in_a_split_are_named_together() {
    let trained = (0..40).map(|class| format!("train/c{class}/1.png"));
    let tested = ["c0", "new1", "new2"].map(|class| format!("test/{class}/2.png"));
    let pictures: Vec<String> = trained.chain(tested).collect();
    let lab = lab(&pictures.iter().map(String::as_str).collect::<Vec<_>>());
    let (_, log) = logged(|| lab.imported("in", &[]));
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("classes have ")).collect();
    let [learned, tested] = lines[..] else { panic!("{log}") };
    assert!(learned.starts_with("2 classes ") && learned.ends_with(": new1, new2"), "{log}");
    assert!(
        names_all(tested, "39 classes | no test sample | : c1, c10, ") && tested.ends_with("… (39 in all)"),
        "{log}"
    );
}

/// A column of splits must name a split in each row.
#[test]
fn a_table_of_pictures_may_name_their_splits() {
    let rows = |splits: [&str; 6]| -> String {
        let row = |(at, split): (usize, &&str)| format!("{},{},{split}\n", at + 1, ["a", "b"][at % 2]);
        format!("id,label,set\n{}", splits.iter().enumerate().map(row).collect::<String>())
    };
    for (folder, splits, options, tested) in [
        ("images", ["train", "train", "train", "train", "Test", "Test"], &[][..], Some([5, 6])),
        ("train", ["train", "train", "train", "train", "Test", "Test"], &[], Some([5, 6])),
        ("images", ["train", "train", "test", "test", "valid", "valid"], &[], Some([3, 4])),
        (
            "images",
            ["train", "train", "valid", "train", "test", "valid"],
            &["--test-split", "valid"],
            Some([3, 6]),
        ),
        ("images", ["train", "train", "train", "train", "test", ""], &[], None),
        ("images", ["train", "train", "train", "train", "train", "train"], &[], None),
    ] {
        let name = |number: usize| format!("{folder}/{number}.png");
        let names: Vec<String> = (1..=6).map(name).collect();
        let lab = lab(&names.iter().map(String::as_str).collect::<Vec<_>>());
        lab.write("in/labels.csv", rows(splits));
        let (_, log) = logged(|| lab.imported("in", options));
        assert_eq!(
            names_all(&log, "labels.csv: | column set | split of each"),
            tested.is_some(),
            "{splits:?}: {log}"
        );
        let [_, mut found] = lab.from();
        found.sort();
        assert!(tested.is_none_or(|tested| found == tested.map(name)), "{splits:?}: {found:?}");
    }
}

#[test]
fn splits_are_found_whatever_they_are_called() {
    for (pictures, test, expected) in [
        (
            &["training_set/a/1.png", "training_set/b/1.png", "test_set/a/1.png"][..],
            "test_set",
            "test_set/a/1.png",
        ),
        (
            &[
                "seg_train/seg_train/a/1.png",
                "seg_train/seg_train/b/1.png",
                "seg_test/seg_test/b/1.png",
                "seg_pred/seg_pred/1.png",
            ],
            "test",
            "seg_test/seg_test/b/1.png",
        ),
        (&["TRAIN/a/1.png", "TRAIN/b/1.png", "TEST/a/1.png", "TEST_SIMPLE/a/1.png"], "TEST", "TEST/a/1.png"),
        (
            &["train2017/a/1.png", "train2017/b/1.png", "val2017/a/1.png", "annotations/x.json"],
            "val",
            "val2017/a/1.png",
        ),
        (
            &["train/images/a/1.png", "train/images/b/1.png", "val/images/a/1.png"],
            "val",
            "val/images/a/1.png",
        ),
        (
            &["x/training-images/a/1.png", "x/training-images/b/1.png", "x/eval/a/1.png"],
            "eval",
            "eval/a/1.png",
        ),
        // Classes may have the names of splits.
        (&["train/test/1.png", "train/val/1.png", "holdout/test/1.png"], "holdout", "holdout/test/1.png"),
    ] {
        let lab = lab(pictures);
        for options in [&[][..], &["--test-split", test]] {
            let set = lab.imported("in", options).set;
            assert_eq!(
                (set.classes.len(), &lab.from()[1][..]),
                (2, &[expected.to_owned()][..]),
                "{pictures:?}"
            );
        }
    }
}

#[test]
fn classes_may_be_called_as_splits_are() {
    for (pictures, classes) in [
        (&["train/1.png", "train/2.png", "bus/1.png"][..], &["bus", "train"][..]),
        (&["test/1.png", "test/2.png", "control/1.png"], &["control", "test"]),
        (&["test_tube/1.png", "test_tube/2.png", "train_station/1.png"], &["test_tube", "train_station"]),
        (&["images/1.png", "images/2.png", "drawings/1.png"], &["drawings", "images"]),
        (&["sample1/1.png", "sample1/2.png", "sample2/1.png"], &["sample1", "sample2"]),
    ] {
        assert_eq!(lab(pictures).imported("in", &[]).set.classes, classes, "{pictures:?}");
    }
}

#[test]
fn splits_without_classes_are_an_error_that_says_what_is_missing() {
    let no_class = "class folder";
    let boxes = "(COCO, YOLO, VOC)";
    let no_train = "no folder train";
    for (pictures, expected) in [
        (
            &["train/cat.0.png", "train/cat.1.png", "train/dog.0.png", "train/dog.1.png", "test1/1.png"][..],
            &["in/train: 4 pictures (cat.0.png, …)", no_class, "cat, dog)"][..],
        ),
        (&["train/1.png", "train/2.png", "labels.csv"], &["in/train: 2 pictures", no_class]),
        (
            &["train2017/1.png", "val2017/2.png", "annotations/a.json"],
            &["in/train2017: 1 picture (1.png)", no_class, boxes],
        ),
        (
            &["train/images/1.png", "train/labels/1.txt", "valid/images/2.png", "data.yaml"],
            &["in/train/images: 1 picture", no_class, boxes],
        ),
        (&["train/1.png", "train/_annotations.coco.json", "valid/2.png"], &["in/train: 1 picture", boxes]),
        (
            &["images/train/1.png", "images/val/2.png", "labels/train/1.txt"],
            &["in/images/train: 1 picture", no_class],
        ),
        (&["images/1.png", "masks/1.png"], &["in/images: 1 picture", no_class, boxes]),
        (
            &["cars_train/cars_train/1.png", "cars_test/cars_test/2.png"],
            &["in/cars_train/cars_train: 1 picture", no_class],
        ),
        (&["train/1.png", "test/1.png", "unlabeled/1.png"], &["in/train: 1 picture", no_class]),
        (&["train/1.png", "val/a/1.png", "val/b/1.png"], &["in/train: 1 picture", no_class]),
        (&["train/", "val/a/1.png", "val/b/1.png"], &["in/train: ", "training split", "no pictures"]),
        (&["test/1.png", "val/2.png"], &["/in: ", "test, val", no_train]),
        (&["images/cat_1.png", "annotations/trimaps/1.png"], &["in/images: 1 picture", no_class, boxes]),
        (
            &["images/a/1.png", "images/b/1.png", "masks/a/1.png"],
            &["images, masks ", "not classes", "in/images if"],
        ),
    ] {
        let message = lab(pictures).import("in", &[]).unwrap_err();
        assert!(expected.iter().all(|words| message.contains(words)), "{pictures:?}: {message}");
    }
}

#[test]
fn the_test_split_is_the_one_with_the_classes_of_the_training_split() {
    let train = ["train/cat/1.png", "train/cat/2.png", "train/dog/1.png", "train/dog/2.png"];
    let with = |others: &[&str]| lab(&[&train[..], others].concat());
    for (others, words, test) in [
        (
            &["test/images/1.png", "val/cat/1.png"][..],
            "test is not used: | class | has images | has cat, dog",
            &["val/cat/1.png"][..],
        ),
        (
            &["test/1.png", "test/2.png", "val/cat/1.png"],
            "test is not used: | 2 pictures | class folder",
            &["val/cat/1.png"],
        ),
        (&["test/", "val/cat/1.png"], "test is not used: | no pictures", &["val/cat/1.png"]),
        (&["test/cat/", "test/dog/"], "test is not used: | no pictures", &[]),
        (&["test/1.png"], "test is not used: | picture | class folder", &[]),
        (&["test/cat/1.png", "val/cat/2.png"], "val is not used: | --test-split val", &["test/cat/1.png"]),
    ] {
        let lab = with(others);
        let (_, logged) = logged(|| lab.imported("in", &[]));
        assert!(names_all(&logged, words), "{others:?}: {logged}");
        assert!(test.is_empty() || lab.from()[1] == test, "{others:?}: {:?}", lab.from()[1]);
    }
    for (others, options, expected) in [
        (&["test/images/1.png"][..], &[][..], "/in: | test split | has images | has cat, dog"),
        (&["test/images/1.png", "val/cat/1.png"], &["--test-split", "test"], "has images | has cat, dog"),
        (
            &["test/Cat/1.png", "test/dog/1.png"],
            &[],
            "\"Cat\" (test split) | \"cat\" (training split) | capital letters",
        ),
        (
            &["test/Cat/1.png", "val/cat/1.png"],
            &[],
            "\"Cat\" (test split) | \"cat\" (training split) | capital letters",
        ),
        (&["train/Dog/1.png"], &[], "\"Dog\" | \"dog\" | capital letters"),
        (&["train/caf\u{e9}/1.png", "train/cafe\u{301}/1.png"], &[], "caf\\u{e9} | cafe\\u{301} | Unicode"),
    ] {
        let message = with(others).import("in", options).unwrap_err();
        assert!(names_all(&message, expected), "{others:?}: {message}");
    }
    // In tables and arrays too, names of classes must not differ only in capital letters.
    let lab = Lab::new();
    lab.write("t/train.csv", "x,class\n1,a\n2,bee\n");
    lab.write("t/test.csv", "x,class\n1,Bee\n2,a\n");
    let message = lab.import("t", &[]).unwrap_err();
    assert!(
        names_all(&message, "\"Bee\" (test split) | \"bee\" (training split) | capital letters"),
        "{message}"
    );
}

/// Writes a training split with the classes a and b, a test split with the classes `test`, and a split `val`
/// with the class a. If `test` is `None`, the test split has no column or array of labels.
fn split_in_three(kind: &str, test: Option<[&str; 2]>) -> Lab {
    let lab = Lab::new();
    let splits = [("train", Some(["a", "b"])), ("test", test), ("val", Some(["a", "a"]))];
    let mut arrays = Vec::new();
    for (split, labels) in splits {
        match kind {
            "csv" => {
                let rows = (0..2).map(|row| match labels {
                    Some(labels) => format!("{row}.5,{}\n", labels[row]),
                    None => format!("{row}.5\n"),
                });
                let header = if labels.is_some() { "x,class" } else { "x" };
                lab.write(&format!("in/{split}.csv"), format!("{header}\n{}", rows.collect::<String>()));
            }
            "parquet" => {
                lab.write(
                    &format!("in/{split}/0.parquet"),
                    table(&[0.5, 1.5], labels.as_ref().map(|l| &l[..])),
                );
            }
            "table of pictures" => {
                let mut table = "id,class\n".to_owned();
                for (number, label) in labels.iter().flatten().enumerate() {
                    lab.picture(&format!("in/{split}/{split}{number}.png"), [2, 2], number as u8);
                    table += &format!("{split}{number},{label}\n");
                }
                lab.write(&format!("in/{split}.csv"), table);
            }
            _ => {
                arrays.push((format!("x_{split}"), npy("|u1", &[2, 1], &[1, 2])));
                let labels = labels.map(|labels| npy("|S1", &[2], labels.concat().as_bytes()));
                arrays.extend(labels.map(|labels| (format!("y_{split}"), labels)));
            }
        }
    }
    match kind {
        "npz" => {
            let arrays: Vec<(&str, Vec<u8>)> =
                arrays.iter().map(|(name, bytes)| (&**name, bytes.clone())).collect();
            lab.write("in/all.npz", npz(&arrays));
            fs::rename(lab.path("in/all.npz"), lab.path("all.npz")).unwrap();
            fs::remove_dir(lab.path("in")).unwrap();
            fs::rename(lab.path("all.npz"), lab.path("in")).unwrap();
        }
        _ => arrays.iter().for_each(|(name, bytes)| lab.write(&format!("in/{name}.npy"), bytes)),
    }
    lab
}

#[test]
fn the_test_split_has_a_known_class_whatever_the_source() {
    for kind in ["csv", "parquet", "table of pictures", "npy", "npz"] {
        for (test, words) in [
            (Some(["c", "d"]), "test is not used: | class | has c, d | has a, b"),
            (None, "test is not used: | with a class"),
            (Some(["c", "b"]), "val is not used: | --test-split val"),
        ] {
            let lab = split_in_three(kind, test);
            let (imported, logged) = logged(|| lab.imported("in", &[]));
            // For a table of pictures without test labels, `split_in_three` writes no test pictures, so
            // nothing is reported.
            assert!(
                names_all(&logged, words) || kind == "table of pictures" && test.is_none(),
                "{kind}: {logged}"
            );
            let is_val = test.is_none_or(|test| test[1] == "d");
            let classes: &[&str] = if is_val { &["a", "b"] } else { &["a", "b", "c"] };
            assert_eq!(imported.set.classes, classes, "{kind}, {test:?}");
            let tested = if is_val { "val" } else { "test" };
            assert!(lab.from()[1].iter().all(|from| from.contains(tested)) || kind == "parquet", "{kind}");
            assert!(logged.contains(&format!("the test split is {tested}")), "{kind}: {logged}");
        }
        let lab = split_in_three(kind, Some(["c", "d"]));
        let message = lab.import("in", &["--test-split", "test"]).unwrap_err();
        assert!(names_all(&message, "test split | has c, d | has a, b"), "{kind}: {message}");
    }
}

#[test]
fn a_training_split_that_may_be_a_class_is_an_error() {
    let message =
        lab(&["train/1.png", "train/deep/2.png", "cat/3.png", "dog/4.png"]).import("in", &[]).unwrap_err();
    assert!(
        names_all(&message, "in/train: | training split | pictures (1.png, …) | folders (deep) | (cat, dog)"),
        "{message}"
    );
    let message = lab(&["train/deep/1.png", "train/deep/2.png", "cat/3.png", "dog/4.png"])
        .import("in", &[])
        .unwrap_err();
    assert!(
        names_all(&message, "in/train: | training split | one folder of pictures (deep) | (cat, dog)"),
        "{message}"
    );
    // A stray picture beside the classes in the training split does not matter. A folder `train` with
    // pictures, beside another class, is a class.
    for (pictures, classes, stray) in [
        (
            &["train/1.png", "train/cat/2.png", "train/dog/3.png", "test/cat/4.png", "more/5.png"][..],
            ["cat", "dog"],
            "1 picture | train/1.png",
        ),
        (
            &["train/1.png", "train/cat/2.png", "train/cat/5.png", "train/dog/3.png", "masks/4.png"],
            ["cat", "dog"],
            "1 picture | train/1.png",
        ),
        (&["train/1.png", "train/2.png", "dog/3.png", "dog/4.png"], ["dog", "train"], ""),
    ] {
        let (imported, log) = logged(|| lab(pictures).imported("in", &[]));
        assert_eq!(imported.set.classes, classes);
        assert!(names_all(&log, stray), "{log}");
    }
}

#[test]
fn files_without_an_extension_of_pictures_are_left_out() {
    let (_, log) = logged(|| lab(&["a/1.png", "a/2.png", "b/1.png", "b/c.dat", "b/x"]).imported("in", &[]));
    assert!(names_all(&log, "extension .dat | b/c.dat | no extension | b/x | .jpg"), "{log}");
}

#[test]
fn what_systems_leave_behind_is_no_class() {
    let lab = lab(&[
        "a/1.png",
        "a/2.png",
        "a/@eaDir/1.png/SYNOPHOTO_THUMB_XL.jpg",
        "b/1.png",
        "b/2.png",
        "b/._1.png",
        "b/THUMBS.DB",
        "#recycle/old.png",
        "$Recycle.Bin/S-1-5/x.png",
        "@Recently-Snapshot/a/1.png",
        "lost+found/1.png",
    ]);
    let (set, logged) = logged(|| lab.imported("in", &[]).set);
    assert_eq!((set.classes, set.train.samples + set.test.samples), (vec!["a".to_owned(), "b".into()], 4));
    assert!(!logged.contains("left out"), "{logged}");
    assert_eq!(crate::import::reading::pictures(&lab.path("in")).unwrap().len(), 4, "predict");
}

#[test]
fn links_to_a_folder_around_them_are_no_classes() {
    let lab = lab(&["a/1.png", "a/2.png", "b/1.png", "b/2.png", "train/a/1.png"]);
    fs::remove_dir_all(lab.path("in/train")).unwrap();
    for (link, target) in [("self", "."), ("up", ".."), ("a/back", ".."), ("train", "."), ("alias", "b")] {
        symlink(target, lab.path("in").join(link)).unwrap();
    }
    let (set, logged) = logged(|| lab.imported("in", &["--order", "files"]).set);
    assert_eq!(set.classes, ["a", "alias", "b"]);
    assert!(names_all(&logged, "left out: | 4 links"), "{logged}");
    assert!(names_all(&logged, "4 samples | other classes"), "{logged}");
}

#[test]
fn a_folder_without_a_data_set_is_described() {
    for (files, expected) in [
        (&["a.csv", "b.csv", "README.md"][..], "/in: | 2 tables (a.csv, b.csv): | mpiburn data import "),
        (&["inner.zip"], "/in: | no data set | 1 .zip file (inner.zip): import inner.zip"),
        (&["README"], "/in: | no data set | 1 file | extension | (README)"),
        (&["x/"], "/in: | 1 folder (x) | webp"),
    ] {
        let message = lab(files).import("in", &[]).unwrap_err();
        assert!(names_all(&message, expected), "{files:?}: {message}");
    }
    let lab = Lab::new();
    fs::create_dir(lab.path("in")).unwrap();
    let message = lab.import("in", &[]).unwrap_err();
    assert!(names_all(&message, "/in: | no data set") && message.ends_with(": nothing"), "{message}");
}

#[test]
fn classes_of_one_sample_have_none_for_a_test() {
    let names: Vec<String> = (0..15).map(|n| format!("c{n}/1.png")).collect();
    let message = lab(&names.iter().map(String::as_str).collect::<Vec<_>>()).import("in", &[]).unwrap_err();
    assert!(names_all(&message, "/in: | 15 classes | one sample | test split"), "{message}");
}

/// A table beside folders of classes may have the classes of the folders. It may also have splits, or other
/// classes.
#[test]
fn a_table_beside_folders_of_classes_is_compared_with_them() {
    let split = "path,label,split\na/1.png,a,train\na/2.png,a,test\nb/3.png,b,train\nb/4.png,b,val\n";
    let found = lab(&["a/1.png", "a/2.png", "b/3.png", "b/4.png"]);
    found.write("in/splits.csv", split);
    let (_, said) = logged(|| found.imported("in", &[]));
    let what = "splits.csv: column split | --label label";
    assert!(names_all(&said, what), "{said}");
    let (_, said) = logged(|| found.imported("in", &["--label", "label"]));
    assert!(said.contains("the test split is test") && !names_all(&said, what), "{said}");

    // German traffic signs: folders of classes for training, and a table for the test.
    let signs =
        ["Train/0/1.png", "Train/0/2.png", "Train/1/3.png", "Train/1/4.png", "Test/5.png", "Test/6.png"];
    let found = lab(&signs);
    found.write(
        "in/Train.csv",
        "ClassId,Path\n0,Train/0/1.png\n0,Train/0/2.png\n1,Train/1/3.png\n1,Train/1/4.png\n",
    );
    found.write("in/Test.csv", "ClassId,Path\n0,Test/5.png\n1,Test/6.png\n");
    let (_, said) = logged(|| found.imported("in", &[]));
    assert!(names_all(&said, "Test.csv | pictures in Test | not used | --label ClassId"), "{said}");
    assert_eq!(found.imported("in", &["--label", "ClassId"]).counts, [[2, 2], [1, 1]]);

    // One table for all splits has the same classes as the folders.
    let names = ["train/a/1.png", "train/a/2.png", "train/b/3.png", "test/a/4.png", "test/b/5.png"];
    let found = lab(&names);
    let row = |name: &&str| format!("{name},{},{}\n", &name[..name.len() - 8], name.contains("/b/"));
    found.write("in/all.csv", "path,set,kind\n".to_owned() + &names.iter().map(row).collect::<String>());
    let (_, said) = logged(|| found.imported("in", &[]));
    assert!(!said.contains("all.csv"), "{said}");
}

#[test]
fn a_table_of_test_pictures_without_classes_is_named() {
    let found = lab(&["images/1.png", "images/2.png", "images/3.png", "images/4.png", "images/5.png"]);
    found.write("in/train.csv", "image,label\n1.png,a\n2.png,a\n3.png,b\n4.png,b\n");
    for test in ["image\n5.png\n", "image,label\n5.png,\n"] {
        found.write("in/test.csv", test);
        let (imported, said) = logged(|| found.imported("in", &[]));
        assert_eq!(imported.counts, [[1, 1], [1, 1]]);
        assert!(names_all(&said, "test.csv is not used: | with a class"), "{said}");
    }
}

#[test]
fn a_split_of_a_column_that_has_no_class_is_not_used() {
    let found = lab(&["i/1.png", "i/2.png", "i/3.png", "i/4.png", "i/5.png", "i/6.png"]);
    let table = "file,label,split\n1.png,a,train\n2.png,b,train\n3.png,,test\n4.png,NA,test\n5.png,a,val\n6.png,b,val\n";
    found.write("in/labels.csv", table);
    let (imported, said) = logged(|| found.imported("in", &[]));
    assert_eq!(imported.counts, [[1, 1], [1, 1]]);
    assert!(names_all(&said, "the test split is val | test is not used: | with a class"), "{said}");
    for (one, line) in [(table.replace("3.png,,", "3.png,a,"), 5), (table.replace("2.png,b,", "2.png,,"), 3)]
    {
        found.write("in/labels.csv", one);
        let message = found.import("in", &["--overwrite"]).unwrap_err();
        assert!(
            names_all(&message, &format!("labels.csv: | line {line}: | column label | no class")),
            "{message}"
        );
    }
}

#[test]
fn a_column_that_differs_from_the_name_of_its_folder_is_warned_of() {
    for (folders, is_said) in [(["a", "b"], false), (["b", "a"], true)] {
        let found = Lab::new();
        for (folder, class) in folders.iter().zip(["a", "b"]) {
            found.write(&format!("in/class={folder}/0.parquet"), table(&[1.0, 2.0], Some(&[class, class])));
        }
        let (imported, said) = logged(|| found.imported("in", &[]));
        assert_eq!(imported.counts, [[1, 1], [1, 1]]);
        let what = "0.parquet: column class is \"b\" | row 1 | folder says \"a\"";
        assert_eq!(names_all(&said, what), is_said, "{said}");
    }
}

#[test]
fn arrays_in_folders_of_splits_are_named() {
    let found = lab(&["train/x.npy", "train/y.npy", "test/x.npy", "test/y.npy"]);
    let message = found.import("in", &[]).unwrap_err();
    assert!(names_all(&message, "/in: | arrays | 2 folders (test, train) | x_train.npy"), "{message}");
}
