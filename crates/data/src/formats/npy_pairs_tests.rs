//! Tests of valid and invalid data sets of `.npy` pairs.

use std::fs;

use super::*;
use crate::error::names_all;
use crate::formats::npy::npy_header;
use crate::generate::features;
use crate::{self as data, Normalizer};

fn put(root: &Path, split: Split, letter: char, dtype: &str, shape: &[usize], bytes: &[u8]) {
    let path = path(root, split, letter);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, [&npy_header(dtype, shape), bytes].concat()).unwrap();
}

/// Writes three training samples and one test sample, of two features each.
fn made() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let floats = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_le_bytes);
    put(root.path(), Split::Train, 'x', "<f4", &[3, 2], floats.as_flattened());
    put(root.path(), Split::Train, 'y', "<i2", &[3], [7i16, -3, 7].map(i16::to_le_bytes).as_flattened());
    put(root.path(), Split::Test, 'x', "<f4", &[1, 2], floats[..2].as_flattened());
    put(root.path(), Split::Test, 'y', "<i2", &[1], &7i16.to_le_bytes());
    root
}

/// Replaces the training samples by `count` samples, each of another class.
fn put_classes(root: &tempfile::TempDir, count: usize) {
    let labels: Vec<u8> = (0..count as u32).rev().flat_map(u32::to_le_bytes).collect();
    put(root.path(), Split::Train, 'y', "<u4", &[count], &labels);
    put(root.path(), Split::Train, 'x', "<f4", &[count, 2], &vec![0; 8 * count]);
}

fn message(root: &tempfile::TempDir) -> String {
    let opened = data::open(root.path());
    let read = opened.and_then(|source| source.for_each_sample(Split::Train, 9, &mut |_, _| ()));
    let message = read.expect_err("a bad data set").to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    message
}

#[test]
fn classes_are_indices_of_the_sorted_training_labels() {
    let root = made();
    let source = data::open(root.path()).unwrap();
    assert_eq!(source.labels(Split::Train, 9).unwrap(), [1, 0, 1]);
    assert_eq!(source.labels(Split::Train, 2).unwrap(), [1, 0]);
    assert_eq!(source.labels(Split::Test, 9).unwrap(), [1]);
    let description = source.description();
    assert_eq!((description.classes, description.shape), (2, [1, 1, 2]));
    assert_eq!(description.class_names, ["-3", "7"]);
}

#[test]
fn all_labels_of_16_bits_may_be_classes() {
    let root = made();
    put_classes(&root, 65_536);
    let source = data::open(root.path()).unwrap();
    assert_eq!(source.description().classes, 65_536);
    assert_eq!(source.labels(Split::Train, 2).unwrap(), [65_535, 65_534]);
    assert_eq!(source.labels(Split::Test, 1).unwrap(), [7]);
}

#[test]
fn labels_of_every_integer_type_are_read() {
    let root = made();
    let expect = |dtype: &str, bytes: &[u8], names: [&str; 2]| {
        put(root.path(), Split::Train, 'y', dtype, &[3], &[bytes, &bytes[..bytes.len() / 2]].concat());
        put(root.path(), Split::Test, 'y', dtype, &[1, 1], &bytes[..bytes.len() / 2]);
        let source = data::open(root.path()).unwrap();
        assert_eq!(source.description().class_names, names, "{dtype}");
        assert_eq!(source.labels(Split::Train, 9).unwrap(), [0, 1, 0], "{dtype}");
    };
    expect("|i1", &[0x80, 0x7f], ["-128", "127"]);
    expect("|u1", &[0x80, 0xff], ["128", "255"]);
    expect("<i2", &[0, 0x80, 0, 0], ["-32768", "0"]);
    expect("<u2", &[1, 0, 0, 0x80], ["1", "32768"]);
    expect("<i4", [-5i32, 5].map(i32::to_le_bytes).as_flattened(), ["-5", "5"]);
    expect("<u4", [5, u32::MAX].map(u32::to_le_bytes).as_flattened(), ["5", "4294967295"]);
    let (low, high) = ("-9223372036854775808", "18446744073709551615");
    expect("<i8", [i64::MIN, 0].map(i64::to_le_bytes).as_flattened(), [low, "0"]);
    expect("<u8", [0, u64::MAX].map(u64::to_le_bytes).as_flattened(), ["0", high]);
}

#[test]
fn features_of_every_dtype_give_the_same_batch() {
    let values = [1.5f64, -2.0, 0.25, 1e-3, 1e4, 3.0];
    let mut batches = Vec::new();
    for (dtype, bytes) in [
        ("<f2", values.map(|v| half::f16::from_f64(v).to_le_bytes()).as_flattened()),
        ("<f4", values.map(|v| (v as f32).to_le_bytes()).as_flattened()),
        ("<f8", values.map(f64::to_le_bytes).as_flattened()),
    ] {
        let root = made();
        put(root.path(), Split::Train, 'x', dtype, &[3, 2], bytes);
        put(root.path(), Split::Test, 'x', dtype, &[1, 2], &bytes[..bytes.len() / 3]);
        let source = data::open(root.path()).unwrap();
        let normalizer = Normalizer::new(source.description());
        let mut batch = Vec::new();
        source.for_each_sample(Split::Train, 9, &mut |_, b| batch.extend(normalizer.values(b))).unwrap();
        batches.push(batch);
    }
    let singles = values.map(|value| value as f32);
    assert_eq!((&batches[1][..], &batches[2][..]), (&singles[..], &singles[..]));
    let off = batches[0].iter().zip(singles).map(|(half, single)| (half / single - 1.0).abs());
    assert!(off.fold(0.0, f32::max) < 1e-3, "{:?}", batches[0]);
}

#[test]
fn generated_features_are_read_back() {
    let root = tempfile::tempdir().unwrap();
    features::write(root.path(), 300, 40, 3, &|_| Ok(())).unwrap();
    let source = data::open(root.path()).unwrap();
    assert_eq!(source.description().shape, [1, 1, features::FEATURES]);
    assert_eq!(source.description().classes, features::CLASSES);
    let (space, labels) = (features::FeatureSpace::new(3), source.labels(Split::Test, 99).unwrap());
    let check = &mut |sample: usize, bytes: &[u8]| {
        let (row, label) = space.draw(Split::Test, sample as u64);
        assert_eq!((bytes, labels[sample]), (row.map(f32::to_le_bytes).as_flattened(), u16::from(label)));
    };
    source.for_each_sample(Split::Test, 99, check).unwrap();
    assert_eq!((labels.len(), source.len(Split::Train)), (40, 300));
}

#[test]
fn files_that_do_not_match_are_rejected() {
    let bad = |split, letter, dtype: &str, shape: &[usize], bytes: &[u8], expected: &str| {
        let root = made();
        put(root.path(), split, letter, dtype, shape, bytes);
        let message = message(&root);
        assert!(names_all(&message, expected) && message.contains(".npy: "), "{message}");
    };
    bad(Split::Test, 'y', "<i2", &[1], &[4, 0], "test_y.npy: | label 4 | sample 0 | training set");
    bad(Split::Train, 'y', "<i2", &[2], &[0; 4], "train_x.npy: | 3 samples | train_y.npy | 2 labels");
    bad(Split::Train, 'y', "<i2", &[3, 2], &[0; 12], "train_y.npy: | 2 labels per sample");
    bad(Split::Train, 'y', "<f4", &[3], &[0; 12], "train_y.npy: | dtype | <f4 | |i1 |u1 <i2");
    bad(Split::Train, 'x', "<i4", &[3, 2], &[0; 24], "train_x.npy: | dtype | <i4 | <f2 <f4 <f8");
    bad(Split::Train, 'x', "<f4", &[0, 2], &[], "train_x.npy: | 0 samples | 3 labels");
    bad(Split::Test, 'x', "<f4", &[1, 3], &[0; 12], "test_x.npy: | 3 features | <f4 | training set has 2");
    bad(Split::Test, 'x', "<f8", &[1, 2], &[0; 16], "test_x.npy: | 2 features | <f8 | <f4");
    let infinite = [[0; 20].as_slice(), &f32::NAN.to_le_bytes()].concat();
    bad(Split::Train, 'x', "<f4", &[3, 2], &infinite, "train_x.npy: | feature 1 | sample 2 | NaN");

    let root = made();
    put_classes(&root, 65_537);
    assert!(
        names_all(&message(&root), "train_y.npy: | 65537 different labels | 65536 classes"),
        "{}",
        message(&root)
    );
    fs::remove_file(path(root.path(), Split::Test, 'y')).unwrap();
    assert!(
        names_all(&message(&root), "test_data/test_y.npy is missing | mpiburn data features"),
        "{}",
        message(&root)
    );
}
