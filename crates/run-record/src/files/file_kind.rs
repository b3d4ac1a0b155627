//! Detects the kind of a file by its first bytes, to say what to do about a file of the wrong kind.
//!
//! A reader that does not find its own format calls [`foreign`]. Its error can then say "a picture (HEIC):
//! save it as PNG or JPEG", instead of a syntax error in the reader's own format. Magic numbers are from
//! file(1) (magic/Magdir) and from the formats' specifications.

use std::fmt;
use std::io::Read;
use std::path::Path;

use super::open_regular;

/// Number of bytes from the beginning of a file that [`foreign`] needs. In an ARFF table, comments of a few
/// thousand bytes can precede the relation's name.
pub const BEGINNING: usize = 1 << 12;

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileKind {
    /// Name, as it follows "is": `a picture (HEIC)`, `compressed with gzip`.
    pub name: &'static str,
    /// What to do with the file. Empty for executables, and for formats that another part of mpiburn reads:
    /// the caller then has better advice.
    pub advice: &'static str,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.advice {
            "" => f.write_str(self.name),
            advice => write!(f, "{}: {advice}", self.name),
        }
    }
}

/// First bytes of a Git LFS pointer, the small file that replaces a large one in the work tree.
/// <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";
pub(super) const POINTER: FileKind = FileKind {
    name: "a Git LFS pointer, not the file",
    advice: "run git lfs pull, or download the file itself",
};
/// Maximum size of a pointer in bytes.
pub(super) const MOST_OF_POINTER: u64 = 1024;

pub(super) fn is_pointer(beginning: &[u8]) -> bool {
    beginning.starts_with(LFS)
}

// Advice for more than one kind.
const READ_ELSEWHERE: &str = "";
const UNPACK: &str = "unpack it";
const PICTURE: &str = "save it as PNG or JPEG";
const DOWNLOAD: &str = "download the file again; sign in or accept the terms first if the site asks for it";
const TABLE: &str = "save the table as .csv or .parquet";
const ARRAYS: &str = "save its arrays with numpy.savez";
const FRAMES: &str = "save its frames as PNG or JPEG";
const WEIGHTS: &str = "save its state_dict with safetensors.torch.save_file";
const UTF8: &str = "save it in UTF-8";

/// Offset, bytes at this offset, name and advice. The first match counts. A kind whose bytes begin with the
/// bytes of another kind therefore comes before that kind.
const KINDS: [(usize, &[u8], &str, &str); 75] = [
    (0, LFS, POINTER.name, POINTER.advice),
    // Responses that servers send instead of a file.
    (0, b"404: Not Found", "a server's message that the file was not found", DOWNLOAD),
    (0, b"Entry not found", "a server's message that the file was not found", DOWNLOAD),
    // Archives and packed files.
    (0, b"\x1f\x8b", "compressed with gzip", UNPACK),
    (0, b"\x1f\x9d", "compressed with compress", UNPACK),
    // Preceded by "BZh" and the level, 1 to 9.
    (4, b"1AY&SY", "compressed with bzip2", UNPACK),
    (0, b"\xfd7zXZ\0", "compressed with xz", UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd", UNPACK),
    (0, b"\x04\x22\x4d\x18", "compressed with lz4", UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (0, b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    (0, b"MSCF\0\0\0\0", "a Windows cabinet", UNPACK),
    (257, b"ustar", "a tar archive", UNPACK),
    // Pictures that this program reads.
    (0, b"\x89PNG\r\n\x1a\n", "a picture (PNG)", READ_ELSEWHERE),
    (0, b"\xff\xd8\xff", "a picture (JPEG)", READ_ELSEWHERE),
    (0, b"GIF87a", "a picture (GIF)", READ_ELSEWHERE),
    (0, b"GIF89a", "a picture (GIF)", READ_ELSEWHERE),
    (0, b"II*\0", "a picture (TIFF)", READ_ELSEWHERE),
    (0, b"MM\0*", "a picture (TIFF)", READ_ELSEWHERE),
    (8, b"WEBPVP8", "a picture (WebP)", READ_ELSEWHERE),
    // Pictures that this program does not read.
    (0, b"\xff\x0a", "a picture (JPEG XL)", PICTURE),
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", "a picture (JPEG XL)", PICTURE),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "a picture (JPEG 2000)", PICTURE),
    (0, b"\xff\x4f\xff\x51", "a picture (JPEG 2000)", PICTURE),
    (0, b"II+\0", "a picture (BigTIFF)", PICTURE),
    (0, b"MM\0+", "a picture (BigTIFF)", PICTURE),
    (0, b"8BPS\0", "a picture (Photoshop PSD)", PICTURE),
    (0, b"gimp xcf", "a picture (GIMP XCF)", PICTURE),
    (0, b"\0\0\x01\0", "a picture (ICO)", PICTURE),
    (0, b"qoif\0", "a picture (QOI)", PICTURE),
    (0, b"DDS \x7c\0\0\0", "a picture (DDS)", PICTURE),
    (0, b"\x76\x2f\x31\x01", "a picture (OpenEXR)", PICTURE),
    (0, b"FUJIFILMCCD-RAW", "a raw camera picture", PICTURE),
    (0, b"IIU\0", "a raw camera picture", PICTURE),
    (0, b"IIRO", "a raw camera picture", PICTURE),
    (128, b"DICM", "a medical picture (DICOM)", PICTURE),
    (344, b"n+1\0", "a medical volume (NIfTI)", ARRAYS),
    (0, b"SIMPLE  =", "an astronomical picture (FITS)", PICTURE),
    (0, b"%PDF-", "a PDF document", "save its pictures as PNG, or its table as .csv"),
    (0, b"%!PS-", "a PostScript document", PICTURE),
    // Video and sound.
    (8, b"AVI ", "a video (AVI)", FRAMES),
    (0, b"\x1a\x45\xdf\xa3", "a video (Matroska or WebM)", FRAMES),
    (8, b"WAVE", "sound (WAV)", "save spectrograms as PNG, or features as .csv"),
    (0, b"ID3", "sound (MP3)", "save spectrograms as PNG, or features as .csv"),
    // Arrays and weights.
    (0, b"\x93NUMPY", "a NumPy array (.npy)", READ_ELSEWHERE),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", ARRAYS),
    (
        0,
        b"MATLAB 5.0 MAT-file",
        "a MATLAB file",
        "read it with scipy.io.loadmat, and save its arrays with numpy.savez",
    ),
    (
        0,
        b"MATLAB 7.3 MAT-file",
        "a MATLAB file of version 7.3",
        "read it with h5py, and save its arrays with numpy.savez",
    ),
    (0, b"CDF\x01", "a NetCDF file", ARRAYS),
    (0, b"CDF\x02", "a NetCDF file", ARRAYS),
    (0, b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9", "a PyTorch checkpoint", WEIGHTS),
    (5, b"\0\0\0{\"", "a safetensors file", READ_ELSEWHERE),
    (4, b"TFL3", "a TensorFlow Lite model", READ_ELSEWHERE),
    // Tables.
    (0, b"PAR1", "a Parquet table", READ_ELSEWHERE),
    (0, b"PARE", "an encrypted Parquet table", "write it without encryption"),
    (0, b"ARROW1\0\0", "an Arrow table (Feather)", TABLE),
    (0, b"FEA1\0", "an Arrow table (Feather)", TABLE),
    (8, b"\x10\0\0\0\0\0\x0a\0", "an Arrow stream", TABLE),
    (0, b"SQLite format 3\0", "an SQLite database", TABLE),
    (0, b"ORC", "an ORC table", TABLE),
    (0, b"Obj\x01", "an Avro table", TABLE),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Excel or Word document (.xls, .doc)", TABLE),
    (0, b"$FL2@(#)", "an SPSS table", TABLE),
    (0, b"$FL3@(#)", "an SPSS table", TABLE),
    (0, b"<stata_dta>", "a Stata table", TABLE),
    (84, b"SAS FILE", "a SAS table", TABLE),
    (0, b"HEADER RECORD*******", "a SAS table", TABLE),
    (0, b"RDX2\n", "an R data file", TABLE),
    (0, b"RDX3\n", "an R data file", TABLE),
    (0, b"X\n\0\0\0", "an R data file", TABLE),
    // Text in another encoding than UTF-8.
    (0, b"\xff\xfe", "in UTF-16", UTF8),
    (0, b"\xfe\xff", "in UTF-16", UTF8),
    (0, b"\x7fELF", "a program", READ_ELSEWHERE),
    (0, b"\xca\xfe\xba\xbe", "a program", READ_ELSEWHERE),
    (0, b"MZ\x90\0", "a program", READ_ELSEWHERE),
];

/// For each format that is a zip archive inside: a part of the name of the archive's first entry, the name of
/// the kind, and advice.
const ZIPPED: [(&[u8], &str, &str); 7] = [
    (b".npy", "a NumPy archive (.npz)", READ_ELSEWHERE),
    (b"/data.pkl", "a PyTorch checkpoint", WEIGHTS),
    (b"[Content_Types].xml", "an Office spreadsheet or document", TABLE),
    (b"_rels/", "an Office spreadsheet or document", TABLE),
    (b"docProps/", "an Office spreadsheet or document", TABLE),
    (b"xl/", "an Office spreadsheet or document", TABLE),
    (b"mimetype", "an OpenDocument spreadsheet or document", TABLE),
];

/// Detects the kind of a file from its beginning; only the first [`BEGINNING`] bytes are used. `None` if the
/// kind is unknown or the file may be a text table.
pub fn foreign(beginning: &[u8]) -> Option<FileKind> {
    let beginning = &beginning[..beginning.len().min(BEGINNING)];
    let is_text = !beginning.iter().any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace());
    let starts = |&(offset, magic, ..): &(usize, &[u8], &str, &str)| {
        // A text table may contain the same letters by chance. In a text, a magic number of letters therefore
        // counts only if it is at the beginning and has more than four letters.
        beginning.get(offset..).is_some_and(|rest| rest.starts_with(magic))
            && !(is_text && magic.is_ascii() && (offset > 0 || magic.len() <= 4))
    };
    if let Some(&(.., name, advice)) = KINDS.iter().find(|kind| starts(kind)) {
        return Some(FileKind { name, advice });
    }
    media(beginning)
        .or_else(|| zipped(beginning))
        .or_else(|| bitmap(beginning))
        .or_else(|| pickle(beginning))
        .or_else(|| {
            let text = String::from_utf8_lossy(beginning);
            markup(text.trim_start_matches('\u{feff}').trim_start())
        })
}

/// Detects the kind of the file `path`; `None` also if it cannot be read.
pub fn foreign_file(path: &Path) -> Option<FileKind> {
    let mut beginning = Vec::new();
    open_regular(path).ok()?.take(BEGINNING as u64).read_to_end(&mut beginning).ok()?;
    foreign(&beginning)
}

/// Detects files in the ISO base media format. The brand in the file tells HEIC, AVIF and video apart.
fn media(beginning: &[u8]) -> Option<FileKind> {
    let brand = beginning.strip_prefix(&[0, 0]).filter(|rest| rest.get(2..6) == Some(b"ftyp"))?.get(6..10)?;
    let [name, advice] = match brand {
        b"avif" | b"avis" => ["a picture (AVIF)", PICTURE],
        b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"mif1" | b"msf1" => {
            ["a picture (HEIC)", PICTURE]
        }
        b"crx " => ["a raw camera picture", PICTURE],
        _ => ["a video (MP4 or QuickTime)", FRAMES],
    };
    Some(FileKind { name, advice })
}

/// Detects zip archives, and formats that are zip archives inside.
fn zipped(beginning: &[u8]) -> Option<FileKind> {
    /// Offset of the length of the first entry's name. The name itself begins at `NAME`.
    const LENGTH: usize = 26;
    const NAME: usize = 30;
    let [b'P', b'K', 3 | 5, _, ..] = beginning else { return None };
    let length = beginning
        .get(LENGTH..LENGTH + 2)
        .map_or(0, |bytes| usize::from(u16::from_le_bytes([bytes[0], bytes[1]])));
    let name = beginning.get(NAME..NAME + length).unwrap_or_default();
    let is_in_name = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
    let of_entry = ZIPPED.iter().find(|(part, ..)| is_in_name(part));
    let (name, advice) = of_entry.map_or(("a zip archive", UNPACK), |&(_, name, advice)| (name, advice));
    Some(FileKind { name, advice })
}

/// Detects BMP pictures. Their magic number is two letters, which a table may begin with too. The reserved
/// bytes must therefore be zero, and the header must have one of the known lengths.
fn bitmap(beginning: &[u8]) -> Option<FileKind> {
    let is_header = matches!(beginning.get(14), Some(12 | 16 | 40 | 52 | 56 | 64 | 108 | 124));
    (beginning.starts_with(b"BM") && beginning.get(6..10) == Some(&[0; 4]) && is_header)
        .then_some(FileKind { name: "a picture (BMP)", advice: READ_ELSEWHERE })
}

/// Detects pickles of Python's protocols 2 to 5.
fn pickle(beginning: &[u8]) -> Option<FileKind> {
    matches!(beginning, [0x80, 2..=5, ..]).then_some(FileKind {
        name: "a Python pickle",
        advice: "save it as .csv, .npz or pictures; for CIFAR batches, import their folder",
    })
}

/// Detects HTML, SVG, other XML, JSON and ARFF.
fn markup(text: &str) -> Option<FileKind> {
    let small = text.to_ascii_lowercase();
    let begins = |tags: &[&str]| tags.iter().any(|tag| small.starts_with(tag));
    let [name, advice] = if begins(&["<!doctype html", "<html", "<head", "<body", "<script"])
        || (begins(&["<?xml", "<!--"]) && small.contains("<html"))
    {
        ["an HTML page, not the file", DOWNLOAD]
    } else if begins(&["<svg"]) || (begins(&["<?xml", "<!--", "<!doctype svg"]) && small.contains("<svg")) {
        ["a picture (SVG)", PICTURE]
    } else if begins(&["<?xml", "<error>"]) {
        ["XML", "save the table as .csv, or download the file again if a server sent XML instead of the file"]
    } else if is_json(&small) {
        let lines: Vec<&str> = small.lines().take(2).map(str::trim).collect();
        match lines[..] {
            [first, second] if first.ends_with('}') && second.starts_with('{') => ["JSON lines", TABLE],
            _ => ["JSON", TABLE],
        }
    } else if small.lines().any(|line| line.starts_with("@relation")) {
        ["a Weka table (ARFF)", TABLE]
    } else {
        return None;
    };
    Some(FileKind { name, advice })
}

/// Whether a text begins like JSON: an object, or a list of objects, lists or strings.
fn is_json(text: &str) -> bool {
    let after = |bracket: char| text.strip_prefix(bracket).and_then(|rest| rest.trim_start().chars().next());
    matches!(after('{'), Some('"' | '}')) || matches!(after('['), Some('{' | '[' | '"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: usize, magic: &[u8]) -> Vec<u8> {
        [&vec![1; offset], magic, &[0; 600]].concat()
    }

    #[test]
    fn every_kind_is_named_by_its_first_bytes() {
        for (offset, magic, name, advice) in KINDS {
            let found = foreign(&at(offset, magic)).map(|kind| (kind.name, kind.advice));
            assert_eq!(found, Some((name, advice)), "{}", magic.escape_ascii());
        }
    }

    #[test]
    fn kinds_without_a_number_of_their_own_are_named() {
        let zip = |name: &str| {
            let length = [name.len() as u8, 0];
            [b"PK\x03\x04", &[0; 22][..], &length, &[0; 2], name.as_bytes(), &[0; 99]].concat()
        };
        let media = |brand: &str| [b"\0\0\0\x18ftyp", brand.as_bytes(), &[0; 20]].concat();
        let bmp = [b"BM\x10\x0a\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0", &[0; 40][..]].concat();
        for (bytes, expected) in [
            (media("heic"), "HEIC"),
            (media("mif1"), "HEIC"),
            (media("avif"), "AVIF"),
            (media("isom"), "a video"),
            (zip("pets/cat/1.png"), "a zip archive: unpack it"),
            (zip("x_train.npy"), ".npz"),
            (zip("model/data.pkl"), "PyTorch checkpoint: save its state_dict"),
            (zip("[Content_Types].xml"), "spreadsheet"),
            (zip("mimetype"), "OpenDocument"),
            (bmp, "BMP"),
            (b"BZh91AY&SY\x12\x8f".to_vec(), "compressed with bzip2"),
            (b"BZh11AY&SY\x12\x8f".to_vec(), "compressed with bzip2"),
            (b"\x80\x04\x95".to_vec(), "pickle"),
            (b"\n\n<!DOCTYPE html><html>".to_vec(), "an HTML page, not the file: download"),
            (b"\xef\xbb\xbf<HTML lang=en>".to_vec(), "HTML"),
            (b"<?xml version=\"1.0\"?>\n<svg width=\"5\">".to_vec(), "SVG"),
            (b"<?xml version=\"1.0\"?><Error><Code>AccessDenied".to_vec(), "XML"),
            (b"{\"a\": 1}\n{\"a\": 2}\n".to_vec(), "JSON lines"),
            (b"{\"a\":1}\n{\"a\":2}\n".to_vec(), "JSON lines"),
            (b"{\n  \"a\": [1]\n}".to_vec(), "JSON: save the table"),
            (b"[{\"a\": 1}]".to_vec(), "JSON"),
            (b"% Title: Iris\n%\n@RELATION iris\n".to_vec(), "ARFF"),
        ] {
            let found = foreign(&bytes).map(|kind| kind.to_string()).unwrap_or_default();
            assert!(found.contains(expected), "{}: {found:?}", bytes[..12].escape_ascii());
        }
    }

    #[test]
    fn text_that_may_be_a_table_is_not_named() {
        for text in [
            "",
            "a,b,class\n1,2,x\n",
            "BMI,age,class\n20,30,a\n",
            "ORCID,label\n1,a\n",
            "FEA1,FEA2,label\n",
            "PK,name,class\n1,a,b\n",
            "P1\t5\tx\n",
            "{id},x\n",
            "[0 1],cat\n",
            "<5,yes\n<6,no\n",
            "MM,II,GIF,label\n",
            "ID,a\n1,b\n",
            "größe,klasse\n1,a\n",
            "ID3,label\n1,a\n",
            "x,y,a,b,WAVE,AVI ,label\n",
            "abc,TFL3,label\n",
        ] {
            assert_eq!(foreign(text.as_bytes()), None, "{text:?}");
        }
    }
}
