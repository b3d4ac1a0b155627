//! TensorBoard event files: one folder for each rank, and one for the means over ranks.
//!
//! An event file is a TFRecord file of protobuf messages. A point of a curve needs only six fields of these
//! messages, so the messages are declared here. The existing crates for event files would add a protobuf
//! compiler and an HTTP client to every build.
//!
//! Formats: `tensorflow/core/lib/io/record_writer.h` (records),
//! `tensorflow/core/util/event.proto` and `framework/summary.proto` (messages).

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use super::RecordError;
use crate::files;

/// How the name of an event file begins. TensorBoard only reads files with `tfevents` in their names.
const EVENTS: &str = "events.out.tfevents.";

/// Writes one event file in each of several folders. [`create`](Self::create) takes the names of the folders.
pub struct TensorBoard {
    files: Vec<(PathBuf, BufWriter<File>)>,
}

impl TensorBoard {
    /// Opens a new event file in `folder/<name>` for each name. The run continues after `step`: points
    /// after `step` are cut from existing event files, because the run writes these points again. The other
    /// folders are those of ranks that the run has no longer; their files are cut too.
    ///
    /// # Errors
    /// If a file cannot be created, read or cut.
    pub fn create(folder: &Path, names: &[String], step: usize) -> Result<Self, RecordError> {
        let seconds = now().as_secs();
        let others = files::entries(folder).map_err(|e| RecordError::read(folder, e))?;
        let others = others.iter().filter_map(|entry| entry.file_name().into_string().ok());
        for other in others.filter(|name| name.starts_with("rank") && !names.contains(name)) {
            cut_all(&folder.join(other), step)?;
        }
        let open = |name: &String| {
            let own = folder.join(name);
            for place in [folder, &own] {
                files::refuse_link(place).map_err(|e| RecordError::write(place, e))?;
            }
            let folder = own;
            fs::create_dir_all(&folder).map_err(|e| RecordError::write(&folder, e))?;
            let earlier = cut_all(&folder, step)?;
            // In containers, two processes may have the same id. The number of earlier files tells them
            // apart.
            let path = folder.join(format!("{EVENTS}{seconds}.{}.{earlier}", std::process::id()));
            let start = || {
                let mut file = BufWriter::new(files::create_here(&path)?);
                file.write_all(&record(&Event::version(now().as_secs_f64())))?;
                io::Result::Ok(file)
            };
            let file = start().map_err(|e| RecordError::write(&path, e))?;
            Ok((path, file))
        };
        let files = names.iter().map(open).collect::<Result<_, RecordError>>()?;
        Ok(Self { files })
    }

    /// Adds a point to the curve `tag`. `file` is the index of the event file, in the order of the names.
    /// Non-finite values are omitted: TensorBoard does not draw them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn point(&mut self, file: usize, tag: &str, step: usize, value: f64) -> Result<(), RecordError> {
        if !value.is_finite() {
            return Ok(());
        }
        let event = Event::scalar(now().as_secs_f64(), step as i64, tag, value as f32);
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

/// Cuts the points after `step` from the event files in `folder`. Returns the number of these files.
fn cut_all(folder: &Path, step: usize) -> Result<usize, RecordError> {
    files::refuse_link(folder).map_err(|e| RecordError::write(folder, e))?;
    let mut earlier = files::entries(folder).map_err(|e| RecordError::read(folder, e))?;
    earlier.retain(|file| file.file_name().as_encoded_bytes().starts_with(EVENTS.as_bytes()));
    for file in &earlier {
        cut(&file.path(), step).map_err(|e| RecordError::write(&file.path(), e))?;
    }
    Ok(earlier.len())
}

fn now() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Cuts an event file before the first point after `step`, or before an incomplete record, whichever is
/// first. Steps ascend in a file, so all points behind the cut are later or cannot be read.
fn cut(path: &Path, step: usize) -> io::Result<()> {
    let mut file = files::open_here(path, File::options().read(true).write(true))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let mut kept = 0;
    while let Some((payload, length)) = first_record(&bytes[kept..]) {
        if Event::decode(payload).is_ok_and(|event| event.step > step as i64) {
            break;
        }
        kept += length;
    }
    if kept < bytes.len() { file.set_len(kept as u64) } else { Ok(()) }
}

/// Returns the payload of the first record in `bytes` and the length of the whole record; `None` if the
/// record is incomplete or its length is damaged. The payload's checksum is not checked.
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

/// Returns a TFRecord: length, checksum of the length, payload, checksum of the payload; little-endian.
fn record(event: &Event) -> Vec<u8> {
    let payload = event.encode_to_vec();
    let length = (payload.len() as u64).to_le_bytes();
    [&length, &masked_crc(&length)[..], &payload, &masked_crc(&payload)].concat()
}

const CRC_32C: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);

/// CRC-32C, masked as in `tensorflow/core/lib/hash/crc32c.h`. The mask is needed because a plain CRC of data
/// that contains CRCs is weak.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    CRC_32C.checksum(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// `Event` of `event.proto`. The first event of a file states the version of the format. Each point of a
/// curve is an event with a summary.
#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

/// `Summary` of `summary.proto`.
#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

/// `Value` of `Summary`.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

impl Event {
    /// Makes the first event of a file.
    fn version(wall_time: f64) -> Self {
        Self { wall_time, file_version: Some("brain.Event:2".into()), ..Self::default() }
    }

    /// Makes a point of the curve `tag`.
    fn scalar(wall_time: f64, step: i64, tag: &str, value: f32) -> Self {
        let value = Value { tag: tag.into(), simple_value: Some(value) };
        Self { wall_time, step, summary: Some(Summary { value: vec![value] }), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks(2);
        digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    /// The check value of CRC-32C is e3069283. The masked value is from TensorBoard 2.21's `masked_crc32c`.
    #[test]
    fn checksums_are_masked() {
        assert_eq!(CRC_32C.checksum(b"123456789"), 0xe306_9283);
        assert_eq!(masked_crc(b"123456789"), 0xc78a_b0e5_u32.to_le_bytes());
    }

    /// Expected bytes are from TensorBoard 2.21's `Event.SerializeToString`.
    #[test]
    fn events_and_records_are_tensorboards() {
        assert_eq!(
            Event::version(1.5).encode_to_vec(),
            hex("09000000000000f83f1a0d627261696e2e4576656e743a32")
        );
        let expected = "2100000000000000017becf609000000000000f83f10ac022a130a110a0a\
                        747261696e2f6c6f7373150000803e6557981f";
        assert_eq!(record(&Event::scalar(1.5, 300, "train/loss", 0.25)), hex(expected));
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
        let sizes =
            [Event::version(0.5), Event::scalar(0.5, 2, "train/loss", 0.5)].map(|event| record(&event).len());
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
                steps.push(Event::decode(payload).unwrap().step as usize);
                at += length;
            }
            (steps, bytes.len() - at)
        };
        let of =
            |steps: &[usize]| [0].into_iter().chain(steps.iter().flat_map(|&step| [step, step])).collect();
        assert_eq!(found(), (of(&steps), 0), "a version, and two curves");
        // A killed process leaves an incomplete record.
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
