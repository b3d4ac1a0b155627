//! TensorBoard event files: one folder per rank, and one for the means.
//!
//! An event file is a TFRecord file of protobuf messages. A point of a curve
//! needs six fields of them, which are encoded here: the crates that write such
//! files add a protobuf compiler and an HTTP client to every build.
//!
//! Formats: `tensorflow/core/lib/io/record_writer.h` (records),
//! `tensorflow/core/util/event.proto` and `framework/summary.proto` (messages).

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::RecordError;
use crate::files;

/// How the name of an event file begins. TensorBoard reads only files with `tfevents` in their names.
const EVENTS: &str = "events.out.tfevents.";

/// Event files in one folder, one for each name.
pub struct TensorBoard {
    files: Vec<(PathBuf, BufWriter<File>)>,
}

impl TensorBoard {
    /// Opens a new event file in `folder/<name>` for each name, of a run that continues after `step`. Files of
    /// earlier processes lose the points after it, which the run writes again.
    ///
    /// # Errors
    /// If a file cannot be created, read or cut.
    pub fn create(folder: &Path, names: &[String], step: usize) -> Result<Self, RecordError> {
        let seconds = now().as_secs();
        let open = |name: &String| {
            let own = folder.join(name);
            for place in [folder, &own] {
                files::refuse_link(place).map_err(|e| RecordError::write(place, e))?;
            }
            let folder = own;
            fs::create_dir_all(&folder).map_err(|e| RecordError::write(&folder, e))?;
            let mut earlier = files::entries(&folder).map_err(|e| RecordError::read(&folder, e))?;
            earlier.retain(|file| file.file_name().as_encoded_bytes().starts_with(EVENTS.as_bytes()));
            for file in &earlier {
                cut(&file.path(), step).map_err(|e| RecordError::write(&file.path(), e))?;
            }
            // Their number keeps names of one second apart.
            let path = folder.join(format!("{EVENTS}{seconds}.{}.{}", std::process::id(), earlier.len()));
            let start = || {
                let mut file = BufWriter::new(files::create_here(&path)?);
                file.write_all(&record(&version(now().as_secs_f64())))?;
                io::Result::Ok(file)
            };
            let file = start().map_err(|e| RecordError::write(&path, e))?;
            Ok((path, file))
        };
        let files = names.iter().map(open).collect::<Result<_, RecordError>>()?;
        Ok(Self { files })
    }

    /// Adds a point to the curve `tag` of the file with number `file`. Non-finite
    /// values are omitted: TensorBoard does not draw them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn point(&mut self, file: usize, tag: &str, step: usize, value: f64) -> Result<(), RecordError> {
        if !value.is_finite() {
            return Ok(());
        }
        let event = scalar(now().as_secs_f64(), step as u64, tag, value as f32);
        let (path, file) = &mut self.files[file];
        file.write_all(&record(&event)).map_err(|e| RecordError::write(path, e))
    }

    /// Flushes all points to the operating system.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn flush(&mut self) -> Result<(), RecordError> {
        let flush = |(path, file): &mut (PathBuf, BufWriter<File>)| {
            file.flush().map_err(|e| RecordError::write(path, e))
        };
        self.files.iter_mut().try_for_each(flush)
    }
}

fn now() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Cuts an event file before its first point after `step`, and before a record that is incomplete: steps grow
/// in a file.
fn cut(path: &Path, step: usize) -> io::Result<()> {
    let mut file = files::open_here(path, File::options().read(true).write(true))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let mut kept = 0;
    while let Some((payload, length)) = first_record(&bytes[kept..]) {
        if step_of(payload) > step as u64 {
            break;
        }
        kept += length;
    }
    match kept < bytes.len() {
        true => file.set_len(kept as u64),
        false => Ok(()),
    }
}

/// The payload of the first record in `bytes`, and the record's length; none if it is incomplete or damaged.
fn first_record(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (checksum, rest) = rest.split_first_chunk::<4>()?;
    if *checksum != masked_crc(length) {
        return None;
    }
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let payload = rest.get(..length)?;
    rest.get(length..length.checked_add(4)?)?;
    Some((payload, 8 + 4 + length + 4))
}

/// `Event.step` of an event as it is written here; 0 where there is none.
fn step_of(event: &[u8]) -> u64 {
    match event.get(wall_time(0.0).len()..) {
        Some([first, digits @ ..]) if *first == key(2, VARINT) => {
            let last = digits.iter().position(|byte| byte & 0x80 == 0).unwrap_or(0);
            digits[..=last].iter().rev().fold(0, |step, byte| step << 7 | u64::from(byte & 0x7f))
        }
        _ => 0,
    }
}

/// A TFRecord: length, its checksum, payload, its checksum; little-endian.
fn record(payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u64).to_le_bytes();
    [&length, &masked_crc(&length)[..], payload, &masked_crc(payload)].concat()
}

const CRC_32C: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);

/// CRC-32C, masked as in `tensorflow/core/lib/hash/crc32c.h`: a checksum of data
/// that contains checksums is weak.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    CRC_32C.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Kinds of protobuf fields, in the low bits of their keys.
const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const LENGTH_DELIMITED: u8 = 2;
const FIXED_32: u8 = 5;

/// The key before a field's value; numbers up to 15 take one byte.
const fn key(number: u8, kind: u8) -> u8 {
    number << 3 | kind
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A string field, or a nested message.
fn delimited(number: u8, value: &[u8]) -> Vec<u8> {
    [&[key(number, LENGTH_DELIMITED)], &varint(value.len() as u64)[..], value].concat()
}

/// `Event.wall_time`, in seconds.
fn wall_time(seconds: f64) -> Vec<u8> {
    [&[key(1, FIXED_64)], &seconds.to_le_bytes()[..]].concat()
}

/// The `Event` that a file begins with.
fn version(seconds: f64) -> Vec<u8> {
    [wall_time(seconds), delimited(3, b"brain.Event:2")].concat()
}

/// An `Event` whose `summary` has one `value`: `tag` and `simple_value`.
fn scalar(seconds: f64, step: u64, tag: &str, value: f32) -> Vec<u8> {
    let step = [vec![key(2, VARINT)], varint(step)].concat();
    let simple_value = [&[key(2, FIXED_32)], &value.to_le_bytes()[..]].concat();
    let value = [delimited(1, tag.as_bytes()), simple_value].concat();
    let summary = delimited(5, &delimited(1, &value));
    [wall_time(seconds), step, summary].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks(2);
        digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    /// The check value of CRC-32C is e3069283; masked by TensorBoard 2.21's
    /// `masked_crc32c`.
    #[test]
    fn checksums_are_masked() {
        assert_eq!(CRC_32C.checksum(b"123456789"), 0xe306_9283);
        assert_eq!(masked_crc(b"123456789"), 0xc78a_b0e5_u32.to_le_bytes());
    }

    /// Expected bytes are those of TensorBoard 2.21's `Event.SerializeToString`.
    #[test]
    fn events_and_records_are_tensorboards() {
        assert_eq!(version(1.5), hex("09000000000000f83f1a0d627261696e2e4576656e743a32"));
        let expected = "2100000000000000017becf609000000000000f83f10ac022a130a110a0a\
                        747261696e2f6c6f7373150000803e6557981f";
        assert_eq!(record(&scalar(1.5, 300, "train/loss", 0.25)), hex(expected));
    }

    #[test]
    fn lengths_take_as_many_bytes_as_they_need() {
        assert_eq!([varint(0), varint(127)].concat(), [0, 127]);
        assert_eq!([varint(128), varint(1 << 32)].concat(), [128, 1, 128, 128, 128, 128, 16]);
    }

    #[test]
    fn a_file_begins_with_its_version_and_has_finite_points_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::create(folder.path(), &["mean".into()], 0).unwrap();
        board.point(0, "train/loss", 1, f64::NAN).unwrap();
        board.point(0, "train/loss", 2, 0.5).unwrap();
        board.flush().unwrap();
        let mut files = fs::read_dir(folder.path().join("mean")).unwrap();
        let bytes = fs::read(files.next().unwrap().unwrap().path()).unwrap();
        let sizes = [version(0.0), scalar(0.0, 2, "train/loss", 0.5)].map(|event| record(&event).len());
        assert_eq!(bytes.len(), sizes[0] + sizes[1]);
        assert_eq!(bytes[12 + 9..][..15], *b"\x1a\x0dbrain.Event:2");
    }

    #[test]
    fn a_resumed_run_has_no_step_twice() {
        let folder = tempfile::tempdir().unwrap();
        let steps = [1, 127, 128, 300, 20_000, 1 << 40];
        let mut board = TensorBoard::create(folder.path(), &["mean".into()], 0).unwrap();
        for step in steps {
            board.point(0, "train/loss", step, 0.5).unwrap();
            board.point(0, "train/accuracy", step, 50.0).unwrap();
        }
        board.flush().unwrap();
        drop(board);
        let file = fs::read_dir(folder.path().join("mean")).unwrap().next().unwrap().unwrap().path();
        let found = || {
            let (bytes, mut at, mut steps) = (fs::read(&file).unwrap(), 0, Vec::new());
            while let Some((payload, length)) = first_record(&bytes[at..]) {
                steps.push(step_of(payload) as usize);
                at += length;
            }
            (steps, bytes.len() - at)
        };
        let of =
            |steps: &[usize]| [0].into_iter().chain(steps.iter().flat_map(|&step| [step, step])).collect();
        assert_eq!(found(), (of(&steps), 0), "a version, and two curves");
        // A process that was killed leaves a part of a record.
        let whole = fs::metadata(&file).unwrap().len();
        File::options().write(true).open(&file).unwrap().set_len(whole - 1).unwrap();
        for (step, left) in [(20_000, 5), (20_000, 5), (299, 3), (127, 2), (0, 0)] {
            cut(&file, step).unwrap();
            assert_eq!(found(), (of(&steps[..left]), 0), "up to {step}");
        }
        fs::write(&file, "no events").unwrap();
        cut(&file, 5).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"");
        let link = folder.path().join("mean").join("events.out.tfevents.1.2");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let error = TensorBoard::create(folder.path(), &["mean".into()], 5).err().unwrap().to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }
}
