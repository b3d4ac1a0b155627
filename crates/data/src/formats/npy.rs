//! Reads and writes `.npy` files, NumPy's file format for one array. Rows are read on request, so an array
//! need not fit into memory.
//!
//! A file consists of a magic number, a version, the length of the header text, the header text, and the
//! numbers. The header text is a Python dictionary with three entries: dtype, memory order and shape. The
//! format is described at <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use run_record::files::WholeFile;
use run_record::{count, json_problem};
use serde::Deserialize;
use serde_json::Value;

use crate::formats::data_file::DataFile;
use crate::quote::short;
use crate::source::SplitReader;
use crate::{DataError, Element};

/// Magic number at the beginning of a `.npy` file.
pub(crate) const MAGIC: &[u8] = b"\x93NUMPY";

/// Size in bytes of each header that [`npy_header`] writes. The size does not depend on the number of
/// samples, so a writer can replace the header when it knows this number.
pub(crate) const HEADER: usize = 128;

/// Returns a `.npy` header of version 1.0 for numbers of `dtype` in row-major order, 128 bytes long.
pub fn npy_header(dtype: &str, shape: &[usize]) -> Vec<u8> {
    let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let text = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({}), }}", sizes.trim_end());
    // The numbers begin at a multiple of 64 bytes, as NumPy writes them.
    let length = HEADER - MAGIC.len() - 4;
    let text = format!("{text:width$}\n", width = length - 1);
    [MAGIC, &[1, 0], &(length as u16).to_le_bytes(), text.as_bytes()].concat()
}

/// The dictionary in the header text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NpyHeader {
    /// The dtype in NumPy's notation, such as `<f4`. For records it is a list.
    descr: Value,
    /// Whether the numbers are in Fortran order: the first dimension is contiguous instead of the last.
    fortran_order: bool,
    /// The size of each dimension.
    shape: Vec<usize>,
}

impl NpyHeader {
    /// Parses the header at the beginning of `file`. Returns the header and the offset of the numbers, or
    /// what is wrong with the header.
    fn read(file: &[u8]) -> Result<(Self, usize), String> {
        let after_magic =
            file.strip_prefix(MAGIC).ok_or("does not begin with the magic number of .npy files")?;
        let (length, before) = match *after_magic {
            [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([a, b])), 4),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]) as usize, 6),
            _ => return Err("is truncated inside its header".into()),
        };
        let text = after_magic[before..].get(..length).ok_or("is truncated inside its header")?;
        // The text is Latin-1 before version 3, and UTF-8 in version 3. All supported dictionaries are ASCII,
        // so the text is read as UTF-8 in every version.
        let text = std::str::from_utf8(text).map_err(|_| "has a header that is not text")?;
        // A crate that parses Python literals would add fifteen dependencies. The literals of a header differ
        // from JSON only in quotation marks, brackets, commas and the case of booleans, so the text is
        // converted to JSON. Python 2 also wrote an L after long integers.
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
            format!("has a header that is not a dictionary of descr, fortran_order and shape{problem}")
        })?;
        Ok((header, MAGIC.len() + before + length))
    }
}

/// Writes `values` as rows of `columns` floats to the file `path`. An existing file is replaced.
///
/// # Errors
/// When the file cannot be written.
pub fn write_npy(path: &Path, columns: usize, values: &[f32]) -> io::Result<()> {
    let mut file = WholeFile::at(path)?;
    file.write_all(&npy_header("<f4", &[values.len() / columns.max(1), columns]))?;
    for value in values {
        file.write_all(&value.to_le_bytes())?;
    }
    file.finish()
}

/// End of an error message about the shape of an array of features.
pub const ONE_ROW: &str = ", but one row per sample is required: reshape it to (samples, features)";

/// Maximum number of bytes that are read to parse the header. A header is longer only if its dtype is a
/// record with very many fields, and records are not supported.
const MOST_OF_HEADER: usize = 1 << 20;

/// An open `.npy` file with a valid header. Its first dimension counts the samples: a row is one sample.
#[derive(Debug)]
pub struct NpyFile {
    /// The file.
    pub file: DataFile,
    /// Offset of the numbers in bytes.
    start: usize,
    /// The dtype in NumPy's notation, such as `<f4`.
    pub dtype: String,
    /// Size of an element in bytes.
    pub width: usize,
    /// Number of rows.
    pub rows: usize,
    /// Number of elements in a row. A row of a file with one dimension has one element.
    pub columns: usize,
    /// The size of each dimension.
    pub shape: Vec<usize>,
    /// Whether the numbers are in Fortran order (column-major).
    pub fortran: bool,
}

impl NpyFile {
    /// Dtypes of floats.
    pub(crate) const FLOATS: [&str; 3] = ["<f2", "<f4", "<f8"];
    /// Dtypes of integers.
    pub const INTEGERS: [&str; 8] = ["|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"];
    /// The first two characters of the dtypes of strings: Unicode strings and byte strings. In a dtype, the
    /// length of the strings follows.
    pub(crate) const STRINGS: [&str; 2] = ["<U", "|S"];

    /// Opens the file `path`. Its dtype must be one of `dtypes`. For strings, `dtypes` has only the first two
    /// characters of the dtype.
    ///
    /// # Errors
    /// When the file cannot be read, has no valid header, has another version or dtype, has no dimension, has
    /// more than two dimensions in Fortran order, or is shorter or longer than its header declares.
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
                "has version {major}.{minor} of the .npy format, but only 1.0, 2.0 and 3.0 are supported; save it \
                 again with numpy.save"
            );
        }
        let (NpyHeader { descr, fortran_order, shape }, start) =
            NpyHeader::read(&beginning).map_err(invalid)?;
        // The dtype of records is a list instead of text.
        let dtype = descr.as_str().map_or_else(|| descr.to_string(), ToOwned::to_owned);
        let length = Self::STRINGS.iter().find_map(|kind| dtype.strip_prefix(kind)?.parse::<usize>().ok());
        let is_string = length.is_some_and(|length| length > 0) && dtypes.contains(&&dtype[..2]);
        if !(is_string || dtypes.contains(&&*dtype)) {
            bail!(path, "{}", unknown_dtype(&dtype, dtypes));
        }
        // A Unicode character takes four bytes.
        let unit = if dtype.starts_with("<U") { 4 } else { 1 };
        let width = dtype[2..].parse().ok().and_then(|width: usize| width.checked_mul(unit)).unwrap_or(1);
        let (rows, columns) = match &shape[..] {
            [rows, rest @ ..] if rest.len() < 2 || !fortran_order => {
                (*rows, rest.iter().try_fold(1usize, |count, size| count.checked_mul(*size)))
            }
            [_, _, ..] => bail!(
                path,
                "is in Fortran order, which is supported only for one or two dimensions: save it again with \
                 numpy.ascontiguousarray"
            ),
            _ => bail!(path, "has the shape {shape:?}{ONE_ROW}"),
        };
        let count = columns.and_then(|columns| rows.checked_mul(columns));
        let size = count.and_then(|count| count.checked_mul(width)?.checked_add(start));
        let columns = columns.unwrap_or(usize::MAX);
        if size != Some(file.len) {
            let how = if size.is_none_or(|size| file.len < size) { "is truncated" } else { "is too long" };
            return Err(invalid(format!(
                "{how}: {} after its header, which declares the shape {shape:?} with {} for each number",
                run_record::count(file.len - start, "byte"),
                run_record::count(width, "byte")
            )));
        }
        Ok(Self { file, start, dtype, width, rows, columns, shape, fortran: fortran_order })
    }

    /// Checks that `labels` has one label for each row of this file, and that this file has at least one row
    /// and one column.
    ///
    /// # Errors
    /// When the two files do not match, or when there is no row or no column.
    pub(crate) fn check_labels(&self, labels: &Self) -> Result<(), DataError> {
        let (path, labels_path) = (&self.file.path, &labels.file.path);
        if labels.columns != 1 {
            if labels.shape.len() > 2 {
                bail!(labels_path, "has the shape {:?}, but one label per sample is required", labels.shape);
            }
            bail!(
                labels_path,
                "contains {} labels per sample, but one is required; for one-hot labels, save y.argmax(1)",
                labels.columns
            );
        }
        if self.rows != labels.rows {
            bail!(
                path,
                "contains {}, but {} contains {}",
                count(self.rows, "sample"),
                labels_path.display(),
                count(labels.rows, "label")
            );
        }
        if self.rows == 0 || self.columns == 0 {
            if self.shape.len() > 2 {
                bail!(path, "has the shape {:?}: it contains no samples", self.shape);
            }
            bail!(
                path,
                "contains {} samples of {} features: at least one of each is required",
                self.rows,
                self.columns
            );
        }
        Ok(())
    }

    /// Calls `visit` with the index and the bytes of each of the first `limit` rows, in the order of the
    /// rows. The file may be in Fortran order.
    ///
    /// # Errors
    /// When a row cannot be read, or when `visit` returns an error.
    pub fn for_each_row(
        &self,
        limit: usize,
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        // In Fortran order, the elements of a column are adjacent, and those of a row are spread over the
        // file. Each read takes the elements of many rows from one column, so there are fewer system calls.
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

    /// Reads one row into `bytes`, which must have the length of a row. The file must not be in Fortran
    /// order.
    ///
    /// # Errors
    /// When the file has no such row, or cannot be read.
    pub fn row(&self, row: usize, bytes: &mut [u8]) -> Result<(), DataError> {
        self.file.read(self.start + row * self.columns * self.width, bytes)
    }

    /// Reads all numbers of a file with one of the dtypes [`Self::INTEGERS`]. They are returned as i128,
    /// which can hold every number of these types.
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

    /// Reads all strings of a file with one of the dtypes [`Self::STRINGS`]. Removes the zeros that pad a
    /// string at its end, and blanks at both ends.
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

    /// Converts up to 16 little-endian bytes to an integer.
    pub(crate) fn integer(bytes: &[u8], signed: bool) -> i128 {
        let negative = signed && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; 16];
        wide[..bytes.len()].copy_from_slice(bytes);
        i128::from_le_bytes(wide)
    }
}

/// A split whose samples are the rows of a file. Rows are read on request.
pub(super) struct NpyRows {
    pub(super) file: Arc<NpyFile>,
    /// Class of each sample.
    pub(super) labels: Vec<u16>,
    pub(super) element: Element,
}

impl SplitReader for NpyRows {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn for_each(&self, limit: usize, visit: &mut dyn FnMut(usize, &[u8])) -> Result<(), DataError> {
        let mut values = Vec::new();
        self.file.for_each_row(limit, |sample, bytes| {
            values.clear();
            if self.element != Element::U8 {
                self.element.cast(bytes, &mut values);
            }
            if let Some(feature) = values.iter().position(|value| !value.is_finite()) {
                bail!(
                    &self.file.file.path,
                    "feature {feature} of sample {sample} is {} as f32; clean or scale the features",
                    values[feature]
                );
            }
            visit(sample, bytes);
            Ok(())
        })
    }

    fn labels(&self, limit: usize) -> Result<Vec<u16>, DataError> {
        Ok(self.labels[..limit.min(self.len())].to_vec())
    }

    fn rows(&self) -> Option<Arc<NpyFile>> {
        Some(self.file.clone())
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
        "has the dtype {}{why}, but one of {} is required; convert it with numpy's astype{how}",
        short(found),
        dtypes.join(" ")
    )
}

#[cfg(test)]
#[path = "npy_tests.rs"]
mod tests;
