//! Reads all files in `fuzz/seeds` through the functions of the fuzz targets in `fuzz`. The files are seeds
//! of fuzzing, and inputs with which fuzzing found a bug.
//!
//! An input may not cause a panic, or more memory than its target's limit. An input whose name begins with
//! `valid` must be accepted. Valid inputs are also read cut short, and with single bytes changed.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

#[path = "../fuzz/targets.rs"]
mod targets;

/// At most this many bytes of a valid input are changed, one at a time. In a longer input, they are evenly
/// spread.
const PLACES: usize = 400;

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

fn seeds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds")
}

fn known() -> BTreeSet<String> {
    targets::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// Each seed with its target and its name.
fn inputs() -> impl Iterator<Item = (String, String, Vec<u8>)> {
    known().into_iter().flat_map(|target| {
        names(&seeds().join(&target)).into_iter().map(move |name| {
            let input = fs::read(seeds().join(&target).join(&name)).expect("a seed");
            (target.clone(), name, input)
        })
    })
}

#[test]
fn all_seeds_are_read_within_their_limits() {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/fuzz_targets");
    assert_eq!(names(&seeds()), known(), "a folder of seeds for each target");
    assert_eq!(names(&programs), known().iter().map(|name| format!("{name}.rs")).collect());
    let mut wrong = Vec::new();
    let mut accepted = BTreeSet::new();
    for (target, name, input) in inputs() {
        match (catch_unwind(|| targets::check(&target, &input)), name.starts_with("valid")) {
            (Ok(Ok(())), true) => drop(accepted.insert(target)),
            (Ok(_), false) => {}
            (Ok(Err(error)), true) => wrong.push(format!("{target}/{name}: {error}")),
            (Err(_), _) => wrong.push(format!("{target}/{name}: a panic, or too much memory")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(accepted, known(), "a valid seed of each target");
}

#[test]
fn valid_files_that_are_cut_or_changed_are_read_within_their_limits() {
    let mut wrong = Vec::new();
    for (target, name, input) in inputs().filter(|(_, name, _)| name.starts_with("valid")) {
        for at in (0..input.len()).step_by(input.len().div_ceil(PLACES)) {
            let with = |byte: u8| {
                let mut changed = input.clone();
                changed[at] = byte;
                changed
            };
            let changed =
                [input[..at].to_vec(), with(0), with(255), with(input[at] ^ 1), with(b'9'), with(b'-')];
            for (number, changed) in changed.into_iter().enumerate() {
                if catch_unwind(|| drop(targets::check(&target, &changed))).is_err() {
                    wrong.push(format!("{target}/{name}: byte {at}, change {number}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
