//! Reads and writes run directories. A run is one training with mpiburn, and its directory contains
//! everything that the run writes to disk. Only rank 0 writes to the directory.
//!
//! The crate depends on neither Burn nor MPI and does not know the program's options. For this crate, the
//! configuration in `run.json` and the position in a checkpoint are of any serializable type. [`Layout`]
//! describes the parameters of a network. The crate `run-report` makes reports from run directories. The
//! README of the repository describes the program.

#![forbid(unsafe_code)]

mod bounds;
pub mod checkpoint;
mod confusion;
mod curve_file;
mod error;
mod failed_attempt;
pub mod files;
mod folders;
mod json_problem;
mod moments_file;
mod named_run;
pub mod profile;
mod rank_file;
mod replaced;
mod run_dir;
mod run_json;
mod schema;
mod sweep_json;
mod tensor_file;
mod tensorboard;
mod writer;

use std::fmt::Display;

pub use bounds::out_of_bounds;
pub use checkpoint::{Checkpoint, SaveOptions};
pub use checkpoint::{CurveDigest, Curves, DataDigests, Manifest, Origin};
pub use confusion::{ByClass, ClassRecord, Confusion};
pub use curve_file::check_curves;
pub use curve_file::{EpochRow, LEAST_RISE, overfits_after};
pub use error::{RecordError, restore_or_train};
pub use failed_attempt::StepFile;
pub use failed_attempt::{FailedAttempt, HOSTS, RunDirState, set_aside};
pub use files::lock;
pub use folders::Intact;
pub use folders::{is_of_run, is_own_file, run_around};
pub use json_problem::json_problem;
pub use moments_file::{FinishedMomentsFile, MomentsFile, NewMomentsFile};
pub use named_run::{NamedRun, product_at};
pub use rank_file::{FinishedRankFile, NewRankFile, RANKS, RankFile, RankTensors};
pub use run_dir::RunDir;
pub use run_json::{
    Attempt, Change, DataRecord, FailedCheckpoint, Machine, RankPlace, RankRecord, Results, RunRecord,
    Status, WORLD_SIZE, now, topology,
};
pub use run_json::{Phases, StepMs};
pub use schema::{Affects, OptionSchema, Part, Schema, Takes};
pub use sweep_json::{RunState, SweepRecord, SweepRun};
pub use tensor_file::{INT8_ENTRY, INT8_FILE, Method, int8_entry, method_of};
pub use tensor_file::{Layout, TensorSpec, safetensors_file};
pub use writer::{Curve, CurvePoint, Metrics, RunWriter, Start};

/// Quotes a word or a path for a shell, for commands that readers copy.
pub fn quoted(word: impl Display) -> String {
    let word = word.to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns a number with its noun, in the regular plural if needed: `1 batch`, `2 batches`.
pub fn count(number: usize, noun: &str) -> String {
    let ending = match number {
        1 => "",
        _ if (noun.ends_with("ch") && noun != "epoch") || noun.ends_with("ss") => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// Formats a number of bytes in the largest unit that fits: `64 bytes`, `15.7 KB`. 1 KB is 1024 bytes, 1 MB is
/// 1024 KB, and 1 GB is 1024 MB.
pub fn byte_size(bytes: u128) -> String {
    const KB: u128 = 1 << 10;
    const MB: u128 = 1 << 20;
    const GB: u128 = 1 << 30;
    match bytes {
        0..KB => count(bytes as usize, "byte"),
        KB..MB => format!("{:.1} KB", bytes as f64 / KB as f64),
        MB..GB => format!("{:.1} MB", bytes as f64 / MB as f64),
        GB.. => format!("{:.1} GB", bytes as f64 / GB as f64),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn sizes_have_the_largest_unit_that_fits() {
        for (bytes, expected) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1.0 KB"),
            (16_077, "15.7 KB"),
            (5 << 20, "5.0 MB"),
            (3 << 29, "1.5 GB"),
        ] {
            assert_eq!(byte_size(bytes), expected);
        }
        assert_eq!(files::free_bytes(std::path::Path::new("/proc/y")), None, "/proc has no blocks");
    }

    #[test]
    fn a_single_thing_is_no_plural() {
        let counted =
            [(1, "batch"), (2, "batch"), (2, "class"), (3, "epoch"), (0, "run")].map(|(n, of)| count(n, of));
        assert_eq!(counted, ["1 batch", "2 batches", "2 classes", "3 epochs", "0 runs"]);
    }

    #[test]
    fn a_shell_reads_quoted_words_as_they_were() {
        for word in ["results/try-1", "", "it's a run", "a b", "$HOME `ls` \\ \"x\" \n;&|*?", "~/runs", "#1"]
        {
            let line = format!("printf %s {}", quoted(word));
            let output = Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word, "{line}");
        }
        assert_eq!(quoted("results/try-1"), "results/try-1");
    }
}
