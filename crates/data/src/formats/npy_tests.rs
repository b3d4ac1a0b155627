//! Tests of `.npy` files in every version, spelling and memory order, and of damaged files.

use super::*;
use crate::error::names_all;

fn file(dtype: &str, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    [&npy_header(dtype, shape), bytes].concat()
}

/// Returns the file that [`file`] returns, but marked as Fortran order: `False` in its header is replaced by
/// `True` and a blank. The length of the header stays the same.
fn fortran(dtype: &str, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    let mut file = file(dtype, shape, bytes);
    let at = file.windows(5).position(|text| text == b"False").unwrap();
    file[at..at + 5].copy_from_slice(b"True ");
    file
}

fn open(bytes: &[u8]) -> Result<NpyFile, DataError> {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("x.npy");
    std::fs::write(&path, bytes).unwrap();
    NpyFile::open(&path, &["<f4", "|u1", "<i2"])
}

fn rows(file: &NpyFile, limit: usize) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    let visit = |row: usize, bytes: &[u8]| {
        assert_eq!(row, rows.len());
        rows.push(bytes.to_vec());
        Ok::<_, DataError>(())
    };
    file.for_each_row(limit, visit).unwrap();
    rows
}

#[test]
fn rows_are_read_in_order_up_to_the_limit() {
    let bytes = [1, 2, 3, 4, 5, 6];
    let file_of = |shape: &[usize]| open(&file("|u1", shape, &bytes)).unwrap();
    assert_eq!(rows(&file_of(&[3, 2]), 2), [[1, 2], [3, 4]]);
    assert_eq!(rows(&file_of(&[6]), 9), [[1], [2], [3], [4], [5], [6]]);
    let wide = open(&fortran("<i2", &[3], &bytes)).unwrap();
    assert_eq!(rows(&wide, 9), [[1, 2], [3, 4], [5, 6]]);
    let images = file_of(&[2, 1, 3, 1]);
    assert_eq!((images.columns, &images.shape[..]), (3, &[2, 1, 3, 1][..]));
    assert_eq!(rows(&images, 9), [[1, 2, 3], [4, 5, 6]]);
}

#[test]
fn strings_are_read_without_what_fills_them_up() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("names.npy");
    let unicode: Vec<u8> = "catäb\0".chars().flat_map(|letter| u32::from(letter).to_le_bytes()).collect();
    for (dtype, bytes, expected) in
        [("<U3", &unicode[..], ["cat", "äb"]), ("|S3", b"cat\xc3\xa4\0", ["cat", "ä"])]
    {
        std::fs::write(&path, file(dtype, &[2], bytes)).unwrap();
        assert_eq!(NpyFile::open(&path, &NpyFile::STRINGS).unwrap().strings().unwrap(), expected);
    }
    std::fs::write(&path, file("<U0", &[2], &[])).unwrap();
    NpyFile::open(&path, &NpyFile::STRINGS).unwrap_err();
}

#[test]
fn fortran_order_gives_the_same_rows() {
    for (count, width) in [(1, 1), (1023, 3), (1024, 1), (1025, 7), (3000, 2)] {
        let number = |row: usize, column: usize| ((row * width + column) as i16).to_le_bytes();
        let by_row = (0..count).flat_map(|row| (0..width).flat_map(move |c| number(row, c)));
        let by_column = (0..width).flat_map(|c| (0..count).flat_map(move |row| number(row, c)));
        let (by_row, by_column): (Vec<u8>, Vec<u8>) = (by_row.collect(), by_column.collect());
        let c = open(&file("<i2", &[count, width], &by_row)).unwrap();
        let fortran = open(&fortran("<i2", &[count, width], &by_column)).unwrap();
        for limit in [1, count - 1, count, count + 5] {
            assert_eq!(rows(&c, limit), rows(&fortran, limit), "{count} x {width}, {limit}");
            assert_eq!(rows(&c, limit).len(), limit.min(count));
        }
    }
}

#[test]
fn invalid_files_are_rejected_with_one_line() {
    let numbers = &[0; 8];
    let mut version = file("<f4", &[2, 1], numbers);
    version[6] = 4;
    let cases: [(Vec<u8>, &str); 16] = [
        (vec![], "magic number"),
        (b"PK\x03\x04 a zip archive".to_vec(), "zip archive | unpack"),
        (version, "version 4.0 | 1.0, 2.0 and 3.0"),
        (file("<f4", &[2, 1], numbers)[..40].to_vec(), "truncated | header"),
        (file("<f4", &[2, 1], &numbers[1..]), "truncated | 7 bytes | [2, 1] | 4 bytes"),
        (file("<f4", &[2, 1], &[0; 9]), "too long | 9 bytes | [2, 1] | 4 bytes"),
        (file("<f4', 'x", &[2, 1], numbers), "header | dictionary"),
        (file(">f4", &[2, 1], numbers), "dtype | >f4 (big-endian) | <f4 |u1 <i2"),
        (file("|O", &[2, 1], numbers), "dtype | |O (Python objects)"),
        (file("<c8", &[1, 1], numbers), "dtype | <c8 (complex)"),
        (file("<U3", &[2, 1], &[0; 24]), "dtype | <U3"),
        (file("", &[2, 1], numbers), "dtype | <f4 |u1 <i2"),
        (file("<f4", &[], &[0; 4]), "shape | []"),
        (fortran("<f4", &[1, 1, 2], numbers), "Fortran order | numpy.ascontiguousarray"),
        (file("<f4", &[1 << 40, 1024], numbers), "truncated"),
        (file("<f4", &[usize::MAX, 1024], numbers), "truncated"),
    ];
    for (bytes, expected) in cases {
        let message = open(&bytes).expect_err(expected).to_string();
        assert!(names_all(&message, expected) && message.contains("x.npy: "), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

fn read(version: u8, text: &str) -> Result<(NpyHeader, usize), String> {
    let length = (text.len() as u32).to_le_bytes();
    let length = if version == 1 { &length[..2] } else { &length };
    NpyHeader::read(&[MAGIC, &[version, 0], length, text.as_bytes(), b"numbers"].concat())
}

#[test]
fn every_version_and_spelling_is_read() {
    for (version, text, before) in [
        (1, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }          \n", 10),
        (2, "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }\n", 12),
        (3, "{'shape': (3, 2,), 'fortran_order': False, 'descr': '<f4'}", 12),
        (1, r#"{"descr":"<f4","fortran_order":False,"shape":(3,2)}"#, 10),
        (1, " { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 3L , 2L ) } ", 10),
    ] {
        let (header, start) = read(version, text).unwrap();
        assert_eq!((header.descr, header.fortran_order, header.shape), ("<f4".into(), false, vec![3, 2]));
        assert_eq!(start, before + text.len());
    }
    let (scalar, _) = read(1, "{'descr': '|O', 'fortran_order': True, 'shape': ()}").unwrap();
    assert_eq!((scalar.descr, scalar.fortran_order, scalar.shape), ("|O".into(), true, vec![]));
    let records = "[('a', '<f4', (2,)), ('b', [('c', '|u1')])]";
    let text = format!("{{'descr': {records}, 'fortran_order': False, 'shape': (1,)}}");
    assert!(read(1, &text).unwrap().0.descr.is_array());
}

#[test]
fn a_written_header_is_read_back() {
    for (dtype, shape) in [("<f4", vec![2, 3]), ("<i8", vec![5]), ("|u1", vec![1 << 40, 7, 7])] {
        let bytes = npy_header(dtype, &shape);
        assert_eq!(bytes.len() % 64, 0);
        let (header, start) = NpyHeader::read(&bytes).unwrap();
        assert_eq!((header.descr, header.fortran_order), (dtype.into(), false));
        assert_eq!((header.shape, start), (shape, bytes.len()));
    }
}

#[test]
fn invalid_headers_are_rejected_with_the_reason() {
    let fault = |text: &str| read(1, text).expect_err(text);
    for (text, expected) in [
        ("garbage", "header | dictionary | descr, fortran_order and shape"),
        ("{'descr': '<f4', 'shape': (2, 1)}", "header | `fortran_order` | missing"),
        ("{'fortran_order': True, 'shape': (2, 1)}", "header | `descr` | missing"),
        ("{'descr': '<f4', 'fortran_order': True}", "header | `shape` | missing"),
        ("{'descr': '<f4', 'fortran_order': 1, 'shape': ()}", "header | 1 | true or false"),
        ("{'descr': '<f4', 'fortran_order': True, 'shape': (-2,)}", "header | -2 | whole number from 0"),
        (
            "{'descr': '<f4', 'fortran_order': True, 'shape': (99999999999999999999,)}",
            "header | whole number from 0",
        ),
        ("{'descr': '<f4', 'fortran_order': True, 'shape': (2,)} {}", "header | dictionary"),
        ("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), 'x': 1}", "header | `x` | unknown"),
        ("{'descr': '<f4, 'fortran_order': True", "header | dictionary"),
        ("{'descr': [('a', '<f4'), 'fortran_order': True", "header | dictionary"),
        ("{'descr", "header | dictionary"),
    ] {
        assert!(names_all(&fault(text), expected), "{}", fault(text));
    }
    let whole = [MAGIC, &[2, 0, 9, 0, 0, 0], b"{        "].concat();
    for length in 0..whole.len() {
        assert!(NpyHeader::read(&whole[..length]).is_err(), "{length}");
    }
}

#[test]
fn damaged_headers_are_errors_and_never_panics() {
    let whole = npy_header("<f4", &[2, 1]);
    for at in 0..whole.len() {
        for byte in [0, b'(', b'\'', b'[', b'9', 0xc3, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            if let Err(what) = NpyHeader::read(&damaged) {
                assert_eq!(what.lines().count(), 1, "{what}");
            }
        }
    }
}

#[test]
fn a_header_has_one_length() {
    for shape in [&[1usize][..], &[usize::MAX >> 20, 3, 1024, 1024]] {
        let header = npy_header("|u1", shape);
        assert_eq!((header.len(), header[127]), (HEADER, b'\n'));
    }
}
