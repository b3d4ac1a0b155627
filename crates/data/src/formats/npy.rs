//! `.npy`, NumPy's file format, read in parts: a magic number, a version, a length, a Python
//! dictionary of three entries as text, and the numbers.
//!
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html> describes it.

use std::io::{self, Write};
use std::path::Path;

use run_record::files::WholeFile;
use run_record::json_problem;
use serde::Deserialize;
use serde_json::Value;

use crate::DataError;
use crate::formats::data_file::DataFile;
use crate::quote::short;

/// The magic number of `.npy` files.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// Bytes of a header that [`npy_header`] writes, whatever the number of samples.
pub(crate) const HEADER: usize = 128;

/// A `.npy` header of version 1.0 for numbers of `dtype`, in row-major order: 128 bytes.
pub fn npy_header(dtype: &str, shape: &[usize]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let text = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({}), }}", sizes.trim_end());
    // Data begins at a multiple of 64 bytes, as in NumPy.
    let length = HEADER - MAGIC.len() - 4;
    let text = format!("{text:width$}\n", width = length - 1);
    [MAGIC, &[1, 0], &(length as u16).to_le_bytes(), text.as_bytes()].concat()
}

/// The dictionary in a header.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NpyHeader {
    /// The dtype in NumPy's notation, such as `<f4`; a list for records.
    descr: Value,
    /// Whether the order is Fortran's: the first dimension is contiguous, not the last.
    fortran_order: bool,
    /// The size of each dimension.
    shape: Vec<usize>,
}

impl NpyHeader {
    /// The header at the beginning of `file`, and the offset of the data; or what is wrong with it.
    fn read(file: &[u8]) -> Result<(Self, usize), String> {
        let after_magic =
            file.strip_prefix(MAGIC).ok_or("does not begin with the magic number of .npy files")?;
        let (length, before) = match *after_magic {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([a, b])), 4),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]) as usize, 6),
            _ => return Err("truncated: ends inside its header".into()),
        };
        let text = after_magic[before..].get(..length).ok_or("truncated: ends inside its header")?;
        // Latin-1 before version 3, UTF-8 in it; the supported entries are ASCII.
        let text = std::str::from_utf8(text).map_err(|_| "its header is not text")?;
        // A parser of Python literals has fifteen dependencies, and these literals are JSON but for their
        // signs. Python 2 wrote an L after long integers.
        let mut json = text.replace(|c: char| c.is_whitespace() || c == '\\', "");
        for (python, sign) in [
            ("'", "\""),
            ("(", "["),
            (")", "]"),
            ("True", "true"),
            ("False", "false"),
            ("L,", ","),
            ("L]", "]"),
            (",]", "]"),
            (",}", "}"),
        ] {
            json = json.replace(python, sign);
        }
        let header = serde_json::from_str(&json).map_err(|what: serde_json::Error| {
            let problem = json_problem(&what);
            let problem =
                problem.strip_prefix("line 1: ").map_or_else(String::new, |what| format!(": {what}"));
            format!("its header is not a dictionary of descr, fortran_order and shape{problem}")
        })?;
        Ok((header, MAGIC.len() + before + length))
    }
}

/// Writes rows of `columns` floats to a file, in place of what it held.
///
/// # Errors
/// When it cannot be written.
pub fn write_npy(path: &Path, columns: usize, values: &[f32]) -> io::Result<()> {
    let mut file = WholeFile::at(path)?;
    file.write_all(&npy_header("<f4", &[values.len() / columns.max(1), columns]))?;
    for value in values {
        file.write_all(&value.to_le_bytes())?;
    }
    file.finish()
}

/// The end of a message about the shape of an array of features.
pub const ONE_ROW: &str = ", expected one row per sample: reshape it to (samples, features)";

/// Bytes that are enough for a whole header, which describes one array.
const MOST_OF_HEADER: usize = 1 << 20;

/// A `.npy` file with a valid header, whose first dimension is that of the samples.
#[derive(Debug)]
pub struct NpyFile {
    /// The file.
    pub file: DataFile,
    /// Offset of the data in bytes.
    start: usize,
    /// The dtype in NumPy's notation, such as `<f4`.
    pub dtype: String,
    /// Bytes of an element.
    pub width: usize,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row; 1 in a file of one dimension.
    pub columns: usize,
    /// The size of each dimension.
    pub shape: Vec<usize>,
    /// Whether the order is Fortran's (column-major).
    pub fortran: bool,
}

impl NpyFile {
    /// Types of floats.
    pub(crate) const FLOATS: [&str; 3] = ["<f2", "<f4", "<f8"];
    /// Types of integers, as labels are.
    pub const INTEGERS: [&str; 8] = ["|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"];
    /// Types of strings, of Unicode and of bytes, whatever their length.
    pub(crate) const STRINGS: [&str; 2] = ["<U", "|S"];

    /// Opens `path`, whose dtype must be one of `dtypes`.
    ///
    /// # Errors
    /// When it cannot be read, is of another version or dtype, has no dimension, or more than two in Fortran's
    /// order, or is shorter or longer than its header says.
    pub fn open(path: &Path, dtypes: &[&str]) -> Result<Self, DataError> {
        let file = DataFile::open(path)?;
        let invalid = |what| DataError::damaged(path, what);
        let beginning = file.beginning(MOST_OF_HEADER)?;
        if let Some(kind) = run_record::files::foreign(&beginning)
            && !beginning.starts_with(MAGIC)
        {
            bail!(path, "is {kind}");
        }
        if let Some(&[major, minor, ..]) = beginning.strip_prefix(MAGIC)
            && !((1..=3).contains(&major) && minor == 0)
        {
            bail!(
                path,
                "version {major}.{minor} of the .npy format, expected 1.0, 2.0 or 3.0; save it again with numpy.save"
            );
        }
        let (NpyHeader { descr, fortran_order, shape }, start) =
            NpyHeader::read(&beginning).map_err(invalid)?;
        // A list of fields is no text.
        let dtype = descr.as_str().map_or_else(|| descr.to_string(), ToOwned::to_owned);
        let length = Self::STRINGS.iter().find_map(|kind| dtype.strip_prefix(kind)?.parse::<usize>().ok());
        let is_string = length.is_some_and(|length| length > 0) && dtypes.contains(&&dtype[..2]);
        if !(is_string || dtypes.contains(&&*dtype)) {
            bail!(path, "{}", unknown_dtype(&dtype, dtypes));
        }
        // A character of Unicode has four bytes.
        let unit = if dtype.starts_with("<U") { 4 } else { 1 };
        let width = dtype[2..].parse().ok().and_then(|width: usize| width.checked_mul(unit)).unwrap_or(1);
        let (rows, columns) = match &shape[..] {
            [rows, rest @ ..] if rest.len() < 2 || !fortran_order => {
                (*rows, rest.iter().try_fold(1usize, |count, size| count.checked_mul(*size)))
            }
            [_, _, ..] => bail!(
                path,
                "is in Fortran's order, which is read of one or two dimensions: save it again with \
                 numpy.ascontiguousarray"
            ),
            _ => bail!(path, "its shape is {shape:?}{ONE_ROW}"),
        };
        let count = columns.and_then(|columns| rows.checked_mul(columns));
        let size = count.and_then(|count| count.checked_mul(width)?.checked_add(start));
        let columns = columns.unwrap_or(usize::MAX);
        if size != Some(file.len) {
            let how = if size.is_none_or(|size| file.len < size) { "truncated" } else { "too long" };
            return Err(invalid(format!(
                "{how}: {} bytes after its header, which declares {rows} x {columns} numbers of {width} bytes",
                file.len - start
            )));
        }
        Ok(Self { file, start, dtype, width, rows, columns, shape, fortran: fortran_order })
    }

    /// Checks that `labels` has one label for each row, and that there are rows.
    ///
    /// # Errors
    /// When the two files do not match.
    pub(crate) fn check_labels(&self, labels: &Self) -> Result<(), DataError> {
        let (path, labels_path) = (&self.file.path, &labels.file.path);
        if labels.columns != 1 {
            if labels.shape.len() > 2 {
                bail!(labels_path, "its shape is {:?}, expected one label per sample", labels.shape);
            }
            bail!(
                labels_path,
                "{} labels per sample, expected one; of one-hot labels, save y.argmax(1)",
                labels.columns
            );
        }
        if self.rows != labels.rows {
            bail!(path, "{} samples, but {} labels in {}", self.rows, labels.rows, labels_path.display());
        }
        if self.rows == 0 || self.columns == 0 {
            if self.shape.len() > 2 {
                bail!(path, "its shape is {:?}: it contains no sample", self.shape);
            }
            bail!(path, "{} samples of {} features", self.rows, self.columns);
        }
        Ok(())
    }

    /// Calls `visit` with the index and the bytes of each of the first `limit` rows, in
    /// row order, for either memory order of the file.
    ///
    /// # Errors
    /// When the file cannot be read to its end, and those of `visit`.
    pub fn for_each_row(
        &self,
        limit: usize,
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        // A column has few bytes of each row: many rows are collected per read, to amortise
        // its system call.
        const BLOCK: usize = 1024;
        let (limit, width) = (limit.min(self.rows), self.width);
        if !self.fortran {
            return self.file.for_each_record(self.start, [limit, self.columns * width], visit);
        }
        let mut block = vec![0; BLOCK.min(limit) * self.columns * width];
        let mut part = vec![0; BLOCK.min(limit) * width];
        for first in (0..limit).step_by(BLOCK) {
            let count = BLOCK.min(limit - first);
            for column in 0..self.columns {
                let from = self.start + (column * self.rows + first) * width;
                let part = &mut part[..count * width];
                self.file.read(from, part)?;
                for (row, number) in part.chunks_exact(width).enumerate() {
                    let to = (row * self.columns + column) * width;
                    block[to..to + width].copy_from_slice(number);
                }
            }
            let rows = block.chunks_exact(self.columns * width).take(count);
            rows.enumerate().try_for_each(|(row, bytes)| visit(first + row, bytes))?;
        }
        Ok(())
    }

    /// Reads the bytes of a row of a file that is not in Fortran's order.
    ///
    /// # Errors
    /// When the file has no such row, or cannot be read.
    pub fn row(&self, row: usize, bytes: &mut [u8]) -> Result<(), DataError> {
        self.file.read(self.start + row * self.columns * self.width, bytes)
    }

    /// All numbers of a file of [`Self::INTEGERS`], in a type that has every one of them.
    ///
    /// # Errors
    /// When the file cannot be read to its end.
    pub fn integers(&self) -> Result<Vec<i128>, DataError> {
        let signed = self.dtype.contains('i');
        let mut values = Vec::with_capacity(self.rows * self.columns);
        self.for_each_row(self.rows, |_, bytes| {
            values.extend(bytes.chunks_exact(self.width).map(|bytes| Self::integer(bytes, signed)));
            Ok::<_, DataError>(())
        })?;
        Ok(values)
    }

    /// All strings of a file of [`Self::STRINGS`].
    ///
    /// # Errors
    /// When the file cannot be read to its end.
    pub(crate) fn strings(&self) -> Result<Vec<String>, DataError> {
        let is_unicode = self.dtype.starts_with("<U");
        let string = |bytes: &[u8]| {
            if is_unicode {
                let (letters, _) = bytes.as_chunks();
                let letter = |bytes: &[u8; 4]| char::from_u32(u32::from_le_bytes(*bytes));
                letters.iter().map(|bytes| letter(bytes).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
            } else {
                String::from_utf8_lossy(bytes).into_owned()
            }
        };
        let mut values = Vec::with_capacity(self.rows * self.columns);
        self.for_each_row(self.rows, |_, bytes| {
            let strings = bytes.chunks_exact(self.width).map(string);
            values.extend(strings.map(|text| text.trim_end_matches('\0').trim().to_owned()));
            Ok::<_, DataError>(())
        })?;
        Ok(values)
    }

    /// The integer in up to 16 bytes, the lowest of which is the first.
    pub(crate) fn integer(bytes: &[u8], signed: bool) -> i128 {
        let negative = signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        i128::from_le_bytes(wide)
    }
}

fn unknown_dtype(found: &str, dtypes: &[&str]) -> String {
    let why = match found.as_bytes().first() {
        Some(b'>') => " (big-endian)",
        _ if found.ends_with('O') => " (Python objects)",
        _ if found.starts_with('[') => " (records)",
        _ if found.get(1..2) == Some("c") => " (complex)",
        _ => "",
    };
    let how = if found.ends_with('O') { ", as with .astype(str) or .astype(float)" } else { "" };
    format!(
        "its dtype is {}{why}, expected one of {}; convert it with numpy's astype{how}",
        short(found),
        dtypes.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dtype: &str, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
        [&npy_header(dtype, shape), bytes].concat()
    }

    /// The same in Fortran order; its spelling has the same length.
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
            (vec![], "does not begin"),
            (b"PK\x03\x04 a zip archive".to_vec(), "is a zip archive: unpack it"),
            (version, "version 4.0 of the .npy format, expected 1.0"),
            (file("<f4", &[2, 1], numbers)[..40].to_vec(), "ends inside its header"),
            (file("<f4", &[2, 1], &numbers[1..]), "truncated: 7 bytes"),
            (file("<f4", &[2, 1], &[0; 9]), "too long: 9 bytes"),
            (file("<f4', 'x", &[2, 1], numbers), "its header is not a dictionary"),
            (file(">f4", &[2, 1], numbers), "dtype is >f4 (big-endian), expected one of <f4 |u1 <i2"),
            (file("|O", &[2, 1], numbers), "dtype is |O (Python objects)"),
            (file("<c8", &[1, 1], numbers), "dtype is <c8 (complex)"),
            (file("<U3", &[2, 1], &[0; 24]), "dtype is <U3, expected"),
            (file("", &[2, 1], numbers), "dtype is , expected"),
            (file("<f4", &[], &[0; 4]), "its shape is []"),
            (fortran("<f4", &[1, 1, 2], numbers), "is in Fortran's order, which is read of one or two"),
            (file("<f4", &[1 << 40, 1024], numbers), "truncated"),
            (file("<f4", &[usize::MAX, 1024], numbers), "truncated"),
        ];
        for (bytes, expected) in cases {
            let message = open(&bytes).expect_err(expected).to_string();
            assert!(message.contains(expected) && message.contains("x.npy: "), "{message}");
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
            ("garbage", "its header is not a dictionary of descr, fortran_order and shape"),
            ("{'descr': '<f4', 'shape': (2, 1)}", "shape: `fortran_order` is missing"),
            ("{'fortran_order': True, 'shape': (2, 1)}", "`descr` is missing"),
            ("{'descr': '<f4', 'fortran_order': True}", "`shape` is missing"),
            ("{'descr': '<f4', 'fortran_order': 1, 'shape': ()}", "1 where true or false is expected"),
            (
                "{'descr': '<f4', 'fortran_order': True, 'shape': (-2,)}",
                "-2 where a whole number from 0 is expected",
            ),
            (
                "{'descr': '<f4', 'fortran_order': True, 'shape': (99999999999999999999,)}",
                "where a whole number from 0",
            ),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (2,)} {}", "its header is not a dictionary"),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), 'x': 1}", "`x` is unknown"),
            ("{'descr': '<f4, 'fortran_order': True", "its header is not"),
            ("{'descr': [('a', '<f4'), 'fortran_order': True", "its header is not"),
            ("{'descr", "its header is not"),
        ] {
            assert!(fault(text).contains(expected), "{}", fault(text));
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
}
