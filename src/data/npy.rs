//! `.npy`, NumPy's file format, read in parts.

use std::io::{self, Write};
use std::path::Path;

use super::data_file::DataFile;
use super::npy_header::{Header, HeaderFault};
use super::{DataError, DataFormat};
use run_record::files::WholeFile;

/// Writes rows of `columns` floats to a file, in place of what it held.
///
/// # Errors
/// When it cannot be written.
pub fn write_npy(path: &Path, columns: usize, values: &[f32]) -> io::Result<()> {
    let mut file = WholeFile::at(path)?;
    file.write_all(&Header::write("<f4", &[values.len() / columns.max(1), columns]))?;
    for value in values {
        file.write_all(&value.to_le_bytes())?;
    }
    file.finish()
}

/// Bytes that are enough for a whole header, which describes one array.
const MOST_OF_HEADER: usize = 1 << 20;

/// A `.npy` file of one or two dimensions with a valid header.
#[derive(Debug)]
pub struct NpyFile {
    file: DataFile,
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
    /// Whether the order is Fortran's (column-major).
    fortran: bool,
}

impl NpyFile {
    /// Opens `path`, whose dtype must be one of `dtypes`.
    ///
    /// # Errors
    /// When it cannot be read, is of another version, dtype or number of
    /// dimensions, or is shorter or longer than its header says.
    pub fn open(path: &Path, dtypes: &[&str]) -> Result<Self, DataError> {
        let file = DataFile::open(path)?;
        let invalid = |what| DataError::Invalid { path: path.to_owned(), what, kind: DataFormat::Npy };
        let unsuitable = |what| DataError::Unsuitable { path: path.to_owned(), what };
        let header = Header::read(&file.beginning(MOST_OF_HEADER)?).map_err(|fault| match fault {
            HeaderFault::Broken(what) => invalid(what),
            HeaderFault::Version(major, minor) => unsuitable(format!(
                "version {major}.{minor} of the .npy format, expected 1.0, 2.0 or 3.0; save it again with numpy.save"
            )),
        })?;
        let Header { dtype, fortran, shape, start } = header;
        if !dtypes.contains(&&*dtype) {
            return Err(unsuitable(unknown_dtype(&dtype, dtypes)));
        }
        let width = dtype[2..].parse().unwrap_or(1);
        let (rows, columns) = match shape[..] {
            [rows] => (rows, 1),
            [rows, columns] => (rows, columns),
            _ => {
                return Err(unsuitable(format!(
                    "its shape is {shape:?}, expected one row per sample: reshape it to (samples, features)"
                )));
            }
        };
        let size = rows.checked_mul(columns).and_then(|count| count.checked_mul(width)?.checked_add(start));
        if size != Some(file.len()) {
            let how = if size.is_none_or(|size| file.len() < size) { "truncated" } else { "too long" };
            return Err(invalid(format!(
                "{how}: {} bytes after its header, which declares {rows} x {columns} numbers of {width} bytes",
                file.len() - start
            )));
        }
        Ok(Self { file, start, dtype, width, rows, columns, fortran })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Calls `visit` with the index and the bytes of each of the first `limit` rows, in
    /// row order, for either memory order of the file.
    ///
    /// # Errors
    /// When the file cannot be read to its end, and those of `visit`.
    pub fn for_each_row<E: From<DataError>>(
        &self,
        limit: usize,
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
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
}

fn unknown_dtype(found: &str, dtypes: &[&str]) -> String {
    let why = match found.as_bytes().first() {
        Some(b'>') => " (big-endian)",
        _ if found.ends_with('O') => " (Python objects)",
        _ if found.starts_with('[') => " (records)",
        _ if found.get(1..2) == Some("c") => " (complex)",
        _ => "",
    };
    format!("its dtype is {found}{why}, expected one of {}; convert it with numpy's astype", dtypes.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dtype: &str, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
        [&Header::write(dtype, shape), bytes].concat()
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
            (b"PK\x03\x04 a zip archive".to_vec(), "does not begin"),
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
            (file("<f4", &[1, 1, 2], numbers), "its shape is [1, 1, 2]"),
            (file("<f4", &[1 << 40, 1024], numbers), "truncated"),
            (file("<f4", &[usize::MAX, 1024], numbers), "truncated"),
        ];
        for (bytes, expected) in cases {
            let message = open(&bytes).expect_err(expected).to_string();
            assert!(message.contains(expected) && message.contains("x.npy: "), "{message}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
}
