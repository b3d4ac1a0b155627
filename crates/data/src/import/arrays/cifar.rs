//! Converts CIFAR-10's and CIFAR-100's python batches, which are pickles of pixels and labels, to arrays.
//!
//! The format is described at <https://www.cs.toronto.edu/~kriz/cifar.html>.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use run_record::count;
use run_record::files::foreign;
use serde_pickle::{DeOptions, HashableValue, Value};

use crate::DataError;
use crate::formats::DataSet;
use crate::formats::cifar10::{IMAGE, SHAPE};
use crate::formats::npy::npy_header;
use crate::import::arrays::{self, Arrays, Rows};
use crate::import::job::Job;
use crate::import::pictures::folder;

/// Maximum number of nesting opcodes in a pickle. A nesting opcode puts values into another value. The reader
/// of pickles recurses once for each level of nesting, so a crafted pickle could overflow the stack. The
/// batch of CIFAR-100 with 50,000 pictures has some 170 nesting opcodes, because Python appends 1,000 values
/// to a list with one opcode.
const MOST_NESTED: usize = 1000;

/// Returns whether a file is a batch. This is decided by its name and, for CIFAR-100, also by its first byte.
pub(crate) fn is_batch(path: &Path) -> bool {
    let name = folder::name(path);
    name.starts_with("data_batch_") && !name.contains('.') || is_batch_of_100(path)
}

/// Returns whether a file is the batch of CIFAR-100: a pickle named `train`.
fn is_batch_of_100(path: &Path) -> bool {
    let is_pickle = |mut file: File| {
        let mut first = [0];
        file.read_exact(&mut first).is_ok() && first == [0x80]
    };
    path.ends_with("train") && run_record::files::open_regular(path).is_ok_and(is_pickle)
}

/// Converts the batches in `source` to arrays. Returns `None` if there is no batch.
pub(crate) fn find(source: &Path, job: &Job<'_>) -> Result<Option<Arrays>, DataError> {
    let (_, files) = folder::inside(source)?;
    let batches: Vec<&PathBuf> = files.iter().filter(|path| is_batch(path)).collect();
    let Some(first) = batches.first() else { return Ok(None) };
    let (train, test, meta, default): (Vec<PathBuf>, _, _, _) = if is_batch_of_100(first) {
        (vec![first.to_path_buf()], "test", "meta", "fine_labels")
    } else {
        let names = (1..=batches.len()).map(|number| source.join(format!("data_batch_{number}")));
        (names.collect(), "test_batch", "batches.meta", "labels")
    };
    let test = source.join(test);
    if default == "labels"
        && let Some(missing) = missing(&batches, test.exists())
    {
        log::warn!("{}: {missing}", job.args.source.display());
    }
    let label = job.args.label.as_deref().unwrap_or(default);
    let all: Vec<&PathBuf> = train.iter().chain([&test]).collect();
    let folder = job.folder(arrays::FOLDER)?;
    let write = |name: &str, batches: &[PathBuf]| -> Result<(usize, Rows), DataError> {
        let path = folder.join(DataSet::file_name(name, "images"));
        let failed = |error| DataError::write(&path)(error);
        let mut images = File::create(&path).map_err(failed)?;
        // The header is written again at the end, when the number of pictures is known. Both headers have the
        // same length.
        images.write_all(&npy_header("|u1", &[0, SHAPE[0], SHAPE[1], SHAPE[2]])).map_err(failed)?;
        let (mut labels, mut files) = (Vec::new(), Vec::new());
        for batch in batches {
            files.push((labels.len() / size_of::<i64>(), folder::name(batch)));
            let (pixels, of_batch) = read(batch, label, &all)?;
            images.write_all(&pixels).map_err(failed)?;
            labels.extend(of_batch.into_iter().flat_map(i64::to_le_bytes));
        }
        let samples = labels.len() / size_of::<i64>();
        images.seek(SeekFrom::Start(0)).map_err(failed)?;
        images.write_all(&npy_header("|u1", &[samples, SHAPE[0], SHAPE[1], SHAPE[2]])).map_err(failed)?;
        let path = folder.join(DataSet::file_name(name, "labels"));
        fs::write(&path, [npy_header("<i8", &[samples]), labels].concat())
            .map_err(DataError::write(&path))?;
        Ok((samples, files))
    };
    let (training, train) = write("train", &train)?;
    let test = if test.exists() { write("test", std::slice::from_ref(&test))?.1 } else { Vec::new() };
    let [pictures, batches] = [count(training, "picture"), count(train.len(), "batch")];
    log::info!("{}: CIFAR with {batches} of {pictures} for training", job.args.source.display());
    let names = names(&source.join(meta), label)?;
    Ok(Some(Arrays::made(&folder, source, [train, test].map(|files| [files.clone(), files]), names)))
}

/// Says which of CIFAR-10's training and test batches are missing. Returns `None` if none is missing.
fn missing(batches: &[&PathBuf], has_test: bool) -> Option<String> {
    let has = |name: &String| batches.iter().any(|batch| batch.ends_with(name));
    let mut missing: Vec<String> = (1..=5).map(|number| format!("data_batch_{number}")).collect();
    missing.retain(|name| !has(name));
    missing.extend((!has_test).then(|| "test_batch".to_owned()));
    let is = if missing.len() == 1 { "is" } else { "are" };
    let listed = crate::quote::listed(&missing);
    (!missing.is_empty())
        .then(|| format!("{listed} {is} missing: CIFAR-10 has data_batch_1 to 5 and test_batch"))
}

fn dictionary(path: &Path) -> Result<BTreeMap<HashableValue, Value>, DataError> {
    let pickle = run_record::files::read_regular(path).map_err(DataError::read(path))?;
    if let Some(kind) = foreign(&pickle).filter(|_| !pickle.starts_with(&[0x80])) {
        bail!(path, "is {kind}");
    }
    if nested(&pickle) > MOST_NESTED {
        bail!(path, "is not a pickle of CIFAR: it nests values more than {MOST_NESTED} times");
    }
    // A pickle contains an array as a call of a NumPy function, and the state of the array. With this option,
    // the reader replaces the function, which it does not know, and keeps the state.
    let options = DeOptions::new().replace_unresolved_globals();
    match serde_pickle::value_from_slice(&pickle, options) {
        Ok(Value::Dict(entries)) => Ok(entries),
        Ok(_) => bail!(path, "is a pickle, but does not contain a dictionary"),
        Err(_) => Err(DataError::damaged(path, "is damaged, or is not a pickle of CIFAR")),
    }
}

/// The nesting opcodes.
const NESTING: &[u8] = b"Rabdelostu\x81\x85\x86\x87\x90\x91\x92";

/// Returns the number of nesting opcodes in a pickle. Counts until the pickle ends or the argument of an
/// opcode is incomplete.
///
/// All opcodes and their arguments are in <https://github.com/python/cpython/blob/main/Lib/pickletools.py>.
fn nested(mut pickle: &[u8]) -> usize {
    let mut nested = 0;
    while let [opcode, rest @ ..] = pickle {
        let counted = |bytes: usize| {
            let count =
                rest.get(..bytes)?.iter().rev().fold(0, |count, &byte| count << 8 | usize::from(byte));
            count.checked_add(bytes)
        };
        let lines = |number: usize| {
            let mut ends = rest.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            ends.nth(number - 1).map(|(at, _)| at + 1)
        };
        let argument = match opcode {
            b'.' => None,
            b'K' | b'h' | b'q' | 0x80 | 0x82 => Some(1),
            b'M' | 0x83 => Some(2),
            b'J' | b'j' | b'r' | 0x84 => Some(4),
            b'G' | 0x95 => Some(8),
            b'C' | b'U' | 0x8a | 0x8c => counted(1),
            b'B' | b'T' | b'X' | 0x8b => counted(4),
            0x8d | 0x8e | 0x96 => counted(8),
            b'F' | b'I' | b'L' | b'P' | b'S' | b'V' | b'g' | b'p' => lines(1),
            b'c' | b'i' => lines(2),
            opcode if NESTING.contains(opcode) => {
                nested += 1;
                Some(0)
            }
            _ => Some(0),
        };
        match argument.and_then(|bytes| rest.get(bytes..)) {
            Some(behind) => pickle = behind,
            None => break,
        }
    }
    nested
}

/// Returns the text of a string that Python 2 or Python 3 pickled.
fn text(bytes: &Value) -> Option<String> {
    match bytes {
        Value::String(text) => Some(text.clone()),
        Value::Bytes(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    }
}

/// Removes and returns the entry `name`. The key may be a string of Python 2 or of Python 3.
fn take(entries: &mut BTreeMap<HashableValue, Value>, name: &str) -> Option<Value> {
    let keys = [HashableValue::String(name.into()), HashableValue::Bytes(name.into())];
    keys.iter().find_map(|key| entries.remove(key))
}

/// Reads the pixels and the labels of a batch. `label` is the name of the entry with the labels, and `all`
/// are the batches of the source. If this batch has no such entry and another batch has it, the error names
/// the other batch.
fn read(path: &Path, label: &str, all: &[&PathBuf]) -> Result<(Vec<u8>, Vec<i64>), DataError> {
    let mut entries = dictionary(path)?;
    let keys: Vec<String> = entries.keys().filter_map(|key| text(&key.clone().into_value())).collect();
    let integer = |value: &Value| if let Value::I64(number) = value { Some(*number) } else { None };
    let integers = |values: &[Value]| values.iter().map(integer).collect::<Option<Vec<i64>>>();
    let labels = match take(&mut entries, label) {
        Some(Value::List(labels)) => integers(&labels),
        Some(_) => None,
        None => {
            let has = |batch: &&&PathBuf| {
                dictionary(batch).is_ok_and(|mut entries| take(&mut entries, label).is_some())
            };
            let remedy = match all.iter().find(has) {
                None => ": name the entry of the labels with --label".to_owned(),
                Some(other) => {
                    let other = folder::name(other);
                    format!(", but {other} has {label}: give all batches the same entry for the labels")
                }
            };
            bail!(path, "has no entry {label} (its entries are {}){remedy}", crate::quote::listed(keys))
        }
    };
    let Some(labels) = labels else { bail!(path, "entry {label} is not a list of integers") };
    // State of an array: version, shape, type, whether it is in Fortran order, and bytes.
    let Some(Value::Tuple(state)) = take(&mut entries, "data") else {
        bail!(path, "has no array of pixels named data: pickle the batch with a protocol below 5");
    };
    let expected = [labels.len() as i64, IMAGE as i64];
    if let Some(Value::Tuple(shape)) = state.get(1)
        && let Some(&[pictures, columns]) = integers(shape).as_deref()
        && (pictures != expected[0] && columns == expected[1])
    {
        let pictures = count(pictures.try_into().unwrap_or(0), "picture");
        bail!(path, "contains {pictures}, but {}", count(labels.len(), "label"));
    }
    match <[Value; 5]>::try_from(state) {
        Ok([_, Value::Tuple(shape), _, Value::Bool(false), Value::Bytes(pixels)])
            if integers(&shape).is_some_and(|shape| shape == expected)
                && pixels.len() == labels.len() * IMAGE =>
        {
            Ok((pixels, labels))
        }
        _ => bail!(path, "entry data is not an array of bytes with the shape {expected:?} in C order"),
    }
}

/// Returns the names of the classes from the file `path`. `label` is the name of the entry with the labels in
/// the batches. If it is `fine_labels`, the names are in the entry `fine_label_names` of the file. Returns
/// `None` if the file or this entry does not exist.
fn names(path: &Path, label: &str) -> Result<Option<Vec<String>>, DataError> {
    if !path.exists() {
        return Ok(None);
    }
    let key = format!("{}_names", label.trim_end_matches('s'));
    match take(&mut dictionary(path)?, &key) {
        Some(Value::List(names)) => Ok(names.iter().map(text).collect()),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_that_are_missing_are_told() {
        let paths: Vec<PathBuf> = (1..=5).map(|number| format!("cifar/data_batch_{number}").into()).collect();
        let all: Vec<&PathBuf> = paths.iter().collect();
        assert_eq!(missing(&all, true), None);
        assert!(missing(&all[..4], true).unwrap().starts_with("data_batch_5 is "));
        assert!(missing(&all[1..], false).unwrap().starts_with("data_batch_1, test_batch are "));
    }
}
