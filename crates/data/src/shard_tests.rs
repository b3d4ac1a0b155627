//! Tests of the samples of one rank.

use super::*;
use crate::error::names_all;
use crate::generate::noise;

/// Returns the sample indices of `rank`. All samples are dealt to the ranks in turn: first the sample with
/// the index `first`, then the following ones, and after the last sample those from index 0.
fn dealt(samples: usize, world: usize, rank: usize, first: usize) -> Vec<u32> {
    let order = (0..samples).map(|place| ((first + place) % samples) as u32);
    order.skip(rank).step_by(world).collect()
}

#[test]
fn samples_and_labels_are_those_of_the_numbers() {
    let source = noise([1, 2, 3], 10, 101);
    let mut images = Vec::new();
    source.for_each_sample(Split::Train, 101, &mut |_, bytes| images.push(bytes.to_vec())).unwrap();
    let labels = source.labels(Split::Train, 101).unwrap();
    for (world, rank, first) in [(1, 0, 0), (3, 1, 0), (4, 3, 50)] {
        let numbers = dealt(101, world, rank, first);
        let shard = Shard::open(&source, Split::Train, 101, numbers.clone(), false).unwrap();
        assert_eq!((shard.len(), shard.numbers(0, 999)), (numbers.len(), &numbers[..]));
        for from in (0..numbers.len()).step_by(8) {
            let (bytes, classes) = shard.read(from, 8).unwrap();
            let part = &numbers[from..numbers.len().min(from + 8)];
            assert_eq!(classes, part.iter().map(|&number| labels[number as usize]).collect::<Vec<_>>());
            let expected: Vec<u8> = part.iter().flat_map(|&number| images[number as usize].clone()).collect();
            assert_eq!(*bytes, expected, "{rank} of {world} from {from}");
        }
    }
}

#[test]
fn labels_are_bytes_in_digests_of_at_most_256_classes() {
    let digest = |classes| {
        let mut digest = digest_of_labels(&[1, 255, 0], classes);
        digest.update(b"samples");
        files::hex(digest.finalize())
    };
    assert_eq!(digest(256), files::sha256(b"\x01\xff\x00samples"));
    assert_eq!(digest(257), files::sha256(b"\x01\x00\xff\x00\x00\x00samples"));
}

#[test]
fn a_reloaded_shard_equals_a_newly_loaded_one() {
    let source = noise([1, 2, 3], 10, 50);
    let numbers = |epoch: usize| dealt(50, 3, 1, 7 * epoch);
    let mut shard = Shard::open(&source, Split::Train, 50, numbers(0), false).unwrap();
    let digest = shard.digest().to_owned();
    assert_eq!(digest, super::digest(&source, Split::Train, 50).unwrap());
    shard.reload(&source, numbers(1)).unwrap();
    let fresh = Shard::open(&source, Split::Train, 50, numbers(1), false).unwrap();
    assert_eq!(shard.read(0, 99).unwrap(), fresh.read(0, 99).unwrap());
    assert_eq!(shard.numbers(0, 99), fresh.numbers(0, 99));
    assert_eq!((shard.digest(), fresh.digest()), (&*digest, &*digest));
}

#[test]
fn samples_on_disk_are_those_in_memory_and_a_shortened_file_is_an_error() {
    #[derive(clap::Parser)]
    struct Import {
        #[command(flatten)]
        args: crate::import::ImportArgs,
    }
    let root = tempfile::tempdir().unwrap();
    let [table, out] = ["t.csv", "out"].map(|name| root.path().join(name).display().to_string());
    let rows: String = (0..50).map(|row| format!("{row},{},c{}\n", row * row, row % 3)).collect();
    std::fs::write(&table, format!("a,b,label\n{rows}")).unwrap();
    let args = <Import as clap::Parser>::parse_from(["import", &table, "--out", &out]).args;
    crate::import::import(&args, &|_, _| std::ops::ControlFlow::Continue(())).unwrap();
    let source = crate::open(out.as_ref()).unwrap();
    let samples = source.len(Split::Train);
    for (world, first) in [(1, 0), (3, 0), (3, 20)] {
        for rank in 0..world {
            let numbers = dealt(samples, world, rank, first);
            let memory = Shard::open(&source, Split::Train, samples, numbers.clone(), false).unwrap();
            let before = dealt(samples, world, rank, 9);
            let mut disk = Shard::open(&source, Split::Train, samples, before, true).unwrap();
            disk.reload(&source, numbers).unwrap();
            for (from, count) in [(0, 4), (3, 7), (samples, 1), (0, 999)] {
                assert_eq!(disk.read(from, count).unwrap(), memory.read(from, count).unwrap());
            }
            assert_eq!((disk.digest(), disk.class_counts()), (memory.digest(), memory.class_counts()));
        }
    }
    let disk = Shard::open(&source, Split::Train, samples, dealt(samples, 1, 0, 0), true).unwrap();
    let file = root.path().join("out/train-images.npy");
    std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(200).unwrap();
    let message = disk.read(0, samples).unwrap_err().to_string();
    assert!(names_all(&message, "train-images.npy: | changed"), "{message}");
}
