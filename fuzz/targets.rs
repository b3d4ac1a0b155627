//! What a fuzz target does with an input. It writes the input as one of the program's files, reads the file
//! through the functions that the program uses, and compares the memory that the reader used with a limit.
//! The fuzz targets share this file with `tests/corpora.rs`, which reads all stored inputs again.
//!
//! A data set has several files. The first byte of its input selects the file that the rest of the input
//! replaces. Files that contain their own SHA-256 are given the right one, because a wrong one would end the
//! reading at once.

use std::alloc::System;
use std::cell::OnceCell;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use burn::nn::LinearConfig;
use burn::tensor::Device;
use burn_fused::memory::counting_allocator::{CountingAllocator, live_bytes, peak, set_peak};
use burn_mpi::ParamLayout;
use data::Split;
use launch::sweep::{SweepFile, plan};
use launch::{Hosts, MpiFlavour, Topology};
use mpiburn::layout::stored;
use mpiburn::options::RunConfig;
use mpiburn::quant::Int8File;
use mpiburn::train::Position;
use run_record::checkpoint::load_weights;
use run_record::{Checkpoint, Layout, Manifest, NewMomentsFile, RunDir, SaveOptions, Takes};
use run_report::link::Link;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

#[global_allocator]
static ALLOCATOR: CountingAllocator<System> = CountingAllocator(System);

/// Each target, and the memory that its reader may use, as a multiple of the file's size.
///
/// Deflate packs at most 1032 bytes into one byte, and a list that grows takes three times its content for a
/// moment. A JSON value takes 32 bytes, and its text may have two bytes (`0,`).
pub const TARGETS: [(&str, usize); 11] = [
    ("idx", 3 * 1032),
    ("cifar", 8),
    ("npy", 128),
    ("weights", 128),
    ("int8", 128),
    ("state", 128),
    ("manifest", 128),
    ("run_json", 128),
    ("sweep", 1024),
    ("host_file", 128),
    ("link", 128),
];

/// Memory that the reader may use whatever the file's size: buffers, and the runs of a sweep. A short sweep
/// file may have ten thousand runs.
fn constant(target: &str) -> usize {
    let mib = if target == "sweep" { 64 } else { 2 };
    mib << 20
}

/// Reads an input. Returns the reader's error.
///
/// Panics if the reader panics or uses more memory than the target's limit.
pub fn check(target: &str, input: &[u8]) -> Result<(), String> {
    let (_, multiple) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("a known target");
    FOLDER.with(|folder| {
        // One folder per target: a folder with data sets of two kinds is an error.
        let folder = folder.get_or_init(new_folder).path().join(target);
        let path = write(target, &folder, input);
        let before = live_bytes();
        set_peak(before);
        let outcome = read(target, &path);
        let used = usize::try_from(peak() - before).unwrap_or(0);
        let limit = constant(target) + multiple * input.len();
        assert!(used <= limit, "{target}: {used} bytes for a file of {}, at most {limit}", input.len());
        outcome
    })
}

thread_local! {
    static FOLDER: OnceCell<TempDir> = const { OnceCell::new() };
}

/// A new folder, in memory if there is /dev/shm.
fn new_folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() };
    folder.expect("a folder for the files")
}

const IDX: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];
const NPY: [&str; 4] =
    ["train_data/train_x.npy", "train_data/train_y.npy", "test_data/test_x.npy", "test_data/test_y.npy"];
const CIFAR: [&str; 2] = ["data_batch_1.bin", "test_batch.bin"];
/// The step of the checkpoint whose `state.json` is replaced by the input.
const STEP: usize = 500;

/// Writes the input as a file, and the other files that belong to it. Returns the path to read.
fn write(target: &str, folder: &Path, input: &[u8]) -> PathBuf {
    let (selector, rest) =
        input.split_first().map_or((0, input), |(first, rest)| (usize::from(*first), rest));
    match target {
        "idx" => {
            write_idx(folder, selector, rest);
            folder.to_owned()
        }
        "cifar" => {
            CIFAR.iter().for_each(|name| drop(put(folder, name, &[3; 3073])));
            put(folder, CIFAR[selector % 2], rest);
            folder.to_owned()
        }
        "npy" => {
            for (number, name) in NPY.iter().enumerate() {
                put(folder, name, &npy(number % 2 == 0));
            }
            put(folder, NPY[selector % 4], rest);
            folder.to_owned()
        }
        "state" => {
            let path = checkpoint(folder);
            let manifest = fs::read(path.join("manifest.json")).expect("a file of the checkpoint");
            let manifest = with_digest(&manifest, br#""state.json": ""#, &sha256(input));
            let manifest = with_own_digest(&manifest, br#""sha256": ""#);
            fs::write(path.join("manifest.json"), manifest).expect("a file in the folder");
            fs::write(path.join("state.json"), input).expect("a file in the folder");
            path
        }
        "int8" => put(folder, "int8.safetensors", &with_own_digest(input, br#"\"sha256\":\""#)),
        "manifest" => put(folder, "manifest.json", &with_own_digest(input, br#""sha256": ""#)),
        "run_json" => {
            put(folder, "run.json", input);
            folder.to_owned()
        }
        _ => put(folder, target, input),
    }
}

/// Writes a file in the folder.
fn put(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap_or(folder)).expect("a folder in the folder");
    fs::write(&path, bytes).expect("a file in the folder");
    path
}

/// Writes four IDX files. The input replaces one of them, plain or gzipped, or both training files, gzipped.
fn write_idx(folder: &Path, selector: usize, rest: &[u8]) {
    for (number, name) in IDX.iter().enumerate() {
        let _ = fs::remove_file(folder.join(format!("{name}.gz")));
        put(folder, name, &idx(number % 2 == 0));
    }
    let name = IDX[selector % 4];
    if selector & 8 == 8 {
        // Replaces images and labels of the training set, so that their headers may agree. A byte of the
        // input has the length of the first file.
        let (first, rest) = rest.split_first().map_or((0, rest), |(first, rest)| (*first, rest));
        let (images, labels) = rest.split_at(rest.len().min(usize::from(first)));
        for (name, bytes) in IDX.iter().zip([images, labels]) {
            fs::remove_file(folder.join(name)).expect("it was written");
            put(folder, &format!("{name}.gz"), bytes);
        }
    } else if selector & 4 == 4 {
        fs::remove_file(folder.join(name)).expect("it was written");
        put(folder, &format!("{name}.gz"), rest);
    } else {
        put(folder, name, rest);
    }
}

/// Two images of 28x28, or their labels.
fn idx(images: bool) -> Vec<u8> {
    if images {
        [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28][..], &[7; 2 * 784]].concat()
    } else {
        vec![0, 0, 8, 1, 0, 0, 0, 2, 3, 9]
    }
}

/// Two samples of three features, or their labels.
fn npy(features: bool) -> Vec<u8> {
    let (kind, shape, bytes) = if features { ("<f4", "(2, 3)", 24) } else { ("|u1", "(2,)", 2) };
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    [b"\x93NUMPY\x01\x00\x76\x00", format!("{header:117}\n").as_bytes(), &vec![0; bytes]].concat()
}

/// The parameters of the network that weights and checkpoints are for.
fn layout() -> Layout {
    stored(&ParamLayout::of_module(&LinearConfig::new(2, 2).init(&Device::flex())))
}

/// Path of a checkpoint; writes it at the first call.
fn checkpoint(folder: &Path) -> PathBuf {
    let path = folder.join(run_record::checkpoint::folder_name(STEP));
    if !path.join("model.safetensors").exists() {
        let written = Checkpoint {
            model: "convnet".into(),
            world_size: 2,
            params: vec![0.5; 6],
            moments: vec!["first".into(), "second".into()],
            updates: STEP as u64,
            position: Position { step: STEP, ..Position::default() },
        };
        let file =
            NewMomentsFile::create(&path, &layout(), &written.moments).and_then(NewMomentsFile::finish);
        let moments = &file.expect("a file of moments in the folder");
        let options = SaveOptions { moments: Some(moments), step: STEP, ..SaveOptions::default() };
        written.save(folder, &layout(), &options).expect("a checkpoint in the folder");
    }
    path
}

/// Replaces the digest after `key` by the right one: the SHA-256 of the file with zeros in its place.
fn with_own_digest(input: &[u8], key: &[u8]) -> Vec<u8> {
    let blank = with_digest(input, key, &"0".repeat(64));
    with_digest(&blank, key, &sha256(&blank))
}

/// Replaces the digits after `key` by `digest`, if the file has `key`.
fn with_digest(input: &[u8], key: &[u8], digest: &str) -> Vec<u8> {
    let mut file = input.to_vec();
    let at = file.windows(key.len()).position(|found| found == key).map(|at| at + key.len());
    if let Some(digits) = at.and_then(|at| file.get_mut(at..at + digest.len())) {
        digits.copy_from_slice(digest.as_bytes());
    }
    file
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn read(target: &str, path: &Path) -> Result<(), String> {
    match target {
        "idx" | "cifar" | "npy" => {
            let set = data::open(path).map_err(text)?;
            for split in Split::ALL {
                let size = set.description().sample_bytes();
                set.labels(split, usize::MAX).map_err(text)?;
                let visit = &mut |_, image: &[u8]| assert_eq!(image.len(), size);
                set.for_each_sample(split, usize::MAX, visit).map_err(text)?;
            }
            Ok(())
        }
        "weights" => load_weights(path, &layout()).map(drop).map_err(text),
        "int8" => Int8File::read(path).map_err(text)?.model().map(drop).map_err(text),
        "state" => Checkpoint::<Position>::load(path, &layout()).map(drop).map_err(text),
        "manifest" => Manifest::read(path).map(drop).map_err(text),
        "run_json" => RunDir::open::<RunConfig>(path).map(drop).map_err(text),
        "sweep" => {
            let options = ["backend", "epochs", "lr", "train-samples"].map(|name| (name, Takes::Value));
            let others = [("shuffle", Takes::Flag), ("fused", Takes::Switch)];
            let options = options.into_iter().chain(others).map(|(name, takes)| (name.to_owned(), takes));
            let options = options.collect();
            let file = SweepFile::read(path, &options).map_err(text)?;
            plan(&file, "full").map_err(text)?;
            if file.scales.contains_key("quick") {
                plan(&file, "quick").map(drop).map_err(text)
            } else {
                Ok(())
            }
        }
        "host_file" => {
            let topology = Topology { nodes: 2, ranks_per_node: 2 };
            let read = |mpi| Hosts::read(path, mpi).and_then(|hosts| hosts.for_topology(topology).map(drop));
            let [one, other] = [MpiFlavour::OpenMpi, MpiFlavour::Mpich].map(read);
            one.or(other).map_err(text)
        }
        "link" => {
            let link = Link::read(path).map_err(text)?;
            [0.0, 1.0, 1e9].into_iter().for_each(|bytes| assert!(!link.time_us(bytes).is_nan()));
            Ok(())
        }
        _ => unreachable!("a known target"),
    }
}

/// The error as the line that the program prints.
fn text(error: impl Display) -> String {
    error.to_string()
}
