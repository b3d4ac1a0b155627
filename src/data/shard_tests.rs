//! Tests of the assignment of samples to ranks and steps.

use super::*;
use crate::data::generate::noise;

fn plan(samples: usize, world_size: usize, batch_size: usize) -> ShardPlan {
    ShardPlan { samples, world_size, batch_size }
}

#[test]
fn the_batches_of_an_epoch_are_the_permutation_for_every_world_size() {
    let source = noise([1, 2, 3], 10, 101);
    let mut images = Vec::new();
    source.for_each_image(Split::Train, 101, &mut |_, bytes| images.push(bytes.to_vec())).unwrap();
    let labels = source.labels(Split::Train, 101).unwrap();
    for (world, batch) in [(1, 32), (2, 16), (3, 10), (4, 8)] {
        let plan = plan(101, world, batch);
        for epoch in 0..3 {
            let order = Order::Shuffled { seed: 5, epoch };
            let load = |rank| Shard::load(&source, Split::Train, &plan, rank, order).unwrap();
            let shards: Vec<Shard> = (0..world).map(load).collect();
            let mut union = Vec::new();
            for step in 0..plan.steps() {
                let from = step * batch;
                for (rank, shard) in shards.iter().enumerate() {
                    let numbers = shard.numbers(from, batch);
                    let (bytes, classes) = shard.read(from, batch).unwrap();
                    assert_eq!(numbers.len(), plan.batch_len(rank, step));
                    for (slot, &number) in numbers.iter().enumerate() {
                        assert_eq!(bytes[slot * 6..][..6], images[number as usize]);
                        assert_eq!(classes[slot], labels[number as usize]);
                    }
                }
                // All ranks' batches of a step are the next range of the permutation.
                let mut step_union: Vec<u32> =
                    shards.iter().flat_map(|shard| shard.numbers(from, batch)).copied().collect();
                let before = union.len();
                let mut expected = order.samples(101)[before..before + step_union.len()].to_vec();
                step_union.sort_unstable();
                expected.sort_unstable();
                assert_eq!(step_union, expected, "world {world}, step {step}");
                union.extend(step_union);
            }
            union.sort_unstable();
            assert_eq!(union, Order::Sequential.samples(101), "each sample once");
        }
    }
}

#[test]
fn labels_are_bytes_in_digests_of_at_most_256_classes() {
    let digest = |classes| {
        let mut digest = of_labels(&[1, 255, 0], classes);
        digest.update(b"samples");
        files::hex(digest.finalize())
    };
    assert_eq!(digest(256), files::sha256(b"\x01\xff\x00samples"));
    assert_eq!(digest(257), files::sha256(b"\x01\x00\xff\x00\x00\x00samples"));
}

#[test]
fn a_reloaded_shard_equals_a_newly_loaded_one() {
    let source = noise([1, 2, 3], 10, 50);
    let plan = plan(50, 3, 4);
    let order = |epoch| Order::Shuffled { seed: 1, epoch };
    let mut shard = Shard::load(&source, Split::Train, &plan, 1, order(0)).unwrap();
    let digest = shard.digest().to_owned();
    assert_eq!(digest, super::digest(&source, Split::Train, 50).unwrap());
    shard.reload(&source, order(1)).unwrap();
    let fresh = Shard::load(&source, Split::Train, &plan, 1, order(1)).unwrap();
    assert_eq!(shard.read(0, 99).unwrap(), fresh.read(0, 99).unwrap());
    assert_eq!(shard.numbers(0, 99), fresh.numbers(0, 99));
    assert_eq!((shard.digest(), fresh.digest()), (&*digest, &*digest));
}

#[test]
fn samples_on_disk_are_those_in_memory_and_a_shortened_file_is_an_error() {
    #[derive(clap::Parser)]
    struct Import {
        #[command(flatten)]
        args: data_import::ImportArgs,
    }
    let root = tempfile::tempdir().unwrap();
    let [table, out] = ["t.csv", "out"].map(|name| root.path().join(name).display().to_string());
    let rows: String = (0..50).map(|row| format!("{row},{},c{}\n", row * row, row % 3)).collect();
    std::fs::write(&table, format!("a,b,label\n{rows}")).unwrap();
    let args = <Import as clap::Parser>::parse_from(["import", &table, "--out", &out]).args;
    data_import::import(&args, &|_, _| std::ops::ControlFlow::Continue(())).unwrap();
    let source = super::super::open(out.as_ref()).unwrap();
    let samples = source.len(Split::Train);
    for (world, order) in
        [(1, Order::Sequential), (3, Order::Sequential), (3, Order::Shuffled { seed: 2, epoch: 1 })]
    {
        for rank in 0..world {
            let plan = plan(samples, world, 4);
            let memory = Shard::load(&source, Split::Train, &plan, rank, order).unwrap();
            let first = Order::Shuffled { seed: 9, epoch: 0 };
            let mut disk = Shard::open(&source, Split::Train, &plan, rank, first, true).unwrap();
            disk.reload(&source, order).unwrap();
            for (from, count) in [(0, 4), (3, 7), (samples, 1), (0, 999)] {
                assert_eq!(disk.read(from, count).unwrap(), memory.read(from, count).unwrap());
            }
            assert_eq!((disk.digest(), disk.class_counts()), (memory.digest(), memory.class_counts()));
        }
    }
    let disk = Shard::open(&source, Split::Train, &plan(samples, 1, 4), 0, Order::Sequential, true).unwrap();
    let file = root.path().join("out/train-images.npy");
    std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(200).unwrap();
    let message = disk.read(0, samples).unwrap_err().to_string();
    assert!(message.contains("train-images.npy: was changed since it was opened"), "{message}");
}
