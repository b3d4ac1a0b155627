//! Tests imports of arrays, CIFAR's batches, Parquet, and pictures that a file lists.

use std::io::{Cursor, Write};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use crate::Element;
use crate::error::names_all;
use crate::formats::npy::npy_header;
use crate::import::Imported;
use crate::import::tests::Lab;

pub(crate) fn npy(dtype: &str, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    [&npy_header(dtype, shape), bytes].concat()
}

pub(crate) fn npz(arrays: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in arrays {
        archive.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// Returns a Parquet file with these columns in one row group.
pub(crate) fn parquet(schema: &str, huggingface: Option<&str>, columns: Vec<Column>) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let known = huggingface.map(|json| vec![KeyValue::new("huggingface".into(), json.to_owned())]);
    let properties = Arc::new(WriterProperties::builder().set_key_value_metadata(known).build());
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema, properties).unwrap();
    let mut rows = writer.next_row_group().unwrap();
    columns.into_iter().for_each(|column| column.write(&mut rows));
    rows.close().unwrap();
    writer.close().unwrap();
    file
}

/// The values of a column. Some may be missing.
pub(crate) enum Column {
    Double(Vec<Option<f64>>),
    Int64(Vec<Option<i64>>),
    Bytes(Vec<Vec<u8>>, i16),
    /// Lists of at least one number each.
    Lists(Vec<Vec<f64>>),
    /// A number of missing values, and the Parquet definition level that they are written with.
    Missing(usize, i16),
}

impl Column {
    fn write<W: Write + Send>(self, rows: &mut SerializedRowGroupWriter<'_, W>) {
        let mut column = rows.next_column().unwrap().unwrap();
        fn levels<T: Clone>(values: &[Option<T>]) -> (Vec<T>, Vec<i16>) {
            (values.iter().flatten().cloned().collect(), values.iter().map(|v| v.is_some().into()).collect())
        }
        match self {
            Self::Double(values) => {
                let (values, defined) = levels(&values);
                column.typed::<DoubleType>().write_batch(&values, Some(&defined), None).unwrap();
            }
            Self::Int64(values) => {
                let (values, defined) = levels(&values);
                column.typed::<Int64Type>().write_batch(&values, Some(&defined), None).unwrap();
            }
            Self::Bytes(values, level) => {
                let defined = vec![level; values.len()];
                let values: Vec<ByteArray> = values.into_iter().map(ByteArray::from).collect();
                column.typed::<ByteArrayType>().write_batch(&values, Some(&defined), None).unwrap();
            }
            Self::Lists(lists) => {
                let values = lists.concat();
                let repeated: Vec<i16> =
                    lists.iter().flat_map(|list| (0..list.len()).map(|at| (at > 0).into())).collect();
                let defined = vec![3; values.len()];
                column.typed::<DoubleType>().write_batch(&values, Some(&defined), Some(&repeated)).unwrap();
            }
            Self::Missing(rows, level) => {
                column.typed::<ByteArrayType>().write_batch(&[], Some(&vec![level; rows]), None).unwrap();
            }
        }
        column.close().unwrap();
    }
}

/// Imports the pixels of two samples with the labels 7 and 3 as arrays with different orders of the axes.
#[test]
fn arrays_are_pictures_in_any_order_of_their_axes() {
    let lab = Lab::new();
    let labels = npy("<i8", &[2], &[7i64.to_le_bytes(), 3i64.to_le_bytes()].concat());
    let grey: Vec<u8> = (0..12).collect();
    let other = npy("|u1", &[1, 2, 3], &[9; 6]);
    let one = npy("|u1", &[1, 1], &[3]);
    // Names of arrays as in Keras and in MedMNIST.
    lab.write(
        "keras.npz",
        npz(&[
            ("x_train", npy("|u1", &[2, 2, 3], &grey)),
            ("y_train", labels.clone()),
            ("x_test", other.clone()),
            ("y_test", one.clone()),
        ]),
    );
    let Imported { set, counts } = lab.imported("keras.npz", &["--order", "files"]);
    assert_eq!((set.shape, set.numbers), ([1, 2, 3], Element::U8));
    assert_eq!((&set.classes[..], counts), (&["3".to_owned(), "7".to_owned()][..], [vec![1, 1], vec![1, 0]]));
    assert_eq!((lab.data("train-images.npy"), lab.labels("train")), (grey.clone(), vec![1, 0]));
    assert_eq!(lab.from(), [vec!["x_train.npy[0]", "x_train.npy[1]"], vec!["x_test.npy[0]"]]);
    for (name, bytes) in [
        ("train_images", npy("|u1", &[2, 2, 3, 1], &grey)),
        ("train_labels", labels.clone()),
        ("val_images", other.clone()),
        ("val_labels", one.clone()),
        ("test_images", other),
        ("test_labels", one),
    ] {
        lab.write(&format!("med/{name}.npy"), bytes);
    }
    lab.imported("med", &["--order", "files", "--test-split", "val"]);
    lab.imported("med", &["--order", "files", "--test-split", "validation"]);
    assert_eq!(lab.data("train-images.npy"), grey);
    assert_eq!(lab.from()[1], ["val_images.npy[0]"]);
    lab.imported("med", &["--size", "2x2", "--fit", "stretch", "--rgb"]);

    // Two pictures of 5 pixels in red, green, blue and transparency. The same bytes are read pixel by pixel
    // and plane by plane.
    let bytes: Vec<u8> = (0..40).collect();
    let planes: Vec<u8> = (0..15).collect();
    let pixels: Vec<u8> = (0..3).flat_map(|channel| (0..5).map(move |pixel| 4 * pixel + channel)).collect();
    for (shape, expected) in [([2, 1, 5, 4], pixels), ([2, 4, 1, 5], planes)] {
        lab.write("colours/images.npy", npy("|u1", &shape, &bytes));
        lab.write("colours/labels.npy", npy("<i8", &[2], &[0; 16]));
        let set = lab.imported("colours", &["--order", "files"]).set;
        assert_eq!(set.shape, [3, 1, 5], "transparency is dropped");
        let samples = [lab.data("train-images.npy"), lab.data("test-images.npy")];
        assert!(samples.contains(&expected), "{shape:?}: {samples:?}");
    }
}

#[test]
fn arrays_of_features_are_rows_of_any_type() {
    let lab = Lab::new();
    let floats = [1.5f64, -2.0, 0.25, 1e6].map(f64::to_le_bytes).concat();
    lab.write("a.npz", npz(&[("X", npy("<f8", &[2, 2], &floats)), ("y", npy("|u1", &[2], &[5, 5]))]));
    let Imported { set, .. } = lab.imported("a.npz", &["--order", "files", "--test-fraction", "0.5"]);
    assert_eq!((set.shape, set.numbers), ([1, 1, 2], Element::F32));
    let written = [lab.data("train-images.npy"), lab.data("test-images.npy")];
    let mut values: Vec<f32> =
        written.concat().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    values.sort_by(f32::total_cmp);
    assert_eq!(values, [-2.0, 0.25, 1.5, 1e6]);
    for (dtype, bytes) in
        [("<f2", &[0x00u8, 0x3c, 0, 0xc0][..]), ("|i1", &[1, 0xfe]), ("<i2", &[1, 0, 0xfe, 0xff])]
    {
        lab.write("b/x.npy", npy(dtype, &[2, 1], bytes));
        lab.write("b/y.npy", npy("|i1", &[2], &[0, 0]));
        lab.imported("b", &[]);
        let written = [lab.data("train-images.npy"), lab.data("test-images.npy")].concat();
        let mut values = [0, 4].map(|at| f32::from_le_bytes(written[at..at + 4].try_into().unwrap()));
        values.sort_by(f32::total_cmp);
        assert_eq!(values, [-2.0, 1.0], "{dtype}");
    }
}

#[test]
fn what_is_wrong_in_arrays_is_one_line() {
    let lab = Lab::new();
    let two = npy("|u1", &[2], &[1, 1]);
    let pixels = npy("|u1", &[2, 2, 2], &[0; 8]);
    type Arrays<'a> = &'a [(&'a str, &'a Vec<u8>)];
    let cases: [(Arrays<'_>, &[&str], &str); 14] = [
        (&[("images", &pixels), ("x", &pixels), ("y", &two)], &[], "samples | images and x"),
        (&[("x", &pixels)], &[], "arrays x, | labels | y_train | --label"),
        (&[("a", &pixels), ("b", &two)], &[], "arrays a, b | training | x_train | y_train"),
        (&[("a", &pixels), ("b", &two)], &["--label", "b"], "arrays a, b | samples | x_train"),
        (&[("x", &pixels), ("y", &two), ("y_val", &two)], &[], "arrays x, y, y_val, | samples | x_val"),
        (&[("x", &pixels), ("y", &two), ("labels", &two)], &[], "labels | y | --label labels"),
        (&[("x", &pixels), ("y", &two)], &["--label", "z"], "--label z: | which has x, y"),
        (&[("x", &pixels), ("y", &npy("|u1", &[3], &[0; 3]))], &[], "x.npy: | 2 samples | y.npy | 3 labels"),
        (&[("x", &pixels), ("y", &npy("|u1", &[2, 2], &[0; 4]))], &[], "y.npy: | 2 labels per sample"),
        (&[("x", &pixels), ("y", &npy("<c8", &[2], &[0; 16]))], &[], "y.npy: | dtype | <c8 (complex) | <f4"),
        (
            &[("x", &npy("<f4", &[2, 1, 1], &[0; 8])), ("y", &two)],
            &[],
            "x.npy: | <f4 | [2, 1, 1] | bytes from 0 to 255",
        ),
        (
            &[("x", &npy("|u1", &[2, 5, 5, 5], &[0; 250])), ("y", &two)],
            &[],
            "x.npy: | [2, 5, 5, 5] | 1 to 4 channels",
        ),
        (
            &[("x", &npy("<f4", &[2, 1], &[0, 0, 0, 0, 0, 0, 0xc0, 0x7f])), ("y", &two)],
            &[],
            "x.npy: | [1, 0] | NaN",
        ),
        (&[("x", &pixels), ("y", &two)], &["--drop", "y"], "--drop y: | tables"),
    ];
    for (arrays, options, expected) in cases {
        let _ = std::fs::remove_dir_all(lab.path("in"));
        arrays.iter().for_each(|(name, bytes)| lab.write(&format!("in/{name}.npy"), bytes));
        let message = lab.import("in", options).unwrap_err();
        assert!(names_all(&message, expected), "{message}, not {expected}");
    }
    lab.write("in/x.npy", &pixels[..pixels.len() - 1]);
    let message = lab.import("in", &[]).unwrap_err();
    assert!(
        names_all(
            &message,
            "x.npy: | truncated | 7 bytes | [2, 2, 2] | 1 byte for | download the file again"
        ),
        "{message}"
    );
}

/// Returns a batch of CIFAR as pickled by Python 2: an array of NumPy, a list, and a string.
fn batch(labels: &[u8], key: &str) -> Vec<u8> {
    let bytes: Vec<u8> = labels.iter().flat_map(|label| [*label; 3072]).collect();
    let mut pickle =
        b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\n".to_vec();
    pickle.extend_from_slice(b"K\x00\x85U\x01b\x87R(K\x01K");
    pickle.push(labels.len() as u8);
    pickle.extend_from_slice(
        b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff",
    );
    pickle.extend_from_slice(b"J\xff\xff\xff\xffK\x00tb\x89T");
    pickle.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    pickle.extend_from_slice(&bytes);
    pickle.extend_from_slice(b"tbU");
    pickle.push(key.len() as u8);
    pickle.extend_from_slice(key.as_bytes());
    pickle.extend_from_slice(b"](");
    labels.iter().for_each(|label| pickle.extend_from_slice(&[b'K', *label]));
    pickle.extend_from_slice(b"eU\x0bbatch_labelU\x01xu.");
    pickle
}

/// Returns a pickle with names of classes.
fn meta(key: &str, names: &[&str]) -> Vec<u8> {
    let mut pickle = b"\x80\x02}U".to_vec();
    pickle.push(key.len() as u8);
    pickle.extend_from_slice(key.as_bytes());
    pickle.extend_from_slice(b"](");
    for name in names {
        pickle.extend_from_slice(&[b'U', name.len() as u8]);
        pickle.extend_from_slice(name.as_bytes());
    }
    pickle.extend_from_slice(b"es.");
    pickle
}

#[test]
fn python_batches_of_cifar_are_pictures() {
    let lab = Lab::new();
    let folder = "root/cifar-10-batches-py";
    lab.write(&format!("{folder}/data_batch_1"), batch(&[2, 0], "labels"));
    lab.write(&format!("{folder}/data_batch_2"), batch(&[1], "labels"));
    lab.write(&format!("{folder}/test_batch"), batch(&[0], "labels"));
    lab.write(&format!("{folder}/batches.meta"), meta("label_names", &["plane", "car", "bird"]));
    lab.write(&format!("{folder}/readme.html"), "");
    let Imported { set, counts } = lab.imported("root", &["--order", "files"]);
    assert_eq!(set.shape, [3, 32, 32]);
    assert_eq!(set.classes, ["plane", "car", "bird"]);
    assert_eq!(counts, [[1, 1, 1], [1, 0, 0]]);
    assert_eq!(lab.labels("train"), [2, 0, 1]);
    let pixels = lab.data("train-images.npy");
    assert_eq!([0, 3072, 6144].map(|at| pixels[at]), [2, 0, 1]);
    assert_eq!(lab.from()[0], ["data_batch_1[0]", "data_batch_1[1]", "data_batch_2[0]"]);
    std::fs::rename(lab.path(&format!("{folder}/data_batch_1")), lab.path("other")).unwrap();
    let message = lab.import("root", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "data_batch_1: | No such file"), "{message}");

    // Errors name the user's files, and no file of the import.
    for (two, options, expected) in [
        (batch(&[12], "labels"), &[][..], "data_batch_2: | label [0] is 12 | 0 to 2 | 3 class names"),
        (
            batch(&[1], "fine_labels"),
            &[],
            "data_batch_2: | no entry labels | fine_labels | data_batch_1 has labels",
        ),
        (
            batch(&[1], "fine_labels"),
            &["--label", "fine_labels"],
            "data_batch_1: | no entry fine_labels | data_batch_2 has fine_labels",
        ),
    ] {
        std::fs::write(lab.path(&format!("{folder}/data_batch_1")), batch(&[2, 0], "labels")).unwrap();
        std::fs::write(lab.path(&format!("{folder}/data_batch_2")), two).unwrap();
        let message = lab.import("root", &[&["--overwrite"], options].concat()).unwrap_err();
        assert!(names_all(&message, expected), "{message}");
    }
    let mut more = batch(&[1, 2], "labels");
    let last = more.windows(3).rposition(|bytes| bytes == b"K\x02e").unwrap();
    more.drain(last..last + 2);
    lab.write(&format!("{folder}/data_batch_2"), more);
    let message = lab.import("root", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "data_batch_2: | 2 pictures, | 1 label"), "{message}");
    let message = lab.import(&format!("{folder}/data_batch_1"), &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "data_batch_1: | CIFAR | cifar-10-batches-py"), "{message}");

    lab.write("hundred/train", batch(&[1, 0, 1], "fine_labels"));
    lab.write("hundred/test", batch(&[1], "fine_labels"));
    lab.write("hundred/meta", meta("fine_label_names", &["apple", "bee"]));
    assert_eq!(lab.imported("hundred", &[]).set.classes, ["apple", "bee"]);
    let message = lab.import("hundred", &["--overwrite", "--label", "coarse_labels"]).unwrap_err();
    assert!(names_all(&message, "train: | coarse_labels | fine_labels | --label"), "{message}");
    let mut fortran = batch(&[1, 0, 1], "fine_labels");
    let at = fortran.windows(3).position(|bytes| bytes == b"b\x89T").unwrap();
    fortran[at + 1] = 0x88;
    lab.write("hundred/train", &fortran);
    let message = lab.import("hundred", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "train: | data | [3, 3072] | C order"), "{message}");
    lab.write("hundred/train", &batch(&[1, 0], "fine_labels")[..5000]);
    let message = lab.import("hundred", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "train: | damaged | pickle | download the file again"), "{message}");
    // Nested tuples, nested lists, and nested values after bytes that look like the end of the pickle.
    let deep = 3_000_000;
    for nested in [
        [&b")"[..], &[0x85].repeat(deep)].concat(),
        [b"]".repeat(deep), b"a".repeat(deep - 1)].concat(),
        [&b"U\x03...I1\ncx\ny\n)"[..], &[0x85].repeat(deep)].concat(),
    ] {
        lab.write("hundred/train", [b"\x80\x02", &nested[..], b"."].concat());
        let message = lab.import("hundred", &["--overwrite"]).unwrap_err();
        assert!(names_all(&message, "train: | pickle | more than 1000 times"), "{message}");
    }
    lab.write("hundred/train", [&b"\x80\x02)"[..], &[0x85].repeat(1000), b"."].concat());
    let message = lab.import("hundred", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "train: | pickle | dictionary"), "{message}");
}

#[test]
fn idx_files_have_any_size_and_any_classes() {
    let lab = Lab::new();
    let idx = |shape: &[u32], bytes: &[u8]| {
        let sizes: Vec<u8> = shape.iter().flat_map(|size| size.to_be_bytes()).collect();
        [&[0, 0, 8, shape.len() as u8], &*sizes, bytes].concat()
    };
    let pixels: Vec<u8> = (0..18).collect();
    lab.write("letters/emnist-letters-train-images-idx3-ubyte", idx(&[3, 2, 3], &pixels));
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&idx(&[3], &[26, 1, 1])).unwrap();
    lab.write("letters/emnist-letters-train-labels-idx1-ubyte.gz", packed.finish().unwrap());
    lab.write("letters/emnist-letters-test-images-idx3-ubyte", idx(&[1, 2, 3], &pixels[..6]));
    let message = lab.import("letters", &[]).unwrap_err();
    assert!(names_all(&message, "/letters: | IDX | labels | t10k"), "{message}");
    lab.write("letters/emnist-letters-test-labels-idx1-ubyte", idx(&[1], &[1]));
    let Imported { set, counts } = lab.imported("letters", &["--order", "files"]);
    assert_eq!((set.shape, counts), ([1, 2, 3], [vec![2, 1], vec![1, 0]]));
    assert_eq!(set.classes, ["1", "26"]);
    assert_eq!(lab.data("train-images.npy"), pixels);
    let message = lab.import("letters/emnist-letters-train-images-idx3-ubyte", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "train-images-idx3-ubyte: | IDX | folder, | /letters"), "{message}");
    lab.write("letters/emnist-letters-test-labels-idx1-ubyte", idx(&[2], &[1]));
    let message = lab.import("letters", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "test-labels-idx1-ubyte: | truncated | 1 byte | [2]"), "{message}");
    for (labels, expected) in [
        (idx(&[0], &[]), "test-images-idx3-ubyte: | 1 image, | labels-idx1-ubyte | 0 labels"),
        (idx(&[2], &[1, 1]), "test-images-idx3-ubyte: | 1 image, | labels-idx1-ubyte | 2 labels"),
        (idx(&[1, 2, 3], &pixels[..6]), "test-labels-idx1-ubyte: | images instead of labels"),
    ] {
        lab.write("letters/emnist-letters-test-labels-idx1-ubyte", labels);
        let message = lab.import("letters", &["--overwrite"]).unwrap_err();
        assert!(names_all(&message, expected), "{message}");
    }
    lab.write("letters/emnist-digits-train-images-idx3-ubyte", idx(&[3, 2, 3], &pixels));
    let message = lab.import("letters", &["--overwrite"]).unwrap_err();
    assert!(
        names_all(&message, "/letters: | emnist-digits-train-images | emnist-letters-train-images"),
        "{message}"
    );
}

#[test]
fn columns_of_parquet_are_features() {
    let lab = Lab::new();
    let schema = "message m { optional double a; optional int64 b; optional byte_array kind (STRING); }";
    let table = |a: &[Option<f64>], kinds: &[&str]| {
        let b = (0..a.len()).map(|row| Some(row as i64)).collect();
        let kinds = kinds.iter().map(|kind| kind.as_bytes().to_vec()).collect();
        parquet(schema, None, vec![Column::Double(a.to_vec()), Column::Int64(b), Column::Bytes(kinds, 1)])
    };
    let whole = table(&[Some(0.1), Some(-2.5e-7), Some(3.0)], &["x", "y\nz", "x"]);
    lab.write("one.parquet", &whole);
    let Imported { set, .. } =
        lab.imported("one.parquet", &["--order", "files", "--label", "kind", "--test-fraction", "0.4"]);
    assert_eq!(
        (&set.features[..], &set.classes[..]),
        (&["a".into(), "b".into()][..], &["x".into(), "y\\nz".into()][..])
    );
    let [train, test] = lab.from();
    assert_eq!((train.len(), test.len()), (2, 1));
    assert!(train.contains(&"one.parquet:2".to_owned()), "{train:?}: rows are counted from 1");
    // A split in several files, as Hugging Face writes them.
    lab.write("hub/data/train-00000-of-00002.parquet", &whole);
    lab.write("hub/data/train-00001-of-00002.parquet", table(&[Some(7.0)], &["x"]));
    lab.write("hub/data/test-00000-of-00001.parquet", table(&[Some(8.0)], &["x"]));
    lab.write("hub/README.md", "");
    let Imported { counts, .. } = lab.imported("hub", &["--order", "files", "--label", "kind"]);
    assert_eq!(counts, [[3, 1], [1, 0]]);
    assert_eq!(lab.data("train-images.npy")[..4], 0.1f32.to_le_bytes());
    let message = lab.import("one.parquet", &["--overwrite", "--label", "a"]).unwrap_err();
    assert!(
        names_all(&message, "one.parquet: | row 1: | column a | 0.1 | whole number")
            || names_all(&message, "one.parquet: | row 1: | column kind | number"),
        "{message}"
    );
    let message =
        lab.import("one.parquet", &["--overwrite", "--label", "kind", "--header", "no"]).unwrap_err();
    assert!(names_all(&message, "--header: | .csv and .tsv | Parquet"), "{message}");
    lab.write("gap.parquet", table(&[Some(1.0), None], &["x", "y"]));
    let message = lab.import("gap.parquet", &["--overwrite", "--label", "kind"]).unwrap_err();
    assert!(names_all(&message, "gap.parquet: | row 2: | column a | no value"), "{message}");
    // Reading reports its progress, and stops when the callback asks for it.
    lab.write("long.parquet", table(&[Some(1.0); 600], &["x"; 600]));
    let told = Mutex::new(Vec::new());
    let stopped = lab.import_while("long.parquet", &["--label", "kind", "--overwrite"], &|done, all| {
        told.lock().unwrap().push((done, all));
        if done < 512 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!(stopped.unwrap_err(), "stopped");
    assert_eq!(*told.lock().unwrap(), [(256, 600), (512, 600)]);
    lab.write("cut.parquet", &whole[..whole.len() - 9]);
    let message = lab.import("cut.parquet", &["--overwrite", "--label", "kind"]).unwrap_err();
    assert!(names_all(&message, "cut.parquet: | damaged | download the file again"), "{message}");
}

#[test]
fn pictures_in_a_column_of_parquet_have_its_classes() {
    let lab = Lab::new();
    let schema = "message m { optional group image { optional byte_array bytes; optional byte_array path (STRING); } \
                  optional int64 label; }";
    let json = r#"{"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["cat", "ant"], "_type": "ClassLabel"}}}}"#;
    let table = |reds: &[u8], labels: &[i64], json: Option<&str>| {
        let picture = |red: &u8| {
            lab.picture("p.png", [2, 3], *red);
            std::fs::read(lab.path("p.png")).unwrap()
        };
        let labels = labels.iter().copied().map(Some).collect();
        let [bytes, paths] = [reds.iter().map(picture).collect(), vec![b"p.png".to_vec(); reds.len()]];
        parquet(schema, json, vec![Column::Bytes(bytes, 2), Column::Bytes(paths, 2), Column::Int64(labels)])
    };
    lab.write("hub/train-00000-of-00001.parquet", table(&[5, 6, 7], &[1, 0, 1], Some(json)));
    lab.write("hub/validation-00000-of-00001.parquet", table(&[8], &[0], Some(json)));
    let Imported { set, counts } = lab.imported("hub", &["--order", "files"]);
    assert_eq!(set.classes, ["cat", "ant"], "in the order of the file");
    assert_eq!((set.shape, counts), ([3, 2, 3], [vec![1, 2], vec![1, 0]]));
    let pixels = lab.data("train-images.npy");
    assert_eq!([0, 18, 36].map(|at| pixels[at]), [5, 6, 7]);
    assert_eq!(lab.from()[0][2], "train-00000-of-00001.parquet:3");
    // Without names of classes, the numbers are the names.
    lab.write("one.parquet", table(&[5, 6, 7], &[10, 2, 10], None));
    assert_eq!(lab.imported("one.parquet", &[]).set.classes, ["2", "10"]);
    lab.write("one.parquet", table(&[5, 6], &[0, 2], Some(json)));
    let message = lab.import("one.parquet", &["--overwrite"]).unwrap_err();
    assert!(
        names_all(&message, "one.parquet: | row 2: | column label is 2 | 0 to 1 | 2 class names"),
        "{message}"
    );
    let mut broken = table(&[5, 6], &[1, 1], Some(json));
    let at = broken.windows(4).position(|bytes| bytes == b"IDAT").unwrap();
    broken[at + 4..at + 8].fill(0);
    lab.write("one.parquet", &broken);
    let message = lab.import("one.parquet", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "1 picture | --skip-broken"), "{message}");
}

#[test]
fn a_file_beside_pictures_names_their_classes() {
    let lab = Lab::new();
    for (number, split) in ["train", "train", "train", "test"].into_iter().enumerate() {
        lab.picture(&format!("set/{split}/{number}.png"), [2, 2], number as u8);
    }
    lab.write("set/train/metadata.csv", "file_name,note,label\n2.png,\"a, b\",10\n0.png,,2\n");
    lab.write("set/test/metadata.jsonl", "{\"file_name\": \"3.png\", \"label\": 2, \"boxes\": [1]}\n\n");
    let Imported { set, counts } = lab.imported("set", &["--order", "files"]);
    assert_eq!(set.classes, ["2", "10"], "numbers in their order");
    assert_eq!(counts, [[1, 1], [1, 0]]);
    assert_eq!(lab.labels("train"), [1, 0]);
    assert_eq!(lab.from()[0], ["train/2.png", "train/0.png"], "in the order of the file");
    // One metadata file for both splits.
    for file in ["set/train/metadata.csv", "set/test/metadata.jsonl"] {
        std::fs::remove_file(lab.path(file)).unwrap();
    }
    lab.write("set/metadata.csv", "file_name,species\ntrain/0.png,a\ntrain/1.png,b\ntest/3.png,b\n");
    assert_eq!(lab.imported("set", &[]).counts, [[1, 1], [0, 1]]);
    for (text, expected) in [
        (
            "file_name,species\n../set/train/0.png,a\n",
            "metadata.csv: | line 2: | ../set/train/0.png | outside",
        ),
        ("file_name,species\ntrain/0.png,\n", "metadata.csv: | line 2: | column species | no class"),
        ("file_name,species\n", "metadata.csv: | no pictures"),
        (
            "file_name;species\ntrain/0.png;a\ntrain/0.png;b\n",
            "metadata.csv: | train/0.png | twice | \"a\" | \"b\"",
        ),
        ("file_name,label,label\ntrain/0.png,a,b\n", "metadata.csv: | two columns | \"label\""),
        ("species,file\na,train/0.png\n", "metadata.csv: has | file_name | species, file"),
        ("file_name,species\ntrain/0.png,a\n,b\n", "metadata.csv: | line 3: | column file_name"),
        ("file_name,species\ntrain/9.png,a\ntrain/1.png,b\ntest/3.png,b\n", "1 picture | --skip-broken"),
    ] {
        lab.write("set/metadata.csv", text);
        let message = lab.import("set", &["--overwrite"]).unwrap_err();
        assert!(names_all(&message, expected), "{message}");
    }
    let message = lab.import("set", &["--overwrite", "--label", "x"]).unwrap_err();
    assert!(names_all(&message, "--label x: | metadata.csv | file_name, species"), "{message}");
    lab.write("set/metadata.csv", "file_name,species\ntrain/0.png,a\ntrain/1.png,b\n");
    lab.write("set/test/metadata.jsonl", b"{\"file_name\": \"3.png\", \"label\": \"\xe9\"}\n");
    let message = lab.import("set", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "metadata.jsonl: | line 1: | UTF-8"), "{message}");
    lab.write("set/test/metadata.jsonl", "3.png\n");
    let message = lab.import("set", &["--overwrite"]).unwrap_err();
    assert!(
        names_all(&message, "metadata.jsonl: | line 1: | JSON | \"file_name\": | \"label\":"),
        "{message}"
    );
}

#[test]
fn labels_of_parquet_are_words_or_numbers_with_the_names_of_all_files() {
    let lab = Lab::new();
    let schema = "message m { optional double a; optional int64 __index_level_0__; optional int64 kind; }";
    let json = |names: &str| format!(r#"{{"info": {{"features": {{"kind": {{"names": [{names}]}}}}}}}}"#);
    let table = |names: &str, kinds: &[i64]| {
        let kinds: Vec<Option<i64>> = kinds.iter().copied().map(Some).collect();
        let a = (0..kinds.len()).map(|row| Some(row as f64)).collect();
        let columns = vec![Column::Double(a), Column::Int64(kinds.clone()), Column::Int64(kinds)];
        parquet(schema, Some(&json(names)), columns)
    };
    lab.write("one.parquet", table(r#""zero", "one", "two""#, &[1, 2, 1, 2]));
    let Imported { set, counts } = lab.imported("one.parquet", &["--order", "files"]);
    assert_eq!(set.classes, ["zero", "one", "two"], "the only column with names is the class");
    assert_eq!((&set.features[..], counts), (&["a".to_owned()][..], [vec![0, 1, 1], vec![0, 1, 1]]));
    lab.write("two/train.parquet", table(r#""n", "p""#, &[0, 1]));
    lab.write("two/test.parquet", table(r#""p", "n""#, &[0, 1]));
    let message = lab.import("two", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "test.parquet: | classes | kind | train.parquet"), "{message}");
    std::fs::remove_file(lab.path("two/test.parquet")).unwrap();
    std::fs::rename(lab.path("two/train.parquet"), lab.path("two/train-00001-of-00003.parquet")).unwrap();
    let message = lab.import("two", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "/two: | 1 of 3 parts | train"), "{message}");
    let kinds = vec![Some(1), Some(2)];
    let schema = "message m { optional int64 my_kind; optional double a; }";
    let columns = vec![Column::Int64(kinds), Column::Double(vec![Some(1.0), Some(0.5)])];
    lab.write("none.parquet", parquet(schema, None, columns));
    let message = lab.import("none.parquet", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "none.parquet: | my_kind, a: | --label my_kind"), "{message}");
    let schema = "message m { optional double a; optional group label { optional int64 x; } }";
    let nested = vec![Column::Double(vec![Some(1.0)]), Column::Int64(vec![Some(1)])];
    lab.write("nested.parquet", parquet(schema, None, nested));
    let message = lab.import("nested.parquet", &["--overwrite"]).unwrap_err();
    assert!(names_all(&message, "nested.parquet: | column label | lists | number"), "{message}");
}
