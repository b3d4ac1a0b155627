//! Tests that files of an unexpected format are named in the error, and that an import does not wait for a
//! pipe.

use std::process::Command;

use crate::error::names_all;
use crate::import::pictures::picture;
use crate::import::reading;
use crate::import::tests::Lab;

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:3b3b\nsize 48321094\n";
const PAGE: &str =
    "<!DOCTYPE html><html><head><title>Virus scan warning</title></head>\n<body></body></html>\n";

#[test]
fn a_pointer_or_a_page_in_place_of_a_file_is_named_whatever_reads_it() {
    for (contents, expected) in [(POINTER, "Git LFS | git lfs pull"), (PAGE, "HTML | download")] {
        for (source, file) in [
            ("one.npz", "one.npz"),
            ("pets.zip", "pets.zip"),
            ("pets.tar.gz", "pets.tar.gz"),
            ("train.parquet", "train.parquet"),
            ("iris.csv", "iris.csv"),
            ("set", "set/train.csv"),
            ("set", "set/data/train-00000-of-00001.parquet"),
            ("set", "set/x_train.npy"),
            ("set", "set/data_batch_1"),
            ("set", "set/train-images-idx3-ubyte.gz"),
            ("set", "set/train-images-idx3-ubyte"),
        ] {
            let lab = Lab::new();
            // An import of arrays and of IDX files also needs labels.
            if file.ends_with("npy") {
                lab.write("set/y_train.npy", crate::formats::npy::npy_header("<i8", &[0]));
            } else if file.contains("idx") {
                lab.write("set/train-labels-idx1-ubyte", [0, 0, 8, 1, 0, 0, 0, 1, 0]);
            }
            lab.write(file, contents);
            let message = lab.import(source, &[]).unwrap_err();
            assert!(names_all(&message, expected), "{file}: {message}");
            assert!(message.contains(file.rsplit('/').next().unwrap()), "{file}: {message}");
        }
    }
}

#[test]
fn pictures_that_are_not_read_are_named_with_the_way_out() {
    let lab = Lab::new();
    for (name, contents, expected) in [
        ("heic.jpg", &b"\0\0\0\x18ftypheic\0\0\0\0"[..], "picture (HEIC) | PNG"),
        ("avif.jpg", b"\0\0\0\x1cftypavif\0\0\0\0", "picture (AVIF) | PNG"),
        ("jxl.png", b"\xff\x0a\x01\x02", "picture (JPEG XL) | PNG"),
        ("ico.png", b"\0\0\x01\0\x01\0", "picture (ICO) | PNG"),
        ("page.png", PAGE.as_bytes(), "HTML"),
        ("pointer.png", POINTER.as_bytes(), "Git LFS"),
        ("zip.png", b"PK\x03\x04\x14\0", "is a zip archive: unpack it"),
        ("text.png", b"hello", "picture | supported format"),
    ] {
        lab.write(name, contents);
        let error =
            reading::picture(&lab.path(name), [3, 4, 4], crate::import::Fit::Crop).unwrap_err().to_string();
        assert!(names_all(&error, expected) && error.contains(name), "{error}");
        // The warning about files that are left out names their format only if it is an unsupported format of
        // pictures.
        let is_other = picture::foreign_picture(&lab.path(name)).is_some();
        assert_eq!(is_other, expected.ends_with("PNG"), "{name}");
    }
}

/// A picture in PNM begins with text, like a table.
#[test]
fn a_picture_in_place_of_a_table_is_named() {
    let lab = Lab::new();
    lab.write("a.pgm", b"P5 2 2 255\n\0\x01\xfe\xff");
    let error = reading::rows(&lab.path("a.pgm"), 1, &[], |_, _| ()).unwrap_err().to_string();
    assert!(names_all(&error, "a.pgm: is a picture | table"), "{error}");
}

#[test]
fn a_pipe_is_an_error_and_is_not_waited_for() {
    let lab = Lab::new();
    for name in ["f.csv", "f.zip", "f.parquet", "f", "set/train.csv"] {
        let path = lab.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let source = name.split('/').next().unwrap();
        let message = lab.import(source, &[]).unwrap_err();
        let expected = if name == source { "is a pipe | to a file" } else { "file but a pipe" };
        assert!(names_all(&message, expected) && message.contains(name), "{message}");
    }
}
