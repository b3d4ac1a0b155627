//! The header of a `.npy` file: a magic number, a version, a length, and a Python
//! dictionary of three entries as text.
//!
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html> describes
//! it. The dictionary is parsed here, because a parser of Python literals has fifteen
//! dependencies.

/// Magic number of a `.npy` file.
pub const MAGIC: &[u8] = b"\x93NUMPY";

/// Content of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The dtype in NumPy's notation, such as `<f4`.
    pub dtype: String,
    /// Whether the order is Fortran's: the first dimension is contiguous, not the last.
    pub fortran: bool,
    /// The size of each dimension.
    pub shape: Vec<usize>,
    /// Offset of the data in bytes.
    pub start: usize,
}

/// Why a header cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub enum HeaderFault {
    /// An unsupported version.
    Version(u8, u8),
    /// Not a `.npy` file, or a damaged one, with the reason.
    Broken(String),
}

impl Header {
    /// Reads the header at the beginning of `file`.
    ///
    /// # Errors
    /// When it is of another version or broken.
    pub fn read(file: &[u8]) -> Result<Self, HeaderFault> {
        let broken = |what: &str| HeaderFault::Broken(what.to_owned());
        let after_magic = file
            .strip_prefix(MAGIC)
            .ok_or_else(|| broken("does not begin with the magic number of .npy files"))?;
        let ends = || broken("truncated: ends inside its header");
        let (length, before) = match *after_magic {
            [1, 0, a, b, ..] => (u32::from(u16::from_le_bytes([a, b])), 4),
            [2 | 3, 0, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]), 6),
            [1, 0, ..] | [2 | 3, 0, ..] | [] | [_] => return Err(ends()),
            [major, minor, ..] => return Err(HeaderFault::Version(major, minor)),
        };
        let text = after_magic[before..].get(..length as usize).ok_or_else(ends)?;
        // Latin-1 before version 3, UTF-8 in it; the supported entries are ASCII.
        let text = std::str::from_utf8(text).map_err(|_| broken("its header is not text"))?;
        let (dtype, fortran, shape) = dictionary(text).map_err(|what| {
            HeaderFault::Broken(format!(
                "its header is not a dictionary of descr, fortran_order and shape: {what}"
            ))
        })?;
        Ok(Self { dtype, fortran, shape, start: MAGIC.len() + before + length as usize })
    }

    /// A header of version 1.0 for numbers of `dtype`, in row-major order.
    pub fn write(dtype: &str, shape: &[usize]) -> Vec<u8> {
        let sizes: String = shape.iter().map(|size| format!("{size}, ")).collect();
        let mut text =
            format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({}), }}", sizes.trim_end());
        // Data begins at a multiple of 64 bytes, as in NumPy.
        let before = MAGIC.len() + 4;
        let length = (before + text.len() + 1).next_multiple_of(64) - before;
        text.extend(std::iter::repeat_n(' ', length - 1 - text.len()));
        text.push('\n');
        [MAGIC, &[1, 0], &(length as u16).to_le_bytes(), text.as_bytes()].concat()
    }
}

/// The three entries, in any order.
fn dictionary(text: &str) -> Result<(String, bool, Vec<usize>), String> {
    let (mut dtype, mut fortran, mut shape) = (None, None, None);
    let mut reader = Reader(text);
    reader.expect('{')?;
    while !reader.take('}') {
        let key = reader.quoted()?;
        reader.expect(':')?;
        match key {
            "descr" => dtype = Some(reader.dtype()?),
            "fortran_order" => fortran = Some(reader.boolean()?),
            "shape" => shape = Some(reader.tuple()?),
            other => return Err(format!("unexpected key {other:?}")),
        }
        if !reader.take(',') {
            reader.expect('}')?;
            break;
        }
    }
    match (dtype, fortran, shape, reader.0.trim()) {
        (Some(dtype), Some(fortran), Some(shape), "") => Ok((dtype, fortran, shape)),
        (None, ..) => Err("no descr".to_owned()),
        (_, None, ..) => Err("no fortran_order".to_owned()),
        (_, _, None, _) => Err("no shape".to_owned()),
        (.., more) => Err(format!("{more:?} after the dictionary")),
    }
}

/// Parser over the remaining text.
struct Reader<'a>(&'a str);

impl<'a> Reader<'a> {
    /// Consumes `mark` if it is next.
    fn take(&mut self, mark: char) -> bool {
        self.0 = self.0.trim_start();
        let rest = self.0.strip_prefix(mark);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn expect(&mut self, mark: char) -> Result<(), String> {
        match self.take(mark) {
            true => Ok(()),
            false => Err(format!("{mark} expected before {:?}", self.0.chars().take(12).collect::<String>())),
        }
    }

    /// Consumes the text before the first of `ends`.
    fn until(&mut self, ends: &[char]) -> Result<&'a str, String> {
        let at = self.0.find(ends).ok_or_else(|| format!("{} is missing", ends[0]))?;
        let (taken, rest) = self.0.split_at(at);
        self.0 = rest;
        Ok(taken)
    }

    /// Text in single or double quotes; keys and dtypes have no escapes.
    fn quoted(&mut self) -> Result<&'a str, String> {
        let mark = if self.take('"') { '"' } else { '\'' };
        if mark == '\'' {
            self.expect(mark)?;
        }
        let text = self.until(&[mark])?;
        self.expect(mark)?;
        Ok(text)
    }

    /// A name, or a list of fields, which is returned as text.
    fn dtype(&mut self) -> Result<String, String> {
        if !self.take('[') {
            return self.quoted().map(ToOwned::to_owned);
        }
        let (mut list, mut open) = ("[".to_owned(), 1);
        while open > 0 {
            list += self.until(&['[', ']'])?;
            let mark = if self.take('[') { '[' } else { ']' };
            if mark == ']' {
                self.expect(mark)?;
            }
            open += if mark == '[' { 1 } else { -1 };
            list.push(mark);
        }
        Ok(list)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        match self.until(&[',', '}'])?.trim() {
            "True" => Ok(true),
            "False" => Ok(false),
            other => Err(format!("fortran_order is {other:?}")),
        }
    }

    fn tuple(&mut self) -> Result<Vec<usize>, String> {
        self.expect('(')?;
        let sizes = self.until(&[')'])?;
        self.expect(')')?;
        let size = |text: &str| {
            // Python 2 wrote an L after long integers.
            text.trim_end_matches('L').parse().map_err(|_| format!("invalid dimension {text:?}"))
        };
        sizes.split(',').map(str::trim).filter(|text| !text.is_empty()).map(size).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(version: u8, text: &str) -> Result<Header, HeaderFault> {
        let length = (text.len() as u32).to_le_bytes();
        let length = if version == 1 { &length[..2] } else { &length };
        Header::read(&[MAGIC, &[version, 0], length, text.as_bytes(), b"numbers"].concat())
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
            let header = read(version, text).unwrap();
            let start = before + text.len();
            assert_eq!(header, Header { dtype: "<f4".into(), fortran: false, shape: vec![3, 2], start });
        }
        let scalar = read(1, "{'descr': '|O', 'fortran_order': True, 'shape': ()}").unwrap();
        assert_eq!((&*scalar.dtype, scalar.fortran, scalar.shape), ("|O", true, vec![]));
        let records = "[('a', '<f4', (2,)), ('b', [('c', '|u1')])]";
        let text = format!("{{'descr': {records}, 'fortran_order': False, 'shape': (1,)}}");
        assert_eq!(read(1, &text).unwrap().dtype, records);
    }

    #[test]
    fn a_written_header_is_read_back() {
        for (dtype, shape) in [("<f4", vec![2, 3]), ("<i8", vec![5]), ("|u1", vec![1 << 40, 7, 7])] {
            let bytes = Header::write(dtype, &shape);
            assert_eq!(bytes.len() % 64, 0);
            let header = Header::read(&bytes).unwrap();
            assert_eq!(header, Header { dtype: dtype.into(), fortran: false, shape, start: bytes.len() });
        }
    }

    #[test]
    fn invalid_headers_are_rejected_with_the_reason() {
        let fault = |text: &str| match read(1, text) {
            Err(HeaderFault::Broken(what)) => what,
            other => panic!("{text}: {other:?}"),
        };
        for (text, expected) in [
            ("garbage", "{ expected before \"garbage\""),
            ("{'descr': '<f4', 'shape': (2, 1)}", "no fortran_order"),
            ("{'fortran_order': True, 'shape': (2, 1)}", "no descr"),
            ("{'descr': '<f4', 'fortran_order': True}", "no shape"),
            ("{'descr': '<f4', 'fortran_order': 1, 'shape': ()}", "fortran_order is \"1\""),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (-2,)}", "invalid dimension \"-2\""),
            (
                "{'descr': '<f4', 'fortran_order': True, 'shape': (99999999999999999999,)}",
                "invalid dimension",
            ),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (2,)} {}", "\"{}\" after the dictionary"),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (2,), 'x': 1}", "unexpected key \"x\""),
            ("{'descr': '<f4, 'fortran_order': True", "} expected before"),
            ("{'descr': [('a', '<f4'), 'fortran_order': True", "[ is missing"),
            ("{'descr", "' is missing"),
        ] {
            assert!(fault(text).contains(expected), "{}", fault(text));
        }
        assert_eq!(read(4, "{}"), Err(HeaderFault::Version(4, 0)));
        let whole = [MAGIC, &[2, 0, 9, 0, 0, 0], b"{        "].concat();
        for length in 0..whole.len() {
            let cut = Header::read(&whole[..length]).unwrap_err();
            assert!(matches!(cut, HeaderFault::Broken(_)), "{length}: {cut:?}");
        }
    }

    #[test]
    fn damaged_headers_are_errors_and_never_panics() {
        let whole = Header::write("<f4", &[2, 1]);
        for at in 0..whole.len() {
            for byte in [0, b'(', b'\'', b'[', b'9', 0xc3, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                if let Err(HeaderFault::Broken(what)) = Header::read(&damaged) {
                    assert_eq!(what.lines().count(), 1, "{what}");
                }
            }
        }
    }
}
